"""ColossalAI's names that the engine uses: without its unused features, and on a CPU.

`from colossalai.booster import Booster` takes 8 s (2 cores, warm cache), nearly all of it in
libraries of features we do not offer: peft and with it bitsandbytes (LoRA), galore_torch (GaLore),
torch's compiler (fp8 collectives). While ColossalAI is imported, placeholders replace those three
and torch.compile returns the plain function; the rest of the process sees the real ones. That
leaves 2 s. A version of ColossalAI that does not import this way is imported the ordinary way.

Nothing here starts CUDA: the starter imports ColossalAI and forks ranks, which could not use a GPU
then. ColossalAI 0.5.0 asks for the GPU's architecture, to choose what torch compiles of its fp8
collectives, and for the current device, a default of Gemini's optimizer, which we do not offer. It
gets neither; `use_gpu` sets the first.

ColossalAI sets CUDA_DEVICE_MAX_CONNECTIONS to 1, for which CUDA looks when a process first uses a
GPU: all streams then share one queue of the device, in the order of their launches. It stays so
unless the user has a value of their own.

`use_cpu` is for 0.5.0: its ZeRO code is written for CUDA streams and asserts the device's name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch


class _Unused:
    """A class of a feature that is not offered: nothing is an instance of it."""


class _Placeholder(types.ModuleType):
    """A module of such a feature: each of its names is that class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package

    def __getattr__(self, name: str) -> type[_Unused]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused


_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_PLACEHOLDERS = {
    "peft": ("utils", "utils.other", "utils.save_and_load"),
    "galore_torch": (),
    "bitsandbytes": ("optim", "optim.optimizer"),
}


@contextlib.contextmanager
def _placeholders() -> Iterator[None]:
    put: dict[str, types.ModuleType] = {}
    for top, parts in _PLACEHOLDERS.items():
        if top not in sys.modules:
            names = [top, *(f"{top}.{part}" for part in parts)]
            put |= {name: _Placeholder(name) for name in names}
    sys.modules.update(put)

    def plain(model: Any = None, **kwargs: Any) -> Any:
        return model if model is not None else lambda function: function

    def unknown(device: Any = None) -> tuple[int, int]:
        raise RuntimeError("CUDA is not started for an import")

    def first() -> int:
        return 0

    functions: list[tuple[Any, str, Any]] = [
        (torch, "compile", plain),
        (torch.cuda, "get_device_capability", unknown),
        (torch.cuda, "current_device", first),
    ]
    real = [getattr(module, name) for module, name, _ in functions]
    for module, name, ours in functions:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), theirs in zip(functions, real, strict=True):
            setattr(module, name, theirs)
        for name in put:
            sys.modules.pop(name, None)


def _names() -> types.SimpleNamespace:
    import colossalai  # noqa: F401
    from colossalai.accelerator import get_accelerator, set_accelerator  # noqa: F401
    from colossalai.accelerator.cpu_accelerator import CpuAccelerator  # noqa: F401
    from colossalai.accelerator.cuda_accelerator import CudaAccelerator  # noqa: F401
    from colossalai.booster import Booster  # noqa: F401
    from colossalai.booster.plugin import LowLevelZeroPlugin, TorchDDPPlugin  # noqa: F401
    from colossalai.zero import LowLevelZeroOptimizer  # noqa: F401

    return types.SimpleNamespace(**locals())


def import_colossalai() -> types.SimpleNamespace:
    """ColossalAI's names. Raises ModuleNotFoundError when it is not installed."""
    if importlib.util.find_spec("colossalai") is None:
        raise ModuleNotFoundError("No module named 'colossalai'", name="colossalai")
    connections = os.environ.get(_CONNECTIONS, "1")
    try:
        return _import()
    finally:
        os.environ[_CONNECTIONS] = connections


def _import() -> types.SimpleNamespace:
    already = {name for name in sys.modules if name.startswith("colossalai")}
    with warnings.catch_warnings():  # hints about apex and flash-attention
        warnings.simplefilter("ignore")
        if not already:
            try:
                with _placeholders():
                    return _names()
            except (ImportError, AttributeError, TypeError) as error:
                logging.getLogger(__name__).info("importing ColossalAI in full: %s", error)
                for name in [n for n in sys.modules if n.startswith("colossalai")]:
                    del sys.modules[name]
        return _names()


def use_gpu(names: types.SimpleNamespace) -> None:
    """Say what the import did not ask, and let only the current stream wait for reductions."""

    class CudaStreams(names.CudaAccelerator):  # type: ignore[misc,name-defined]
        """ColossalAI's accelerator. Where it waits for the whole device, the current stream waits
        for the streams that ColossalAI has made.

        Its ZeRO optimizer does so behind each backward pass, which would also wait for the copies
        of a save, and leave the GPU without work until the update is launched. What reads gradients
        is launched on the current stream behind this. No memory is taken again too early: the flat
        gradients, of the current stream's memory, are recorded on the reductions' stream. What
        arrives is of that stream's memory, and so are sums of several passes: it is used there and,
        behind this, read by the update. Freed, it is taken again by later reductions only, and each
        of these waits for the current stream first. The update's norm is read on the host before
        more is asked for, so that nothing is given back to the device meanwhile.
        """

        def __init__(self) -> None:
            super().__init__()
            self._made: set[Any] = set()

        def Stream(self, *args: Any, **kwargs: Any) -> Any:
            stream = super().Stream(*args, **kwargs)
            self._made.add(stream)
            return stream

        def synchronize(self, device: Any = None) -> None:
            current = self.current_stream(device)
            for stream in self._made:
                current.wait_stream(stream)

    names.set_accelerator(CudaStreams())
    fp8: Any = sys.modules.get("colossalai.quantization.fp8")
    if fp8 is not None:  # 90 for an H100
        fp8.cuda_arch = int("".join(map(str, torch.cuda.get_device_capability())))


def use_cpu(names: types.SimpleNamespace) -> None:
    """Make the CPU ColossalAI's accelerator, with one stream: nothing waits for another."""

    def nothing(*_: Any, **__: Any) -> None: ...

    one_stream = types.SimpleNamespace(wait_stream=nothing, synchronize=nothing)

    class CpuStreams(names.CpuAccelerator):  # type: ignore[misc,name-defined]
        """ColossalAI's CPU accelerator with the calls that its ZeRO optimizer makes."""

        current_device = staticmethod(lambda: 0)
        synchronize = staticmethod(nothing)
        Stream = current_stream = default_stream = staticmethod(lambda *_, **__: one_stream)
        stream = staticmethod(lambda _: contextlib.nullcontext())

    names.set_accelerator(CpuStreams())
    names.LowLevelZeroOptimizer._sanity_checks = _sanity_checks


def _sanity_checks(optimizer: Any) -> None:
    """ColossalAI's own check of dtypes, without its check that the device is CUDA or NPU."""
    for group in optimizer.optim.param_groups:
        for parameter in group["params"]:
            if parameter.dtype != optimizer.dtype:
                kinds = f"{optimizer.dtype} and {parameter.dtype}"
                raise TypeError(f"weights of {kinds} in one optimizer")
