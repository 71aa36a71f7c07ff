"""torch.compile of the blocks, and what it needs of a machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import stat
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import EngineError
from trainer.models.attention import frames

MOST_PROGRAMS = 64  # of blocks, which share one code object; torch's default is 8
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
KERNELS_VARIABLE = "TRITON_CACHE_DIR"
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


def keep_programs_private() -> str:
    """The folder in which torch keeps what it has compiled, for later runs, and loads it from.

    torch's own choice, torchinductor_USER in /tmp, may be made by any user before: it would load
    that user's programs. The user's own TORCHINDUCTOR_CACHE_DIR counts. Raises EngineError.
    """
    import torch._inductor.config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    given = os.environ.get(CACHE_VARIABLE)
    if given and given != default_cache_dir():  # torch itself sets it to that, at some imports
        return given
    folder = os.environ[CACHE_VARIABLE] = str(_own_folder())
    # These lie below torch's own choice, whatever the variable says.
    torch._inductor.config.cpp_cache_precompile_headers = False
    return folder


def keep_kernels_private() -> str:
    """The folder in which Triton keeps the programs of our kernels, for later runs.

    Its own choice is below the home folder, which is often a network file system that all ranks of
    a run share, and not there in some containers. The user's own TRITON_CACHE_DIR, or torch's
    TORCHINDUCTOR_CACHE_DIR, counts. Raises EngineError.
    """
    if not os.environ.get(KERNELS_VARIABLE):
        parent = os.environ.get(CACHE_VARIABLE)
        os.environ[KERNELS_VARIABLE] = str((Path(parent) if parent else _own_folder()) / "triton")
    return os.environ[KERNELS_VARIABLE]


def _own_folder() -> Path:
    """This user's, made where it is missing. Raises EngineError."""
    places, whys = [Path(tempfile.gettempdir())], []
    with contextlib.suppress(RuntimeError):  # of a user without a home
        places.append(Path("~/.cache").expanduser())
    for parent in places:
        folder = parent / f"torch-compile-{os.getuid()}"
        try:
            parent.mkdir(mode=0o700, exist_ok=True)  # of a new user's home
            if can_be_replaced(parent.stat()):
                whys.append(f"other users can replace what is in {parent}")
                continue
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            found = folder.lstat()
        except OSError as error:
            whys.append(f"{error.filename or folder}: {error.strerror or error}")
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o22:
            return folder
        whys.append(f"{folder} is not a folder of this user's alone")
    text = "there is no place for what torch.compile makes that others cannot change"
    raise EngineError(
        f"{text}: {'; '.join(whys)}", hint=f"{CACHE_VARIABLE}=FOLDER, one that is yours"
    )


def can_be_replaced(folder: os.stat_result) -> bool:
    """Whether other users can rename what this user makes in a folder."""
    is_open = folder.st_mode & 0o22 and not folder.st_mode & stat.S_ISVTX
    return bool(is_open) or folder.st_uid not in (0, os.getuid())


def compile_each(blocks: Iterable[nn.Module], backend: str = "inductor") -> None:
    """torch.compile each block: seconds instead of minutes, shared by blocks of a kind.

    From the third shape of a batch on a program is for all sizes. Raises EngineError where the
    compiler is missing; a pass that needs more than MOST_PROGRAMS raises RuntimeError.
    """
    # Not a decorator: every process that imports the model would import the compiler, for 1 s.
    torch.compiler.assume_constant_result(frames.has_shared_memory)
    _allow_programs()
    if backend == "inductor":
        require_compiler("cuda" if torch.cuda.is_available() else "cpu")
        keep_programs_private()
    for block in blocks:
        block.compile(backend=backend)


def _allow_programs() -> None:
    """Of this thread: torch 2.13 keeps its settings by thread.

    Above the limit torch goes on uncompiled without a word, or ends in the backward pass of a block
    that is recomputed (pytorch's CheckpointError: other tensors were saved).
    """
    torch._dynamo.config.recompile_limit = MOST_PROGRAMS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def around_recomputed() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For `torch.utils.checkpoint`: around a compiled block's pass, and around the one that runs it
    again. A GPU's backward pass has a thread of its own, with the limit of 8 programs."""

    @contextmanager
    def again() -> Iterator[None]:
        if torch._dynamo.config.recompile_limit != MOST_PROGRAMS:
            _allow_programs()
        yield

    return nullcontext(), again()


def on_views(block: nn.Module) -> Callable[..., Any]:
    """`block`, whose inputs are views each time.

    FSDP2 makes views of what goes into a module, but not when it runs again, and a program for all
    sizes is for views or for other tensors: every block would have a second one for that.
    """

    def run(*inputs: Any) -> Any:
        return block(
            *(x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs)
        )

    return run
