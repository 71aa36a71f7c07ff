"""Import what ranks need, once for all of them and for all attempts."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

# Without them an import can start threads (numpy's OpenBLAS) or CUDA (ColossalAI asks whether there
# is a GPU): neither may be in a process that forks.
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


# Where there is no driver, NVML does not answer, and torch's CUDA build asks CUDA itself: each rank
# would then start anew. With no GPU that is visible it asks neither.
_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")


def _has_gpu() -> bool:
    return any(os.path.exists(path) for path in _DRIVERS)  # noqa: PTH110


def preload(modules: Sequence[str], program: Sequence[str]) -> None:
    """Modules see the arguments of the program. One that fails is left to the ranks to report."""
    quiet = {**_QUIET, **({} if _has_gpu() else _HIDDEN)}
    set_here = [name for name in quiet if name not in os.environ]
    os.environ.update({name: quiet[name] for name in set_here})
    own = sys.argv
    sys.argv = list(program[1:] if program[0] == "-m" else program)
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - any module of any user
        traceback.print_exc()
    finally:
        sys.argv = own
        for name in set_here:
            del os.environ[name]
    gc.collect()
    gc.freeze()  # a collection in a rank would write into the pages that all share


def cannot_be_forked() -> bool:
    """Whether CUDA was initialised before this process was forked: it fails here then."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())
