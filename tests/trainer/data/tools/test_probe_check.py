"""probe and check: what files say, what is wrong with them, and files that never answer."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from av.stream import Disposition

from tests.trainer.data.clips import write_clip
from tests.trainer.data.tables import rows_of
from trainer.data.__main__ import main
from trainer.data.manifest.read import read_manifest
from trainer.data.tools.file_probe import ElsewherePool
from trainer.data.video.container import moving
from trainer.data.video.decode import Decoder, DecoderBroken

PLAIN = {"codec": "libx264", "preset": "ultrafast", "threads": "1"}


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """One file of each kind, and clips.csv over them."""
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "good.mp4", 12, **PLAIN)
    write_clip(folder / "turned.mp4", 10, rotation=90, **PLAIN)
    write_clip(folder / "plain.mkv", 11, **PLAIN)
    write_clip(folder / "vfr.mp4", 6, pts=[0, 1, 5, 6, 20, 30], **PLAIN)
    noise = np.random.default_rng(1)
    holes = write_clip(
        folder / "holes.mp4", 30, picture=lambda _: noise.integers(16, 236, (48, 64)), **PLAIN
    )
    data = bytearray(holes.read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    holes.write_bytes(data)  # its index, at the end, is whole
    (folder / "page.mp4").write_text("<html>not found</html>")
    (folder / "empty.mp4").write_bytes(b"")
    os.mkfifo(folder / "fifo.mp4")
    (folder / "folder.mp4").mkdir()
    names = ["good.mp4", "turned.mp4", "plain.mkv", "vfr.mp4", "holes.mp4", "page.mp4", "empty.mp4"]
    names += ["fifo.mp4", "folder.mp4", "missing.mp4"]
    rows = [f"{name},caption {name},{at}" for at, name in enumerate(names)]
    (folder / "clips.csv").write_text("\n".join(["path,text,number", *rows, ",no path,9"]))
    return folder


@pytest.mark.long
def test_probe_tells_length_size_and_rate_as_they_are_shown(clips, tmp_path, capsys):
    out = tmp_path / "out.csv"
    words = ["probe", str(clips / "clips.csv"), str(out), "--workers", "2", "--file-size", "-q"]
    assert main(words) == 1
    rows = {Path(row["path"]).name: row for row in rows_of(out)}
    assert list(rows) == ["good.mp4", "turned.mp4", "plain.mkv", "vfr.mp4", "holes.mp4"]
    assert tuple(rows["good.mp4"]) == (
        "path", "text", "num_frames", "height", "width", "aspect_ratio", "fps", "resolution",
        "file_size", "number",
    )  # fmt: skip
    facts = {
        name: [row[c] for c in ("num_frames", "height", "width")] for name, row in rows.items()
    }
    assert facts["good.mp4"] == ["12", "48", "64"]
    assert facts["turned.mp4"] == ["10", "64", "48"]
    assert facts["plain.mkv"] == ["11", "48", "64"]
    assert facts["vfr.mp4"][0] == "6"
    assert rows["turned.mp4"]["aspect_ratio"] == "1.3333"
    assert rows["good.mp4"]["resolution"] == "3072"
    assert int(rows["good.mp4"]["file_size"]) == (clips / "good.mp4").stat().st_size
    said = capsys.readouterr().err
    for line in (
        f"line 7: {clips}/page.mp4: Invalid data found",
        f"line 8: {clips}/empty.mp4: empty file",
        f"line 9: {clips}/fifo.mp4: not a regular file",
        f"line 10: {clips}/folder.mp4: not a regular file",
        f"line 11: {clips}/missing.mp4: No such file or directory",
        "line 12: path is empty",
        f"hint: relative paths were looked for in {clips}: --root FOLDER names another",
    ):
        assert line in said


@pytest.mark.long
def test_check_writes_the_reason_into_a_column_and_keeps_every_row(clips, tmp_path, capsys):
    source, out = tmp_path / "m.csv", tmp_path / "out.csv"
    words = ["probe", str(clips / "clips.csv"), str(source), "--root", str(clips)]
    main([*words, "--workers", "1", "-q"])
    text = source.read_text().replace(
        "good.mp4,caption good.mp4,12", "good.mp4,caption good.mp4,13"
    )
    text = text.replace("plain.mkv,caption plain.mkv,11,48", "plain.mkv,caption plain.mkv,11,44")
    source.write_text(text + "missing.mp4,x,9,9,9,1,24,81,5\r\n")
    capsys.readouterr()
    before = sorted(clips.iterdir())
    words = ["check", str(source), str(out), "--root", str(clips), "--workers", "1", "-q", "--json"]
    assert main(words) == 1
    report = json.loads(capsys.readouterr().out)
    results = {row["path"]: row["check"] for row in rows_of(out)}
    assert list(results) == [row["path"] for row in rows_of(source)]
    assert results["turned.mp4"] == results["vfr.mp4"] == "ok"
    assert results["good.mp4"] == "has 12 frames, the manifest says 13"
    assert results["plain.mkv"] == "has 48 rows, the manifest says 44"
    assert results["holes.mp4"].startswith(("Invalid data", "has ", "frame "))
    assert results["missing.mp4"] == "No such file or directory"
    assert report["ok"] == 2
    assert report["reasons"]["has N frames, the manifest says N"] >= 1
    assert sorted(clips.iterdir()) == before  # no side files
    good = tmp_path / "good.csv"
    assert main(["filter", str(out), str(good), "--checked", "-q"]) == 0
    assert list(read_manifest(good, clips).paths) == ["turned.mp4", "vfr.mp4"]


def test_files_with_two_video_streams_are_noted_once(tmp_path, capsys):
    write_clip(tmp_path / "plain.mp4", 5, **PLAIN)
    with av.open(str(tmp_path / "two.mp4"), "w") as container:
        streams = [container.add_stream("libx264", rate=24) for _ in range(2)]
        for stream, side in zip(streams, (64, 32), strict=True):
            stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for stream, side in zip(streams, (64, 32), strict=True):
            frame = av.VideoFrame.from_ndarray(np.zeros((side * 3 // 2, side), np.uint8), "yuv420p")
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    (tmp_path / "copy.mp4").write_bytes((tmp_path / "two.mp4").read_bytes())
    rows = "path,text\nplain.mp4,a\ntwo.mp4,b\ncopy.mp4,c\n"
    (tmp_path / "clips.csv").write_text(rows)
    source, out = tmp_path / "m.csv", tmp_path / "c.csv"
    note = "note: 2 files have more than one video stream, such as two.mp4: the first is read"
    for verb, has, makes in (("probe", tmp_path / "clips.csv", source), ("check", source, out)):
        assert main([verb, str(has), str(makes), "--workers", "1"]) == 0
        assert capsys.readouterr().err.count(note) == 1
    assert [row["height"] for row in rows_of(source)] == ["48", "64", "64"]


@pytest.mark.parametrize("cover_is", ["picture", "film"])
def test_a_cover_is_not_read_for_the_film(cover_is):
    class Stream:
        def __init__(self, disposition: Disposition) -> None:
            self.disposition = disposition

    cover, film = Stream(Disposition.attached_pic), Stream(Disposition.default)
    streams = [cover, film] if cover_is == "picture" else [cover]
    container = SimpleNamespace(streams=SimpleNamespace(video=streams))
    assert moving(container) == ([film] if cover_is == "picture" else [cover])


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder(clip_timeout_s=60)
    yield decoder
    decoder.close()


@pytest.mark.long
def test_late_clip_is_given_up_and_its_process_replaced(clips, decoder):
    """A process that sleeps (here: stopped) is what a dead mount looks like from outside."""
    question = {"what": "probe", "path": str(clips / "good.mp4")}
    assert decoder.ask(question)["num_frames"] == 12
    first = decoder.process
    os.kill(first.pid, signal.SIGSTOP)
    decoder.clip_timeout_s = 0.5
    assert decoder.ask(question) == {"error": "no answer within 0.5 s", "again": True}
    assert first.poll() == -signal.SIGKILL
    decoder.clip_timeout_s = 60.0
    assert decoder.ask(question)["num_frames"] == 12
    os.kill(decoder.process.pid, signal.SIGKILL)  # between two clips: no clip's fault
    os.waitid(os.P_PID, decoder.process.pid, os.WEXITED | os.WNOWAIT)
    assert decoder.ask(question)["num_frames"] == 12


@pytest.mark.long
def test_too_many_unreadable_clips_stop_the_probe_and_keep_what_is_done(clips, tmp_path, capsys):
    out = tmp_path / "out.csv"
    words = [
        "probe",
        str(clips / "clips.csv"),
        str(out),
        "--workers",
        "1",
        "-q",
        "--max-wrong-rows",
    ]
    assert main([*words, "2"]) == 2
    said = capsys.readouterr().err
    assert "rows had to be left out, 2 are allowed" in said
    assert "run the same command again to continue" in said
    assert not out.exists()
    began = time.monotonic()
    assert main([*words, "10"]) == 1
    assert len(rows_of(out)) == 5
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "line", ["no json", "[1]", '{"id": [1]}', '{"no": "id"}', "[" * 60_000, "7"]
)
def test_answers_that_make_no_sense_leave_nobody_waiting(line):
    out, back = os.pipe(), os.pipe()
    pool = ElsewherePool(os.fdopen(out[1], "wb"), os.fdopen(back[0], "rb"))
    future = pool.ask({"what": "probe", "path": "/a.mp4"})
    with os.fdopen(out[0], "rb") as asked, os.fdopen(back[1], "wb") as answers:
        assert json.loads(asked.readline())["path"] == "/a.mp4"
        answers.write(line.encode() + b"\n")
        answers.flush()
        with pytest.raises(DecoderBroken, match="no node is left"):
            future.result(timeout=30)
    pool.close()


@pytest.mark.long
def test_python_without_av_says_what_is_missing(clips, tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "blocked"
    (blocked / "av").mkdir(parents=True)
    (blocked / "av" / "__init__.py").write_text("raise ImportError('no PyAV here')")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    words = ["probe", str(clips / "clips.csv"), str(tmp_path / "o.csv"), "--workers", "1", "-q"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "the decoding process does not start: no PyAV here" in said
    assert "docs/guide/install.md" in said
