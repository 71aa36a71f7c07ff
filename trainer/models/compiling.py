"""What torch.compile needs of a machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from trainer.errors import EngineError

_ADVICE = "set compile = False, or install what is missing"


def require_compiler(device_type: str) -> None:
    """Raises EngineError that names what torch's own backend misses on this machine."""
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if device_type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise EngineError("compile = True needs triton, which is not installed", hint=_ADVICE)
    elif not any(map(shutil.which, compilers)):
        missing = "a C++ compiler (g++ or clang++, or CXX), none is found"
        raise EngineError(f"compile = True needs {missing}", hint=_ADVICE)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        text = f"compile = True needs Python's headers, and there is no {header}"
        raise EngineError(text, hint="install python3-dev (python3-devel), or set compile = False")
