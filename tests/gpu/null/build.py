"""Build the null GPU for an interpreter whose torch is a CUDA build: python -m tests.gpu.null.build

    python -m tests.gpu.null.build --python build/null-gpu/venv/bin/python --into build/null-gpu

What torch imports of cuBLAS, NCCL and CUDA's runtime, and the C files here do not define, is made
here: products and collectives are counted, other cuBLAS calls succeed, and a call of the runtime
that nobody wrote ends the process with its name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.captures import nvml_library

HERE = Path(__file__).parent
SOURCES = ("launch", "memory", "runtime", "driver", "libraries")
LIBRARY = "libnullgpu.so"
_WORK = re.compile(r"[gG]em[mv]|[dD]ot|Batched|^nccl(All|Bcast|Broad|Reduce|Send|Recv)")
# Of the driver, which torch looks up beside the calls that driver.c has, and does not call here.
_LOADED = {
    *("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
    *("cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle"),
    *("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"),
    *("cuStreamWriteValue32_v2", "cuMemsetD32Async", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
}
# The rest of what is there may be asked for: torch imports it, and a run here does not call it.
_LISTED = re.compile(r"^(__)?cuda[A-Z]|^cublas|^nccl")


def build(python: Path, folder: Path) -> Path:
    """The library in `folder`, made when it is missing or its sources are newer.

    Raises RuntimeError with the compiler's words.
    """
    site, headers = _places(python)
    library = folder / LIBRARY
    state = _state(site)
    made = folder / "built"
    if library.is_file() and made.is_file() and made.read_text() == state:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    stand_ins = folder / "stand_ins.c"
    own = [HERE / f"{name}.c" for name in SOURCES]
    compiler = ["gcc", "-std=gnu11", "-O1", "-fPIC", "-w", f"-I{HERE}", f"-I{HERE / 'include'}"]
    compiler += [f"-I{headers}"]
    objects = []
    for source in own:
        objects.append(folder / f"{source.stem}.o")
        _run(*compiler, "-c", source, "-o", objects[-1])
    missing = (_imported(site) | _LOADED) - _defined(objects)
    stand_ins.write_text(stand_ins_for(missing))
    _run(*compiler, "-shared", stand_ins, *objects, "-o", library, "-ldl", "-lpthread")
    for name in ("libcuda.so.1", "libcuda.so"):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(LIBRARY)
    nvml_library.build(folder, healthy=1)
    made.write_text(state)
    return library


def stand_ins_for(names: Iterable[str]) -> str:
    """C for calls without a meaning of their own."""
    lines = [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "void library_call(const char *name, const void *stream, double flops);",
    ]
    for name in sorted(names):
        if name in _LOADED:
            body = "return 801; /* not supported */"
        elif name.startswith(("cuda", "__cuda")):
            text = f'"null GPU: nobody wrote {name}\\n"'
            body = f"fputs({text}, stderr); abort();"
        elif _WORK.search(name):
            body = f'library_call("{name}", 0, 0); return 0;'
        else:
            body = "return 0;"
        lines.append(f"long {name}(void) {{ {body} }}")
    return "\n".join(lines) + "\n"


def _places(python: Path) -> tuple[Path, Path]:
    """site-packages with torch, and CUDA's headers there."""
    code = "import json, torch, nvidia; "
    code += "print(json.dumps([torch.__file__, torch.version.cuda, list(nvidia.__path__)[0]]))"
    torch, cuda, nvidia = json.loads(_run(python, "-c", code))
    if cuda is None:
        raise RuntimeError(f"torch of {python} is not a CUDA build")
    headers = Path(nvidia) / f"cu{cuda.split('.')[0]}" / "include"
    if not (headers / "cuda.h").is_file():
        raise RuntimeError(f"there are no CUDA headers in {headers}")
    return Path(torch).parents[1], headers


def _state(site: Path) -> str:
    """Of what a build is made: the sources here, and torch's version."""
    found = hashlib.sha256((site / "torch" / "version.py").read_bytes())
    for path in sorted((*HERE.glob("*.[ch]"), *HERE.glob("include/**/*.h"), Path(__file__))):
        found.update(path.read_bytes())
    found.update(nvml_library.SOURCE.encode())
    return f"{site} {found.hexdigest()}\n"


def _imported(site: Path) -> set[str]:
    libraries = [
        *(site / "torch" / "lib").glob("libtorch*.so"),
        *(site / "torch" / "lib").glob("libc10_cuda.so"),
    ]
    found: set[str] = set()
    for library in libraries:
        found |= _symbols("--undefined-only", library)
    # Those of the real runtime that need no driver stay as they are.
    kept = {"cudaGetErrorString", "cudaGetErrorName"}
    return {name for name in found if _LISTED.match(name)} - kept - _WITHOUT_DRIVER


# Registration of kernels in the real runtime, and the stack of launch configurations.
_WITHOUT_DRIVER = {
    "__cudaInitModule",
    "__cudaPopCallConfiguration",
    "__cudaPushCallConfiguration",
    "__cudaRegisterFatBinary",
    "__cudaRegisterFatBinaryEnd",
    "__cudaRegisterVar",
    "__cudaUnregisterFatBinary",
}


def _defined(objects: Iterable[Path]) -> set[str]:
    return {name for path in objects for name in _symbols("--defined-only", path, dynamic=False)}


def _symbols(which: str, path: Path, dynamic: bool = True) -> set[str]:
    words = ["nm", *(["-D"] if dynamic else []), which, str(path)]
    lines = _run(*words).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


def _run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.null.build", allow_abbrev=False)
    parser.add_argument("--python", type=Path, required=True, help="with a CUDA build of torch")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    print(build(args.python, args.into))
    return 0


if __name__ == "__main__":
    sys.exit(main())
