#!/usr/bin/env python3
"""Resolve setup.cfg anew into requirements/lock-*.txt, with the hash of every file.

refresh.py            # every package at its newest version
refresh.py --keep     # versions of the present lock where they still fit

Needs uv (pip install uv) and a package index. One resolution serves Python 3.10 to 3.13. lock-cuda.txt
is for drivers of CUDA 13; lock-cpu.txt is the same without torch's CUDA libraries. lock-cuda12.txt has
the last torch that PyPI has with CUDA 12, for drivers from 525 to 579. lock-sources.txt has what is
published as source only: it is built, so it comes after all else and with the locked setuptools.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# Rows that can never apply on Linux: our own exclusion marker, other systems, browsers.
NEVER = re.compile(
    r"sys_platform == '(never|win32|darwin|emscripten)'|platform_system == 'Windows'"
)
CUDA = re.compile(r"(nvidia-(cu|nccl|nv[jst])|cuda-|triton)")
SOURCES = ("colossalai",)
TORCH_CUDA_12 = "2.10.0"
CPU_INDEX = (
    "https://download.pytorch.org/whl/cpu"  # its builds have the same version and other hashes
)
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def main() -> None:
    uv = shutil.which("uv") or str(HERE.parent / ".venv/bin/uv")
    keep = "--keep" in sys.argv[1:]
    overrides = (HERE / "overrides.txt").read_text()
    entries = resolved(uv, overrides, keep)
    sources = [entry for entry in entries if entry.startswith(SOURCES)]
    wheels = [entry for entry in entries if entry not in sources]
    write("lock-cuda.txt", wheels)
    write("lock-sources.txt", sources)
    cpu = [entry for entry in wheels if not CUDA.match(entry)]
    at = next(index for index, entry in enumerate(cpu) if entry.startswith("torch=="))
    cpu[at] = with_hashes(cpu[at], cpu_hashes(uv, cpu[at]))
    write("lock-cpu.txt", cpu)
    older = re.sub("^torch==.*", f"torch=={TORCH_CUDA_12}", overrides, flags=re.M)
    # What does not depend on torch has the version of the other locks.
    cuda12 = resolved(uv, older, keep=True)
    write("lock-cuda12.txt", [one for one in cuda12 if not one.startswith(SOURCES)])


def resolved(uv: str, overrides: str, keep: bool) -> list[str]:
    """All packages; with `keep` at the versions of lock-cuda.txt where they still fit."""
    extras = [f"--extra={name}" for name in ("train", "wandb", "tensorboard", "web", "docs", "dev")]
    lock = entries_of((HERE / "lock-cuda.txt").read_text()) if keep else []
    heads = (entry.split(" \\\n")[0] for entry in lock)
    kept = [head for head in heads if not CUDA.match(head) and not head.startswith("torch==")]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("overrides.txt", "kept.txt")]
        files[0].write_text(overrides)
        files[1].write_text("\n".join(kept))
        text = compiled(
            uv,
            "setup.cfg",
            "requirements/engine.txt",
            *extras,
            f"--override={files[0]}",
            f"--constraint={files[1]}",
            "--universal",
            "--python-version=3.10",
        )
    return [entry for entry in entries_of(text) if not NEVER.search(entry)]


def compiled(uv: str, *words: str, text: str | None = None) -> str:
    done = subprocess.run(
        [
            uv,
            "pip",
            "compile",
            *words,
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--quiet",
        ],
        cwd=HERE.parent,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: uv could not resolve it\n{done.stderr.strip()}")
    return done.stdout


def entries_of(text: str) -> list[str]:
    """Requirements with the hash lines that belong to them."""
    return [entry.rstrip() for entry in re.split(r"\n(?=\S)", text) if entry.strip()]


def cpu_hashes(uv: str, torch: str) -> list[str]:
    """Of torch's CPU builds; those of the old lock where their index cannot be reached."""
    version = torch.split()[0]
    try:
        return HASH.findall(
            compiled(uv, "-", "--no-deps", f"--default-index={CPU_INDEX}", text=f"{version}+cpu\n")
        )
    except SystemExit as error:
        print(
            f"{CPU_INDEX} could not be read, the hashes of CPU builds stay as they are\n  {error}"
        )
    old = entries_of((HERE / "lock-cpu.txt").read_text())
    return HASH.findall("".join(entry for entry in old if entry.startswith(f"{version} ")))


def with_hashes(entry: str, hashes: list[str]) -> str:
    head, known = entry.split(" \\\n")[0], HASH.findall(entry)
    return " \\\n".join([head, *(f"    --hash={one}" for one in sorted({*known, *hashes}))])


def write(name: str, entries: list[str]) -> None:
    lines = ["# Made by requirements/refresh.py; docs/install.md says how to install it.", *entries]
    (HERE / name).write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(entries)} packages")


if __name__ == "__main__":
    main()
