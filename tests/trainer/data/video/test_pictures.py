"""Pictures that are stored otherwise than they are shown: turned, mirrored, in tiles."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from trainer.data.video.clip import check, probe, read_window
from trainer.data.video.container import ClipError, is_tiled
from trainer.data.video.decode import Window

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("resize", ["bilinear", "area", "torch"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_read_as_its_exif_says(tmp_path: Path, orientation: int, resize: str) -> None:
    path, exif = tmp_path / "a.jpg", Image.Exif()
    exif[274] = orientation
    Image.fromarray(COLOURS).resize((64, 48), Image.Resampling.NEAREST).save(path, exif=exif)
    with Image.open(path) as file:
        shown = np.asarray(ImageOps.exif_transpose(file).convert("RGB")).astype(float)
    facts = probe(str(path))
    assert (facts.height, facts.width) == shown.shape[:2]
    window = Window(0, 1, 1, facts.height, facts.width, 1, resize)
    out_CTHW = np.zeros((3, 1, facts.height, facts.width), window.dtype)
    seen = read_window(str(path), window, out_CTHW)
    assert tuple(seen.size) == shown.shape[:2]  # what decides whether the manifest is right
    read = out_CTHW[:, 0].transpose(1, 2, 0).astype(float)
    read = (read + 1) * 127.5 if resize == "torch" else read
    assert np.abs(read - shown).mean() < 15  # JPEG's colours at half size; others differ by 80


def box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I", 8 + len(data)) + kind + data


def full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def write_tiles(path: Path) -> Path:
    """An AVIF of two tiles of 64x64, one beside the other, as avifenc --grid 2x1 makes one."""
    one = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(one, "AVIF")
    data = one.getvalue()
    at = data.index(b"av1C") - 4
    av1c = data[at : at + int.from_bytes(data[at : at + 4], "big")]
    at = data.index(b"mdat") - 4
    tile = data[at + 8 : at + int.from_bytes(data[at : at + 4], "big")]
    grid = struct.pack(">BBBBHH", 0, 0, 0, 1, 128, 64)
    kinds = [b"grid", b"av01", b"av01"]
    items = [
        full(b"infe", 2, 0, struct.pack(">HH", n + 1, 0), k, b"\0") for n, k in enumerate(kinds)
    ]
    sizes = [full(b"ispe", 0, 0, struct.pack(">II", *size)) for size in ((128, 64), (64, 64))]
    pixi = full(b"pixi", 0, 0, bytes([3, 8, 8, 8]))
    uses = struct.pack(">I", 3) + b"".join(
        struct.pack(">HB", n, len(of)) + bytes(of)
        for n, of in ((1, [1, 3]), (2, [2, 3, 0x84]), (3, [2, 3, 0x84]))
    )
    properties = box(b"iprp", box(b"ipco", *sizes, pixi, av1c), full(b"ipma", 0, 0, uses))
    ftyp = box(b"ftyp", b"avif", b"\0\0\0\0", b"avifmif1miaf")
    pieces = [grid, tile, tile]

    def meta(first: int) -> bytes:
        places = [first + sum(map(len, pieces[:n])) for n in range(3)]
        rows = [
            struct.pack(">HHHII", n + 1, 0, 1, place, len(piece))
            for n, (place, piece) in enumerate(zip(places, pieces, strict=True))
        ]
        return full(
            b"meta", 0, 0,
            full(b"hdlr", 0, 0, b"\0\0\0\0pict", bytes(13)),
            full(b"pitm", 0, 0, struct.pack(">H", 1)),
            full(b"iloc", 0, 0, bytes([0x44, 0]), struct.pack(">H", 3), *rows),
            full(b"iinf", 0, 0, struct.pack(">H", 3), *items),
            full(b"iref", 0, 0, box(b"dimg", struct.pack(">HHHH", 1, 2, 2, 3))),
            properties,
        )  # fmt: skip

    start = len(ftyp) + len(meta(0)) + 8
    path.write_bytes(ftyp + meta(start) + box(b"mdat", *pieces))
    with Image.open(path) as picture:
        assert picture.size == (128, 64)
    return path


def test_a_picture_in_tiles_is_refused_not_cut(tmp_path: Path) -> None:
    path = str(write_tiles(tmp_path / "a.avif"))
    out_CTHW = np.zeros((3, 1, 64, 64), np.uint8)
    for read in (
        lambda: probe(path),
        lambda: check(path),
        lambda: read_window(path, Window(0, 1, 1, 64, 64, 1), out_CTHW),
    ):
        with pytest.raises(ClipError, match="a picture in tiles"):
            read()
    data = Path(path).read_bytes()  # pixels before the table, with a length of 64 bits
    at = data.index(b"meta") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    tail = struct.pack(">I", 1) + b"mdat" + struct.pack(">Q", 16 + 8) + bytes(8)
    odd = tmp_path / "c.avif"
    odd.write_bytes(data[:at] + tail + data[at : at + size] + data[at + size :])
    assert is_tiled(str(odd))
    odd.write_bytes(data[:at] + data[at : at + size])  # cut behind the table
    assert is_tiled(str(odd))
    odd.write_bytes(data[: at + 4])
    assert not is_tiled(str(odd))
    Image.new("RGB", (64, 64)).save(tmp_path / "b.avif")
    assert probe(str(tmp_path / "b.avif")).width == 64
