"""The Triton kernels compiled for cards that are not here, as JSON: shared memory and registers.

python -m tests.gpu.compiled        needs triton, no GPU
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainer.models.attention import frames_kernels
from trainer.models.block import fp8, fp8_kernels, rows_kernels

CARDS = {"A100": 80, "L40": 89, "H100": 90}
FRAMES = (1, 15, 30, 60, 120)
HEADS, WIDTH = 16, 72  # of XL/2
_FP32 = ("cos_ptr", "sin_ptr", "sums_ptr")
_E4M3, _E5M2 = "*fp8e4nv", "*fp8e5"


def of_frames() -> Iterator[dict[str, Any]]:
    """`prepares`: with norms and rotation."""
    kernels = {"forward": frames_kernels._forward, "backward": frames_kernels._backward}
    for (card, capability), frames, (name, kernel), prepares in itertools.product(
        CARDS.items(), FRAMES, kernels.items(), (False, True)
    ):
        sizes, options = frames_kernels.sizes_of(frames, WIDTH, prepares)
        constants = {**sizes, "NORMS": prepares, "TURNS": prepares}
        row = {"card": card, "frames": frames, "kernel": name, "prepares": prepares}
        yield {**row, **compiled(kernel, capability, constants, options)}


def of_rows() -> Iterator[dict[str, Any]]:
    """What a block does to rows, with XL/2's widths on an H100: as it is, and `in_fp8`, too."""
    width = HEADS * WIDTH
    one, chunk = {"WIDTH": width}, {"ROWS": rows_kernels.CHUNK}
    for in_fp8 in (False, True):
        across, more = (rows_kernels._across(width, wide) for wide in (False, in_fp8))
        tiles = rows_kernels._tiles(HEADS, WIDTH, in_fp8)
        for kernel, kind, constants in (
            (rows_kernels._norm_modulate, _E4M3, {**one, **across, "ADDS": True}),
            (rows_kernels._norm_modulate_backward, _E5M2, {**one, **more, **chunk, "ADDS": True}),
            (rows_kernels._add_gated, _E4M3, {**one, **across}),
            (rows_kernels._add_gated_backward, _E5M2, {**one, **across, **chunk, "ADDS": True}),
            (rows_kernels._head_norm_backward, _E5M2, {**tiles, **chunk}),
        ):
            yield _of_row(kernel, kind if in_fp8 else None, constants)
    parts, chunk = fp8_kernels.parts(4 * width), {"ROWS": fp8_kernels.CHUNK}
    yield _of_row(fp8_kernels._gelu_backward_scaled, _E5M2, {**parts, **chunk})
    for height, columns in ((4 * width, width), (width, 4 * width)):
        yield _of_row(fp8_kernels._transposed, _E4M3, fp8_kernels.tiles(height, columns))
    for columns, kind, gelu in ((width, _E4M3, 0), (3 * width, _E5M2, 0), (4 * width, _E4M3, 1)):
        whole = {**fp8_kernels.whole(columns), "GELU": bool(gelu)}
        yield _of_row(fp8_kernels._scaled, kind, whole)


def _of_row(kernel: Any, kind: str | None, constants: Mapping[str, Any]) -> dict[str, Any]:
    largest = {None: 0.0, _E4M3: fp8.largest(fp8.E4M3), _E5M2: fp8.largest(fp8.E5M2)}[kind]
    pointers = {}
    if kind is not None:
        place = "values_ptr" if "values_ptr" in kernel.arg_names else "out_ptr"
        pointers = {place: kind, "scales_ptr": "*fp32"}
    sizes = {
        name: constants[name] for name in ("WIDTH", "HEIGHT", "num_warps") if name in constants
    }
    options = {"num_warps": constants["num_warps"]}
    values = {name: value for name, value in constants.items() if name != "num_warps"}
    row = {"card": "H100", "kernel": kernel.fn.__name__, "in_fp8": kind is not None, **sizes}
    values["LARGEST"] = largest
    return row | compiled(kernel, CARDS["H100"], values, options, pointers)


def compiled(
    kernel: Any,
    capability: int,
    constants: Mapping[str, Any],
    options: dict[str, Any],
    pointers: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """In bf16 but for `pointers`, with the block sizes and warps of a call."""
    types = dict.fromkeys(_FP32, "*fp32") | dict(pointers or {})
    signature: dict[str, Any] = {}
    values, hints = {}, {}
    for number, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(number,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature[name] = types.get(name, "*bf16")
            hints[(number,)] = [["tt.divisibility", 16]]
        elif name.endswith("strides"):
            signature[name] = ("i32",) * 4
        else:
            signature[name] = "fp32" if name in ("scale", "eps") else "i32"
            if name.endswith("_stride"):
                hints[(number,)] = [["tt.divisibility", 16]]
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
    print(json.dumps([*of_rows(), *of_frames()], indent=1))
