"""The page of a gallery: what is in which row, what is named as not shown, and whose text it is."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from dashboards.gallery.page import default_place, write_gallery
from trainer.runlog import samples, video_figures
from trainer.runlog.samples import INDEX, Samples, Video
from trainer.runlog.video_figures import Measured, stamp_of


def put(run: Path, place: str, step: int | None, videos: Sequence[Video], preset: str = "") -> Path:
    """A folder of videos below `samples/` of a run."""
    folder = run / "samples" / place
    folder.mkdir(parents=True, exist_ok=True)
    for video in videos:
        (folder / video.file).write_bytes(b"video")
    name = f"epoch0-global_step{step}" if step is not None else "weights/"
    found = Samples(name, step, 0, "ema", preset, "8 frames", 8.0, 8, 32, 48, tuple(videos))
    samples.write(folder, found)
    return folder


def data_of(page: Path) -> dict[str, Any]:
    found = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert len(found) == 1
    return dict(json.loads(found[0]))


def two(first: str, second: str) -> list[Video]:
    return [Video("sample_0000.mp4", first, 0, 0, 1), Video("sample_0001.mp4", second, 1, 0, 1)]


def test_rows_are_prompts_whatever_their_place_and_columns_checkpoints_by_step(
    tmp_path: Path,
) -> None:
    put(tmp_path, "b", 100, two("a dog", "a cat"))
    put(tmp_path, "a", 20, two("a cat", "a dog"))
    more = [*two("a cat", "a cat"), Video("x-1.mp4", "a cat", 0, 1, 1)]
    put(tmp_path, "c", 300, more)
    gallery = write_gallery([tmp_path])
    assert gallery.path == tmp_path / "samples" / "index.html"
    (preset,) = data_of(gallery.path)["presets"]
    assert [column["step"] for column in preset["columns"]] == [20, 100, 300]
    assert preset["rows"] == [
        ["a cat", 0, "sample_0000.mp4"],
        ["a dog", 0, "sample_0001.mp4"],
        ["a cat", 1, "x-1.mp4"],
        ["a cat", 0, "sample_0001.mp4"],  # the second of two equal prompts
    ]
    files = [column["files"] for column in preset["columns"]]
    assert files == [[1, 1, 0, 0], ["sample_0001.mp4", "sample_0000.mp4", 0, 0], [1, 0, 1, 1]]
    assert [column["at"] for column in preset["columns"]] == ["a", "b", "c"]
    assert (gallery.counts.prompts, gallery.counts.checkpoints, gallery.counts.videos) == (2, 3, 7)
    assert gallery.counts.problems == ()


def test_text_of_others_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    hostile = '</script><script>alert(1)</script><!-- <b>&amp;" \u202e\x1b[2J'
    run = tmp_path / "<i>run"
    put(run, "a", 1, [Video("a #?%.mp4", hostile, 0, 0, 1)], preset="<p>")
    (run / "samples" / os.fsdecode(b"\xff<i>")).mkdir()
    (run / "samples" / os.fsdecode(b"\xff<i>") / "x.mp4").write_bytes(b"")
    page = write_gallery([run]).path
    text = page.read_text()
    assert "alert(1)</script>" not in text
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert "<i>" not in text
    data = data_of(page)
    (preset,) = data["presets"]
    assert preset["rows"][0][0] == hostile.replace("\u202e", "\\u202e").replace(
        "\x1b[2J", "\\x1b[2J"
    )
    assert preset["rows"][0][2] == "a%20%23%3F%25.mp4"
    assert len(data["problems"]) == 1
    policy = re.findall(r"script-src '(sha256-[^']+)'; style-src '(sha256-[^']+)'", text)
    parts = [
        re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[0] for tag in ("script", "style")
    ]
    hashes = (hashlib.sha256(part.encode()).digest() for part in parts)
    assert policy == [tuple(f"sha256-{base64.b64encode(one).decode()}" for one in hashes)]


def test_what_is_not_shown_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path, "a", 1, two("a cat", "a dog"))
    (folder / "sample_0001.mp4").unlink()
    (folder / "other.mp4").write_bytes(b"")
    half = tmp_path / "samples" / "half"
    half.mkdir()
    (half / "sample_0000.mp4").write_bytes(b"")
    torn = tmp_path / "samples" / "torn"
    torn.mkdir()
    (torn / INDEX).write_text('{"schema": 1, "vid')
    counts = write_gallery([tmp_path]).counts
    assert counts.unreadable == 1
    assert counts.videos == 1
    said = "\n".join(counts.problems)
    assert "samples/half: it has 1 video and no index.json yet" in said
    assert "samples/torn: index.json cannot be read:" in said
    assert "samples/a: 1 video of the index not there, first sample_0001.mp4" in said
    assert "samples/a: 1 video that the index does not name, first other.mp4" in said


def test_a_run_without_videos_has_a_page_that_says_so(tmp_path: Path) -> None:
    (problem,) = write_gallery([tmp_path]).counts.problems
    assert "there are no videos in" in problem
    with pytest.raises(UsageError, match=r"cannot be written: No such file"):
        write_gallery([tmp_path], tmp_path / "missing" / "page.html")


def test_several_runs_share_a_page_and_addresses_are_relative_to_it(tmp_path: Path) -> None:
    runs = [tmp_path / "outputs" / "001-a", tmp_path / "outputs" / "002-b"]
    for step, run in enumerate(runs):
        put(run, "a b", step, two("a cat", "a dog"))
    assert default_place(runs) == tmp_path / "outputs" / "gallery.html"
    elsewhere = tmp_path / "www"
    elsewhere.mkdir()
    for page, start in (
        (write_gallery(runs).path, "001-a/samples/a%20b"),
        (write_gallery(runs, elsewhere / "page.html").path, "../outputs/001-a/samples/a%20b"),
    ):
        data = data_of(page)
        assert data["runs"] == ["001-a", "002-b"]
        (preset,) = data["presets"]
        assert [column["run"] for column in preset["columns"]] == data["runs"]
        assert preset["columns"][0]["at"] == start


def test_figures_are_those_of_the_videos_that_are_there(tmp_path: Path) -> None:
    folder = put(tmp_path, "a", 1, two("a cat", "a dog"))
    figures = ({"brightness": 0.25, "black": 0.75}, {"brightness": 0.75, "black": 0.0})
    measured = {
        video.file: Measured(stamp_of(folder / video.file), one)
        for video, one in zip(two("", ""), figures, strict=True)
    }
    video_figures.write(folder, measured)
    (preset,) = data_of(write_gallery([tmp_path]).path)["presets"]
    assert preset["columns"][0]["figures"] == {"brightness": 0.5, "black": 0.375}
    assert preset["columns"][0]["flags"] == {"0": "black"}
    after = (folder / video_figures.FILE).stat().st_mtime_ns + 1
    os.utime(folder / INDEX, ns=(after, after))  # written again: the videos may be others
    (preset,) = data_of(write_gallery([tmp_path]).path)["presets"]
    assert preset["columns"][0]["figures"] == {}


@pytest.mark.long
def test_a_reader_sees_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, two("a cat", "a dog"))
    page = write_gallery([tmp_path]).path
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        while not done.is_set():
            text = page.read_text()
            if not text.endswith("</html>\n"):
                torn.append(len(text))

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(2, 30):
        put(tmp_path, str(step), step, two("a cat", "a dog"))
        write_gallery([tmp_path])
    done.set()
    reader.join(30)
    assert not torn
    assert sorted(path.name for path in (tmp_path / "samples").glob("index*")) == ["index.html"]
