"""Printing never ends a run."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.ranks import REPO
from trainer.config.load import load
from trainer.data import __main__ as data
from trainer.errors import TrainerError
from trainer.journal import Journal
from trainer.runlog.output import LOG, RUN, configure, write
from trainer.runlog.telemetry import Event, read
from trainer.sync import upload
from trainer.train import main as train_main


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    write("gr\udcfc\u00df\n", stream)
    assert stream.buffer.getvalue() == b"gr\\udcfc\\xdf\n"  # type: ignore[attr-defined]


def test_a_closed_stream_and_a_full_device_are_no_errors() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        write("lost\n", full)
        with pytest.raises(OSError, match="No space"):
            full.flush()  # it was tried
        full.buffer.raw.close()  # type: ignore[attr-defined]
    closed = io.StringIO()
    closed.close()
    write("lost\n", closed)


def test_a_file_name_that_is_not_utf_8_does_not_hide_the_error_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", strict)
    configure()
    journal = Journal(tmp_path, load("demo", []), 0)
    name = os.fsdecode(b"/data/gr\xfc\xdfe.mp4")
    journal.event("failed", f"{name} cannot be read", step=3)
    journal.bad_sample(3, 0, 1, name, "empty file")
    journal.close()
    (event,) = read(tmp_path)
    assert isinstance(event, Event)
    assert event.text == f"{name} cannot be read"
    assert b"failed: /data/gr\\udcfc\\udcdfe.mp4 cannot be read\n" in strict.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_list_of_bad_clips_that_cannot_be_written_is_told_instead(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure()
    journal = Journal(tmp_path, load("demo", []), 1)
    (tmp_path / "bad_samples.jsonl").mkdir()
    journal.bad_sample(3, 1, 7, "/data/a.mp4", "empty file")
    said = capfd.readouterr().err
    assert said.startswith(
        "warning: bad clip /data/a.mp4: empty file (bad_samples.jsonl cannot be written: "
    )


@pytest.mark.long
def test_a_command_whose_output_cannot_be_written_keeps_its_exit_code() -> None:
    code = (
        "from trainer.runlog.output import RUN, configure; from trainer.train import main, _exit; "
        "configure(); RUN.info('x'); _exit(main(['demo', '--data-path', 'none']))"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=full, cwd=REPO)
    assert done.returncode == 2


def test_a_record_is_one_line_on_the_stream_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    configure()
    RUN.info("step 1/2")
    LOG.info("loading")
    RUN.warning("a clip is bad")
    LOG.error("error: rank 3: no weights")  # errors name their rank themselves
    LOG.debug("not at this level")
    configure(logging.ERROR)
    LOG.warning("nor this")
    configure()
    printed = capsys.readouterr()
    assert printed.out == "rank 3: step 1/2\n"
    assert printed.err.splitlines() == [
        "rank 3: loading",
        "rank 3: warning: a clip is bad",
        "error: rank 3: no weights",
    ]


def test_a_level_that_does_not_exist_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINER_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit) as ended:
        train_main(["demo"])
    assert ended.value.code == 2
    assert "'loud' is not one of debug, info, warning, error" in capsys.readouterr().err


@pytest.mark.long
def test_names_of_others_reach_no_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A title of the window, the clipboard, and text that turns round; by each way to print."""
    evil = "a\x1b]0;TITLE\x07\x1b]52;c;AAAA\x07\u202eb"
    manifest = tmp_path / "m.csv"
    manifest.write_text(f"path,text,num_frames,height,width\n{evil}.mp4,x,9,64,64\n")
    run = tmp_path / f"001-{evil}"
    (run / "wandb" / "offline-run-1-abc").mkdir(parents=True)
    (run / "wandb" / "offline-run-1-abc" / "run-abc.wandb").touch()
    data.main(["check", str(manifest), str(tmp_path / "checked.csv")])
    data.main(["probe", str(manifest), str(tmp_path / "out.csv")])
    upload.main([str(run), "--dry-run"])
    upload.main([str(tmp_path / evil)])
    with pytest.raises(SystemExit):
        upload.main(["x", f"--{evil}"])
    out, err = capfd.readouterr()
    assert r"\x1b]0;TITLE\x07" in out
    assert r"\x1b]0;TITLE\x07" in err
    assert not any(sign in out + err for sign in "\x1b\x07\u202e")


def test_line_break_in_a_name_begins_no_line_of_its_own() -> None:
    error = TrainerError("a\nGO: 2 nodes: No such file\n  a.mp4: cut", hint="look")
    assert error.full_text() == (
        "error: a\n  GO: 2 nodes: No such file\n  a.mp4: cut\n  hint: look"
    )
