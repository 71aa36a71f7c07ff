"""`trainer.sync` uploads the offline starts of a run in order, into the one run of the directory.

The uploader is a stand-in here: there is no W&B server.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainer.runlog.run_dir import lock
from trainer.sync import upload as sync
from trainer.trackers.wandb_run import known_id

STARTS = ("offline-run-20260101_100000-abc123", "offline-run-20260102_090000-abc123")
UPLOADER = """
import os, pathlib, sys, time
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
with (here / "asked").open("a") as file:
    file.write(" ".join([os.environ["WANDB_RESUME"], *words]) + "\\n")
said = here / "says"
if said.exists() and said.read_text().split("|")[0] in words[-1]:
    text = said.read_text().split("|")[1]
    if text == "sleep":
        time.sleep(600)
    print("wandb: Syncing 1 run(s):")
    sys.exit(f"\\x1b[31mwandb: ERROR {text}")
pathlib.Path(words[-1]).with_suffix(".wandb.synced").touch()
"""


@pytest.fixture
def uploader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site" / "wandb"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(UPLOADER)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "001-STDiT3"
    for name in reversed(STARTS):
        (path / "wandb" / name).mkdir(parents=True)
        (path / "wandb" / name / "run-abc123.wandb").touch()
    (path / "wandb.json").write_text('{"id": "abc123", "online": false}')
    return path


def asked(uploader: Path) -> list[str]:
    lines = (uploader / "asked").read_text().splitlines()
    return [Path(line).parent.name for line in lines]


def test_all_starts_are_uploaded_once_in_their_order(
    uploader: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "wandb" / STARTS[0] / "logs").mkdir()
    (run_dir / "wandb" / STARTS[0] / "logs/debug-core.log").symlink_to(
        "/elsewhere"
    )  # as wandb does
    assert sync.main([str(run_dir)]) == 0
    assert asked(uploader) == list(STARTS)
    first, second = (uploader / "asked").read_text().splitlines()
    assert first.startswith("allow sync --id abc123 ")
    # W&B must say how much it has, or the second start would take the place of the first.
    assert second.startswith("must sync --id abc123 ")
    assert "2 of 2 offline starts are in W&B, run abc123" in capsys.readouterr().out
    assert known_id(run_dir / "wandb.json") == ("abc123", True)
    assert sync.main([str(run_dir)]) == 0
    assert asked(uploader) == list(STARTS)  # nothing more


@pytest.mark.parametrize("place", ["wandb", "START", "START/run-abc123.wandb", "START/files", "START/files/deep/x", "START/pipe"])  # fmt: skip
def test_nothing_that_a_link_leads_to_is_uploaded(
    uploader: Path, run_dir: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is somebody else's, and the link leads to a file of this user; logs/ stays here."""
    (run_dir / "wandb" / STARTS[0] / "logs").mkdir()
    (run_dir / "wandb" / STARTS[0] / "logs/debug-core.log").symlink_to(tmp_path / "elsewhere")
    path = run_dir / place.replace("START", f"wandb/{STARTS[0]}")
    if path.exists():
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path)
    for words in ([], ["--dry-run"]):
        assert sync.main([str(run_dir), *words]) == 2
        assert f"{path} is a link or no plain file: nothing is uploaded" in capsys.readouterr().err
    assert not (uploader / "asked").exists()


def test_a_dry_run_uploads_nothing(
    uploader: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync.main([str(run_dir), "--dry-run"]) == 0
    assert not (uploader / "asked").exists()
    assert capsys.readouterr().out.count("would upload") == 2
    assert json.loads((run_dir / "wandb.json").read_text())["online"] is False


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        ("api key not configured", "wandb login, or set WANDB_API_KEY"),
        ("run abc123 was deleted (409)", "delete wandb.json in the run directory"),
        ("connection refused", "start the command again"),
    ],
)
def test_a_failure_stops_there_with_the_reason(
    uploader: Path, run_dir: Path, capsys: pytest.CaptureFixture[str], says: str, hint: str
) -> None:
    (uploader / "says").write_text(f"{STARTS[0]}|{says}")
    assert sync.main([str(run_dir)]) == 1
    said = capsys.readouterr().err
    assert f"{STARTS[0]} is not uploaded: {says}" in said
    assert hint in said
    assert asked(uploader) == [STARTS[0]]  # a later start would come before it
    assert known_id(run_dir / "wandb.json") == ("abc123", False)
    (uploader / "says").unlink()
    assert sync.main([str(run_dir)]) == 0


def test_a_server_that_takes_nothing_has_a_deadline(
    uploader: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (uploader / "says").write_text(f"{STARTS[0]}|sleep")
    assert sync.main([str(run_dir), "--timeout", "0.5"]) == 1
    assert "W&B took more than 0.5 s" in capsys.readouterr().err


def test_the_start_that_is_still_written_is_left_out(
    uploader: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release, _ = lock(run_dir)
    assert sync.main([str(run_dir)]) == 3
    release()
    assert asked(uploader) == [STARTS[0]]
    assert "its newest start is left out" in capsys.readouterr().out


def test_bad_input_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync.main([str(tmp_path / "none")]) == 2
    assert "there is no run directory" in capsys.readouterr().err
    assert sync.main([str(tmp_path)]) == 2
    assert "has no offline starts" in capsys.readouterr().err
    monkeypatch.setattr(sync.importlib.util, "find_spec", lambda name: None)
    assert sync.main([str(tmp_path)]) == 2
    assert "W&B is not installed here\n  hint: pip install wandb" in capsys.readouterr().err


def test_nothing_of_the_run_directory_is_run_and_its_lock_empties_nothing(
    uploader: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be somebody else's; test_upload_wandb has wandb itself and its settings."""
    for name in (
        "wandb/__init__.py",
        "wandb/__main__.py",
        "click.py",
        "json.py",
        "sitecustomize.py",
    ):
        (run_dir / name).write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')\n")
    (tmp_path / "mine").write_text("precious")
    (run_dir / ".lock").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(run_dir)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{uploader.parent}{os.pathsep}")
    assert sync.main([str(run_dir)]) == 0
    assert asked(uploader) == list(STARTS)
    assert not (tmp_path / "it-ran").exists()
    assert (tmp_path / "mine").read_text() == "precious"
