"""What weeks do to a run, in minutes: connections that are lost and ranks that die, again and again. Slow."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from clusterctl.runs import owner
from tests.clusterctl.commands.user import SHORT, User
from tests.clusterctl.launch.harness import ranks_of, tagged, wait_until
from tests.clusterctl.launch.test_lost_connections import cut_connections

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(900)]

FEW, MANY = 10, 60  # times, before the first measurement and before the second
MORE_MIB = 6  # that a process may hold then: Python's allocator needs some time to settle
# Each attempt takes steps and saves, so that the next failure is a new one.
TRAINS = """
import os, time
from pathlib import Path
from trainer.runlog.telemetry import Event, StepRecord, Writer
attempt = int(os.environ["CLUSTERCTL_ATTEMPT"])
writer = Writer(Path(os.environ["CLUSTERCTL_RUN_DIR"])) if os.environ["RANK"] == "0" else None
print("up", flush=True)
step = 0
while True:
    step += 1
    if writer is not None:
        writer.write(StepRecord(step, 10**6, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01, time_s=time.time()))
        if step == 5:
            path = f"/x/epoch0-global_step{100 * attempt}"
            writer.write(Event("checkpoint", "saved", data={"path": path}))
    print("line", step, flush=True)
    time.sleep(0.05)
"""


class Held(NamedTuple):
    mib: int
    threads: int
    files: int


def held(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    kib, threads = (
        int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmRSS", "Threads")
    )
    return Held(kib >> 10, threads, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def count(user: User, name: str) -> int:
    return sum(event["event"] == name for event in user.events())


def happens(user: User, times: int, name: str, act: Callable[[], None]) -> None:
    """`act` so often, each time until the run tells an event of this name."""
    for _ in range(times):
        before = count(user, name)
        act()
        wait_until(lambda before=before: count(user, name) > before, 30)


def check_no_growth(before: Held, after: Held) -> None:
    print(before, after)
    assert after.mib <= before.mib + MORE_MIB
    assert (after.threads, after.files) <= (before.threads + 2, before.files + 2)


def test_connections_that_are_made_again_cost_neither_memory_nor_threads_nor_files(
    user: User,
) -> None:
    user.program(TRAINS)
    process = user.start(*SHORT)
    run_id = user.run_id()
    ranks = ranks_of(run_id)
    supervisor = owner.find(user.run_dir).pid
    node = user.cluster.nodes[0]

    def found() -> dict[int, Held]:
        agents = [pid for pid in tagged(run_id) if pid not in ranks.values()]
        return {pid: held(pid) for pid in (supervisor, *agents) if Path(f"/proc/{pid}").exists()}

    happens(user, FEW, "reconnected", lambda: cut_connections(node))
    before = found()
    happens(user, MANY, "reconnected", lambda: cut_connections(node))
    after = found()
    for pid in before.keys() & after.keys():
        check_no_growth(before[pid], after[pid])
    assert supervisor in after
    assert ranks_of(run_id) == ranks
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 130


def test_restarts_cost_the_supervisor_neither_memory_nor_threads_nor_files(user: User) -> None:
    user.program(TRAINS)
    process = user.start(*SHORT[:-2])
    run_id = user.run_id()
    supervisor = owner.find(user.run_dir).pid
    saved = user.run_dir / "telemetry.jsonl"

    def has_saved() -> bool:
        return f'global_step{100 * count(user, "attempt")}"' in saved.read_text()

    def kill_a_rank() -> None:
        wait_until(lambda: count(user, "attempt") > count(user, "restart"), 30)
        wait_until(has_saved, 30)
        os.kill(ranks_of(run_id)[1], signal.SIGKILL)

    happens(user, FEW, "restart", kill_a_rank)
    before = held(supervisor)
    happens(user, MANY // 2, "restart", kill_a_rank)
    check_no_growth(before, held(supervisor))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 130
    assert tagged(run_id) == []
