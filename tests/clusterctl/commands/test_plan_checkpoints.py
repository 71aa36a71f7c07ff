"""clusterctl plan-checkpoints, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.cli import run as run_command
from tests.clusterctl.checkpoints.run_directories import Run, failing_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return failing_run(tmp_path / "outputs" / "001-STDiT3-demo", began_s=time.time() - 4000)


@pytest.mark.long
def test_a_run_is_planned_from_what_is_on_record(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["plan-checkpoints", str(run.path)]) == 0
    out, err = capsys.readouterr()
    assert "best 30 s: ckpt_every = 15 (now 100)" in out
    assert "measured: median of 4 saves" in out
    assert "the checkpoints fit" in err
    assert max(map(len, out.replace(str(run.path), "RUN").splitlines())) <= 80
    assert "\x1b" not in out


@pytest.mark.long
def test_a_number_below_outputs_is_a_run(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path.parents[1])
    assert run_command(["plan-checkpoints", "1"]) == 0
    assert "best 30 s: ckpt_every = 15 (now 100)" in capsys.readouterr().out
    assert run_command(["plan-checkpoints", "7"]) == 2
    assert "there is no run 7" in capsys.readouterr().err


@pytest.mark.long
def test_json_has_the_same_verdict(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["plan-checkpoints", str(run.path), "--json", "--mtbf", "2"])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code == 0
    assert told["inputs"]["mtbf_s"] == 7200
    assert told["disk"]["fits"] is True
    assert told["interval"]["best_ckpt_every"] == 42
    assert told["failures"]["count"] == 4


@pytest.mark.long
def test_quiet_is_the_verdict_only(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan-checkpoints", str(run.path), "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the checkpoints fit: ")
    assert out.count("\n") == 1


@pytest.mark.long
def test_a_config_is_planned_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stage1", "--steps", "2210", "--step-time", "9.5", "--ranks", "192"]
    more = ["--outputs", str(tmp_path), "--keep-checkpoints", "2", "--json"]
    code = run_command(["plan-checkpoints", *words, *more])
    told = json.loads(capsys.readouterr().out)
    assert told["retention"]["keep_checkpoints"] == 2
    assert told["state"] == "planned"
    assert told["checkpoint"]["total_bytes"] == pytest.approx(21.6e9, rel=0.01)
    assert told["inputs"]["sources"]["mtbf_s"].startswith("assumed: ")
    assert code == (0 if told["disk"]["fits"] else 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no config nothing"),
        (["--mtfb", "3"], "no option --mtfb"),
        (["RUN", "--keep-every", "3"], "a run takes no overrides of its config"),
        (["stage1", "--ckpt-evry", "3"], "there is no key ckpt_evry"),
        (["RUN", "--mtbf", "0"], "Invalid value"),
        (["RUN", "--step-time", "soon"], "Invalid value"),
        (["--outputs", "missing"], "there is no run in missing"),
    ],
)
def test_wrong_usage_is_one_sentence(
    run: Run, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run.path) if word == "RUN" else word for word in words]
    assert run_command(["plan-checkpoints", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_a_run_is_read_without_torch(run: Run) -> None:
    program = (
        "import sys; from clusterctl.cli import run; "
        f"code = run(['plan-checkpoints', {str(run.path)!r}, '-q']); "
        "assert not {'torch', 'numpy', 'paramiko', 'textual'} & set(sys.modules), 'imported'; "
        "sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
