"""The index of a folder of videos: read back as written, and what damaged or foreign ones say."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from trainer.runlog import samples
from trainer.runlog.samples import INDEX, SHEET, Samples, Video

TWO = (Video("a.mp4", "a cat", 0, 0, 42), Video("b.mp4", "a dog", 1, 0, 42))
SAMPLES = Samples("epoch1-global_step20", 20, 1, "ema", "low4s", "8 frames", 8.0, 8, 32, 48, TWO)


def folder(path: Path, found: Samples = SAMPLES) -> Path:
    path.mkdir(parents=True)
    for video in found.videos:
        (path / video.file).write_bytes(b"video")
    samples.write(path, found)
    return path


def test_an_index_is_read_back_as_written(tmp_path: Path) -> None:
    odd = replace(SAMPLES, step=None, epoch=None, preset="", videos=(Video("x.png", 'a "cat"\u2028\ud800', 7, 3, -1),))  # fmt: skip
    for number, found in enumerate((SAMPLES, odd)):
        assert samples.read(folder(tmp_path / str(number), found)) == found
    assert json.loads((tmp_path / "0" / INDEX).read_text())["schema"] == 1


def test_other_parts_of_the_list_stay_and_other_settings_replace(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", replace(SAMPLES, videos=TWO[1:]))
    (path / "a.mp4").write_bytes(b"video")
    samples.write(path, replace(SAMPLES, videos=TWO[:1]))
    assert samples.read(path).videos == TWO
    (path / "b.mp4").unlink()
    samples.write(path, replace(SAMPLES, videos=TWO[:1]))
    assert samples.read(path).videos == TWO[:1]
    other = replace(SAMPLES, step=21, videos=())
    samples.write(path, other)
    assert samples.read(path) == other


def test_values_of_other_kinds_are_unknown_and_names_stay_in_the_folder(tmp_path: Path) -> None:
    row = {"file": "a.mp4", "prompt": 3, "index": "x", "sample": True, "later": 1}
    names = [
        "../a.mp4",
        "/etc/a.mp4",
        "x/y/a.mp4",
        "x/../a.mp4",
        "x/.a.mp4",
        "x//a.mp4",
        ".a.mp4",
        "a.html",
        "",
        5,
        None,
    ]
    document = {"schema": 1, "step": 1.5, "fps": "x", "width": None, "later": [], "videos": [row, *({"file": name} for name in names), "text"]}  # fmt: skip
    (tmp_path / INDEX).write_text(json.dumps(document))
    found = samples.read(tmp_path)
    assert found == Samples("", None, None, "", "", "", 0.0, 0, 0, 0, (Video("a.mp4", "", 0, 0, 0),))  # fmt: skip


def test_every_folder_is_found_in_order_and_says_what_is_wrong(tmp_path: Path) -> None:
    root = tmp_path / "samples"
    assert samples.find(root) == []
    folder(root / "low4s" / "epoch1-global_step100", replace(SAMPLES, step=100))
    folder(root / "low4s" / "epoch1-global_step20")
    late = folder(root / "high4s" / "epoch1-global_step20", replace(SAMPLES, preset="high4s"))
    (late / "a.mp4").unlink()
    for name in ("c.mp4", SHEET, ".d.mp4.12.part", "notes.txt"):
        (late / name).write_bytes(b"")
    half = root / "low4s" / "epoch2-global_step200"
    half.mkdir()
    (half / "a.mp4").write_bytes(b"")
    torn = root / "torn"
    torn.mkdir()
    for text, why in (("{", "Expecting"), ("[]", "holds a list"), ('{"schema": 2}', "schema is 2"), ('{"schema": 1}', "no list of videos")):  # fmt: skip
        (torn / INDEX).write_text(text)
        assert [one.why for one in samples.find(root) if why in one.why], why
    found = samples.find(root)
    assert [one.path.relative_to(root).as_posix() for one in found] == [
        "low4s/epoch2-global_step200", "torn",
        "high4s/epoch1-global_step20", "low4s/epoch1-global_step20", "low4s/epoch1-global_step100",
    ]  # fmt: skip
    assert found[0].samples is None
    assert found[0].why.startswith("it has 1 video and no index.json yet")
    assert (found[2].missing, found[2].more) == (("a.mp4",), ("c.mp4",))
    assert (found[3].missing, found[3].more) == ((), ())


def test_videos_may_lie_in_a_folder_beside_the_index(tmp_path: Path) -> None:
    """As VBench wants them: nothing else is in that folder."""
    inner = tmp_path / "samples" / "videos"
    inner.mkdir(parents=True)
    rows = tuple(Video(f"videos/{n}.mp4", "a cat", 0, n, 42) for n in range(2))
    samples.write(inner.parent, replace(SAMPLES, videos=rows))
    (inner / "0.mp4").write_bytes(b"video")
    (inner / "7.mp4").write_bytes(b"video")
    (found,) = samples.find(tmp_path / "samples")
    assert found.samples == replace(SAMPLES, videos=rows)
    assert (found.missing, found.more) == (("videos/1.mp4",), ("videos/7.mp4",))


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "samples" / "a")
    path.chmod(0)
    user = os.geteuid()
    tmp_path.chmod(0o700)  # where root tests, another user cannot enter this one
    if user == 0:
        os.seteuid(65534)
    try:
        (found,) = samples.find(tmp_path / "samples")
    finally:
        if user == 0:
            os.seteuid(0)
        path.chmod(0o700)
    assert found.why == "it cannot be read: Permission denied"
