"""What ColossalAI 0.5.0 needs to train on a machine without an accelerator.

Its ZeRO code is written for CUDA streams and asserts the device's name (`AssertionError: device is
required`, zero/low_level/low_level_optim.py). On the CPU there is one stream: no wait.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any


class _OneStream:
    """The only stream there is."""

    def wait_stream(self, other: Any) -> None:
        return None

    def synchronize(self) -> None:
        return None


def install(names: SimpleNamespace) -> None:
    """Make the CPU ColossalAI's accelerator. `names` come from `import_colossalai`."""

    class CpuStreams(names.CpuAccelerator):  # type: ignore[misc,name-defined]
        """ColossalAI's CPU accelerator with the calls that its ZeRO optimizer makes."""

        def current_device(self) -> int:
            return 0

        def synchronize(self, device: Any = None) -> None:
            return None

        def Stream(self, device: Any = None, priority: int = 0, **_: Any) -> _OneStream:
            return _OneStream()

        def current_stream(self, device: Any = None) -> _OneStream:
            return _OneStream()

        def default_stream(self, device: Any = None) -> _OneStream:
            return _OneStream()

        def stream(self, stream_: Any) -> Any:
            return contextlib.nullcontext()

    names.set_accelerator(CpuStreams())
    names.LowLevelZeroOptimizer._sanity_checks = _sanity_checks


def _sanity_checks(optimizer: Any) -> None:
    """ColossalAI's own check of dtypes, without its check that the device is CUDA or NPU."""
    for group in optimizer.optim.param_groups:
        for parameter in group["params"]:
            if parameter.dtype != optimizer.dtype:
                kinds = f"{optimizer.dtype} and {parameter.dtype}"
                raise TypeError(f"weights of {kinds} in one optimizer")
