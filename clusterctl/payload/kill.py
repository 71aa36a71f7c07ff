"""Show a job's processes on this node (op look), or end them and prove it (op kill).

ARGS: op, pick (jobs/find_job.py); for kill also targets [[pid, start]], signal, grace_s
(kill_s), gpu (whether to check that GPU memory is free, within gpu_s), runs [[run, run directory]]
that are over from now on (launch/stopped.py), by `who`.
look answers `rows` (describe_job), `others` (other users' processes that match the pick), `notes`,
`waiting` (runs between two attempts); kill answers left, zombies, gpu_left, gpu_unknown (the
reason), unmarked (why a run may be started again), counts and seconds.
"""

import signal
import time

from clusterctl.payload.jobs.find_job import NOTES, Snapshot, find_job, login_user, take_snapshot
from clusterctl.payload.jobs.processes import start_of
from clusterctl.payload.jobs.terminate import Ending, zombies
from clusterctl.payload.launch.waiting import waiting_for
from clusterctl.payload.prelude import ARGS, finish

KILL_S = 5.0  # from SIGKILL to the last check
GPU_FREE_S = 10.0  # for the driver to take the memory back


def main():
    finish({"look": look, "kill": kill}[ARGS["op"]](ARGS["pick"]))


def look(pick):
    _, found = take_snapshot(pick)
    rows = found["rows"]
    if rows:
        from clusterctl.payload.jobs.gpu_holders import memory_of

        held = memory_of([row["pid"] for row in rows])
        for row in rows:
            row["gpu_bytes"] = held[row["pid"]]
    found["waiting"] = waiting_for(pick)
    return dict(found, login=login_user(), notes=NOTES[:8])


def kill(pick):
    from clusterctl.payload.launch.stopped import end_runs, runs_of  # a look needs none

    started = time.monotonic()
    approved = [tuple(target) for target in ARGS["targets"]]
    users = runs_of([pid for pid, start in approved if start_of(pid) == start])
    unmarked = end_runs(ARGS.get("runs", ()), "kill", ARGS.get("who", ""), users)
    ending = Ending(approved, Sweep(pick, approved).now)
    number = getattr(signal, ARGS["signal"])
    forced = ending.run(number, ARGS["grace_s"], ARGS.get("kill_s", KILL_S))
    left = ending.survivors()
    ended = set(ending.victims) - {(row["pid"], start_of(row["pid"])) for row in left}
    gpu_left, gpu_unknown = [], ""  # type: list, str
    if ARGS.get("gpu") and ended:
        from clusterctl.payload.jobs.gpu_holders import prove_freed

        pids = {pid for pid, _ in ended}
        gpu_left, gpu_unknown = prove_freed(pids, ARGS.get("gpu_s", GPU_FREE_S))
    answer = {"left": left, "zombies": zombies(ended), "forced": forced, "missed": ending.missed}
    answer.update(gpu_left=gpu_left, gpu_unknown=gpu_unknown, unmarked=unmarked)
    answer.update(asked=ending.first, swept=len(ending.victims) - ending.first)
    return dict(answer, seconds=round(time.monotonic() - started, 3))


class Sweep:
    """What belongs to the job now, beyond what was shown."""

    def __init__(self, pick, approved):
        self.pick = pick
        self.shot = None  # type: Any
        self.known = dict(approved)

    def now(self):
        """{pid: start}: by tag where the pick is a run, else descendants of what is known.

        A session or process group has its leader's id, which the kernel does not reuse while a
        member lives: members of one that a known process led belong to the job.
        """
        if self.pick.get("runs"):
            self.shot, pids, _ = find_job(self.pick, self.shot)
        else:
            self.shot = Snapshot(self.shot)
            pids = set()
        facts = self.shot.facts
        alive = {pid for pid in self.known if self._is_same(pid)}
        for pid, found in facts.items():
            orphan = found.ppid <= 1 or found.ppid not in facts
            if self._led(found.session) or (orphan and self._led(found.pgrp)):
                pids.add(pid)
        pids |= self.shot.tree(alive | pids)
        pids -= self.shot.ours()
        fresh = {pid: facts[pid].start for pid in pids if facts[pid].state not in "ZX"}
        self.known.update({pid: start for pid, start in fresh.items() if pid not in self.known})
        return fresh

    def _is_same(self, pid):
        found = self.shot.facts.get(pid)
        return found is not None and found.start == self.known[pid]

    def _led(self, leader):
        """Whether a session or group is one of the job's; its leader may have ended."""
        return leader in self.known and (leader not in self.shot.facts or self._is_same(leader))
