"""`clusterctl why`: its lines, its JSON, its bundle, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from clusterctl.cli import run as command
from clusterctl.runs import hidden_values
from tests.clusterctl.runs.attempts_of import Attempts

CAPTURES = Path(__file__).parents[3] / "captures" / "why"
SECRET = "sesame-open-1234"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose rank 1 raised an error, below outputs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    run = Attempts()
    run.attempt()
    run.train(30)
    run.end(1, "rank 1 on n1: exit code 1")
    path = run.write(tmp_path / "outputs" / "003-STDiT3-XL-2")
    (path / "ranks").mkdir()
    for rank in range(3):
        text = (CAPTURES / "exception" / f"{rank}.log").read_text()
        (path / "ranks" / f"{rank}.log").write_text(f"WANDB_API_KEY={SECRET}\n{text}")
    return path


def test_lines_fit_a_terminal_and_say_what_to_do(run_dir: Path, capsys) -> None:
    assert command(["why"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("cause     worker-exception on rank 1 (n1): ValueError") for line in lines)  # fmt: skip
    assert "cascade   2 ranks followed: 2 connection closed by peer" in lines
    assert any(line.startswith("do  ") for line in lines)
    assert SECRET not in "".join(lines)


def test_quiet_is_the_verdict_alone(run_dir: Path, capsys) -> None:
    assert command(["why", "-q"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("cause     worker-exception on rank 1 (n1): ValueError")
    assert "cascade" not in out


def test_json_has_the_cause_and_the_exit_code(run_dir: Path, capsys) -> None:
    assert command(["why", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["command"], found["exit_code"]) == (1, "why", 1)
    assert (found["cause"]["class"], found["cause"]["rank"]) == ("worker-exception", 1)
    assert found["followed"] == {"connection closed by peer": 2}
    assert found["lines"][-1].endswith("ValueError: caption of clip 1,204 has no words")


def test_folder_of_logs(capsys) -> None:
    assert command(["why", "--logs", str(CAPTURES / "nccl-oom")]) == 1
    assert "cuda-oom on rank 3" in capsys.readouterr().out
    assert command(["why", "--logs", str(CAPTURES / "two-errors")]) == 3
    assert "cannot tell, because ranks state different errors" in capsys.readouterr().out


def test_usage(run_dir: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    for words in (["--logs", "nowhere"], ["--logs", "empty"], ["3", "--logs", "empty"], ["--force"], ["--attempt", "7"], ["99"]):  # fmt: skip
        assert command(["why", *words]) == 2
        assert capsys.readouterr().err


def test_bundle_is_listed_first_and_holds_no_secret(run_dir: Path, tmp_path: Path, capsys) -> None:
    (run_dir / ".supervisor.json").write_text(SECRET)
    (run_dir / "plan.json").write_text(json.dumps({"nodes": [], "environment": {"HF_TOKEN": SECRET}, "tokens": 512, "argv": ["train", "--api-key", SECRET]}))  # fmt: skip
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    (run_dir / "ranks" / "7.log").symlink_to(outside)
    os.mkfifo(run_dir / "ranks" / "8.log")
    given, key = (
        "correct horse/battery=staple",
        ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBg", "-----END PRIVATE KEY-----"],
    )
    hidden_values.write(run_dir, [given, "12345678", "x"])
    log = run_dir / "ranks/1.log"
    said = [f"db={given}, x", repr(given), *key, "pin (12345678)", "x 112345678"]
    log.write_text("\n".join([*said, log.read_text()]))
    with (run_dir / "events.jsonl").open("a") as log:
        log.write(
            json.dumps(
                {"event": "x", "text": f"said {given}", "data": {"credentials": {"a": ["S7"]}}}
            )
            + "\n"
        )
    target = tmp_path / "run3.tar.gz"
    assert command(["why", "3", "--bundle", str(target), "--dry-run"]) == 1
    assert not target.exists()
    listed = capsys.readouterr().err
    assert "ranks/1.log" in listed
    assert "ranks/7.log  left out: " in listed
    assert command(["why", "3", "--bundle", str(target)]) == 1
    assert capsys.readouterr().err.startswith(listed.rstrip("\n"))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        texts = {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    assert {name.partition("/")[2] for name in texts} == {
        "why.json", "plan.json", "events.jsonl", "incidents.jsonl", "telemetry.jsonl",
        "ranks/0.log", "ranks/1.log", "ranks/2.log",
    }  # fmt: skip
    assert not any(SECRET in text or "somebody else" in text for text in texts.values())
    assert not any(
        word in text for text in texts.values() for word in (given, "MIIEv", "(1234", "S7")
    )
    assert "\npin (***)\nx 112345678\n" in texts["why-003-STDiT3-XL-2/ranks/1.log"]
    plan = json.loads(texts["why-003-STDiT3-XL-2/plan.json"])
    assert (plan["environment"], plan["tokens"]) == ({"HF_TOKEN": "***"}, 512)
    assert plan["argv"] == ["train", "--api-key", "***"]
    for line in texts["why-003-STDiT3-XL-2/telemetry.jsonl"].splitlines():
        json.loads(line)


def test_bundle_replaces_nothing_unasked(run_dir: Path, tmp_path: Path, capsys) -> None:
    target = tmp_path / "run3.tar.gz"
    target.write_text("mine")
    assert command(["why", "--bundle", str(target)]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert command(["why", "--bundle", str(target), "--force"]) == 1
    assert tarfile.is_tarfile(target)
    assert command(["why", "--bundle", str(tmp_path / "no" / "x.tar.gz")]) == 2


@pytest.mark.long
def test_lengths_of_hidden_values_that_no_launch_writes_are_refused(
    run_dir: Path, tmp_path: Path, capsys
) -> None:
    """Of a given run they would cost a hash of each at every word of its logs."""
    hidden_values.write(run_dir, ["v" * size for size in range(6, 400)])
    values = hidden_values.masker(run_dir)
    assert values
    assert values.mask(f"is {'v' * 30}.") == "is ***."
    document = json.loads((run_dir / hidden_values.FILE).read_text())
    for sizes in ([1 << 14, 9], [-5], [0], [1e400], list(range(6, 1000))):
        listed = [{"characters": size, "sha256": "0" * 64} for size in sizes]
        (run_dir / hidden_values.FILE).write_text(json.dumps({**document, "values": listed}))
        assert command(["why", "3", "--bundle", str(tmp_path / "x.tar.gz")]) == 3
        assert "values of --env cannot be masked" in capsys.readouterr().err
    assert not (tmp_path / "x.tar.gz").exists()
