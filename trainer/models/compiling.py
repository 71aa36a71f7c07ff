"""torch.compile of the blocks, and what it needs of a machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from trainer.errors import EngineError
from trainer.models.attention import frames

MOST_PROGRAMS = 64  # of blocks, which share one code object; torch's default is 8
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


def compile_each(blocks: Iterable[nn.Module], backend: str = "inductor") -> None:
    """torch.compile each block: seconds instead of minutes, shared by blocks of a kind.

    From the third shape of a batch on a program is for all sizes. Raises EngineError where the
    compiler is missing; a pass that needs more than MOST_PROGRAMS raises RuntimeError.
    """
    # Not a decorator: every process that imports the model would import the compiler, for 1 s.
    torch.compiler.assume_constant_result(frames.has_shared_memory)
    # Above the limit torch goes on uncompiled without a word, or ends in the backward pass of
    # a block that is recomputed (pytorch's CheckpointError: other tensors were saved).
    torch._dynamo.config.recompile_limit = MOST_PROGRAMS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if backend == "inductor":
        require_compiler("cuda" if torch.cuda.is_available() else "cpu")
    for block in blocks:
        block.compile(backend=backend)
