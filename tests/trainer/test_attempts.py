"""A run directory of three attempts, two of them killed: everything that reads it copes with that."""

from __future__ import annotations

import math
import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
from matplotlib.image import imread

from clusterctl.checkpoints.failures import failures_of
from clusterctl.checkpoints.records import read_run
from clusterctl.cli import run as command
from clusterctl.runs.attempts import DONE, account
from clusterctl.runs.journal import Journal
from dashboards.feeds.run_dir import RunDirFeed
from dashboards.model.run_progress import figures
from dashboards.model.samples import Tick
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.trainer import ranks
from tests.trainer.ranks import LIMIT_S, TINY
from trainer import pictures
from trainer.data.digits import main as render
from trainer.runlog.steps import Steps, after_record
from trainer.runlog.telemetry import StepRecord, final_steps, read
from trainer.weights.checkpoints import complete, step_of

pytestmark = pytest.mark.timeout(2 * LIMIT_S)
STEPS = 40


def newest_step(run_dir: Path) -> int:
    return max((one.step for one in read(run_dir) if isinstance(one, StepRecord)), default=0)


def kill_beyond_a_checkpoint(words: list[str], run_dir: Path, folder: Path, least: int) -> None:
    """Train until some steps behind a checkpoint of at least `least` are done, then SIGKILL."""
    (process,) = ranks.start([words], 1, folder)
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        saved = max((step_of(path) for path in complete(run_dir)), default=0)
        if saved >= least and newest_step(run_dir) > saved:
            break
        assert process.is_alive(), (folder / "0.log").read_text()
        time.sleep(0.005)  # between two looks; the deadline is above
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.join(10)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempts")
    render(["--out", str(folder / "clips"), "--clips", "24", "--seed", "1"])
    (folder / "tiny.py").write_text(TINY)
    path = folder / "001-STDiT3-tiny"
    more = ["--data-path", str(folder / "clips" / "digits.csv"), "--run-dir", str(path), "--max-steps", str(STEPS), "--epochs", "99"]  # fmt: skip
    path.mkdir()
    words = [str(folder / "tiny.py"), *more]
    kill_beyond_a_checkpoint(words, path, folder / "first", 4)
    again = [*words, "--load", str(path)]
    kill_beyond_a_checkpoint(again, path, folder / "second", 12)
    ((done,),) = ranks.train([again], 1, folder / "third")
    assert done.code == 0, done.err
    (path / "ranks").mkdir()
    (path / "ranks" / "0.log").write_text(done.out)
    return path


@pytest.mark.long
def test_steps_that_count_are_each_there_once(run_dir: Path) -> None:
    written = [one.step for one in read(run_dir) if isinstance(one, StepRecord)]
    assert sorted(written) != written
    final = final_steps(read(run_dir))
    assert list(final) == list(range(1, STEPS + 1))
    times = [one.time_s for one in final.values()]
    assert times == sorted(times)


def test_attempts_and_their_time_add_up(run_dir: Path) -> None:
    steps = Steps()
    for record in read(run_dir):
        steps = after_record(steps, record)
    found = account(steps, Journal())
    assert [one.ending for one in found.attempts] == ["unknown", "unknown", DONE]
    assert found.attempts[0].last is not None
    assert found.attempts[1].first is not None
    assert found.attempts[1].first <= found.attempts[0].last
    final = final_steps(read(run_dir)).values()
    assert found.effective_s == pytest.approx(sum(one.step_s for one in final))
    ettr = found.ettr(time.time())
    assert ettr is not None
    assert 0.0 < ettr < 1.0
    assert found.began_s is not None
    assert found.ended_s is not None
    assert found.effective_s + found.lost["unknown"] <= found.ended_s - found.began_s


def test_live_view_draws_no_line_backwards(run_dir: Path) -> None:
    feed = RunDirFeed(run_dir, clock=time.time)
    state = fold(initial_state((), now_s=0.0), [*feed.poll(), Tick(time.time())])
    assert state.run is not None
    assert [row[0] for row in state.run.curve.rows()] == list(map(float, range(1, STEPS + 1)))
    now = figures(state.run, state.now_s)
    assert (now.status, now.attempt, now.restarts) == ("finished", 3, 2)
    assert now.smooth_loss is not None
    assert math.isfinite(now.smooth_loss)


def test_picture_is_of_the_final_history(run_dir: Path) -> None:
    assert pictures.main([str(run_dir)]) == 0
    assert imread(run_dir / pictures.CURVE).shape == (360, 720, 4)


def test_lines_since_a_step_are_found_by_what_the_trainer_prints(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines have no times; telemetry knows when the steps were done that they tell of."""
    done = final_steps(read(run_dir))
    between_s = (done[STEPS - 3].time_s + done[STEPS - 2].time_s) / 2
    when = datetime.fromtimestamp(between_s).isoformat()
    assert command(["logs", str(run_dir), "--since", when]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"0 | step {STEPS - 2}/{STEPS} ")
    assert lines[-1].startswith("0 | done at step")


def test_plan_counts_two_failures(run_dir: Path) -> None:
    record = read_run(run_dir)
    found = failures_of([record], time.time())
    assert (len(record.attempts), len(found.failures)) == (3, 2)
    assert all(one.restart_s for one in found.failures)
    assert record.state(time.time()) == "finished"
