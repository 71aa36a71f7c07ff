"""The Triton kernels compiled for cards that are not here, as JSON: shared memory and registers.

python -m tests.gpu.compiled        needs triton, no GPU
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainer.models.attention import frames_kernels

CARDS = {"A100": 80, "L40": 89, "H100": 90}
FRAMES = (1, 15, 30, 60, 120)
WIDTH = 72  # of a head of XL/2
FP32 = ("cos_ptr", "sin_ptr", "sums_ptr")


def compiled(kernel: Any, capability: int, frames: int, prepares: bool) -> dict[str, int]:
    """In bf16, with the block sizes and warps of a call; `prepares`: with norms and rotation."""
    sizes, options = frames_kernels.sizes_of(frames, WIDTH, prepares)
    constants: dict[str, Any] = {**sizes, "NORMS": prepares, "TURNS": prepares}
    signature: dict[str, Any] = {}
    values, hints = {}, {}
    for number, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(number,)] = "constexpr", constants[name]
        elif name in FP32:
            signature[name], hints[(number,)] = "*fp32", [["tt.divisibility", 16]]
        elif name.endswith("_ptr"):
            signature[name], hints[(number,)] = "*bf16", [["tt.divisibility", 16]]
        elif name.endswith("strides"):
            signature[name] = ("i32",) * 4
        else:
            signature[name] = "fp32" if name in ("scale", "eps") else "i32"
    source = ASTSource(kernel, signature, values, hints)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {"shared": made.metadata.shared, **_registers(made.asm["ptx"], capability)}


def _registers(ptx: str, capability: int) -> dict[str, int]:
    """What ptxas says: registers of a thread, and bytes of them that go through memory."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = f"sm_{capability}{'a' if capability == 90 else ''}"
        words = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={arch}", file.name, "-o", "/dev/null"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    found = {}
    for name, words_said in (
        ("registers", r"Used (\d+) reg"),
        ("spilled", r"(\d+) bytes spill st"),
    ):
        match = re.search(words_said, said)
        assert match, said
        found[name] = int(match[1])
    return found


if __name__ == "__main__":
    kernels = {"forward": frames_kernels._forward, "backward": frames_kernels._backward}
    rows = []
    for (card, capability), frames, (name, kernel), prepares in itertools.product(
        CARDS.items(), FRAMES, kernels.items(), (False, True)
    ):
        row = {"card": card, "frames": frames, "kernel": name, "prepares": prepares}
        rows.append({**row, **compiled(kernel, capability, frames, prepares)})
    print(json.dumps(rows, indent=1))
