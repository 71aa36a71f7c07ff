"""`clusterctl why` on real runs: what the launcher recorded, and the same without its last words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE
from clusterctl.why.explain import Explanation, explain
from tests.clusterctl.launch.harness import read_lines

LATER = 1e11 / 2
PROGRAM = """\
import os, signal, sys, time
rank, how = int(os.environ["RANK"]), sys.argv[1]
there = os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "there")
print("up", flush=True)
if rank == 2:
    open(there, "w").close()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    open("/data/of/nobody") if how == "open" else {}["ema_decay"]
if rank == 0:
    while not os.path.exists(there):
        time.sleep(0.02)
    print("error: another rank has ended, and this one ends with it", flush=True)
    sys.exit(1)
time.sleep(60)
"""


def without_last_words(run_dir: Path) -> None:
    """As if the supervisor had been killed when the first rank's end had come."""
    (run_dir / INCIDENTS_FILE).unlink()
    last = ("end", "failure", "incident", "rank-ended", "restart")
    kept = [one for one in read_lines(run_dir / EVENTS_FILE) if one["event"] not in last]
    (run_dir / EVENTS_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in kept))


def root(found: Explanation) -> tuple[str, str | None, int | None]:
    assert found.verdict is not None
    assert found.verdict.cause is not None
    return found.verdict.cause.name, found.verdict.cause.node, found.verdict.cause.rank


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "name"), [("raise", "worker-exception"), ("open", "missing-file"), ("kill", "signal-9")]
)
def test_first_cause_of_a_real_run(bench, how: str, name: str) -> None:
    result, plan = bench.run(PROGRAM, how, slots=2)
    assert result.exit_code == 1
    node = plan.nodes[1].name
    found = explain(plan.run_dir, None, LATER)
    assert root(found) == (name, node, 2)
    assert found.verdict is not None
    assert found.verdict.is_recorded
    assert (found.state, found.exit_code) == ("failed", 1)
    without_last_words(plan.run_dir)
    again = explain(plan.run_dir, None, LATER)
    assert again.verdict is not None
    assert not again.verdict.is_recorded
    if how == "kill":  # its log says nothing, and nobody else saw it
        assert again.verdict.cause is None
        assert again.verdict.why_not
    else:
        assert root(again) == (name, node, 2)
