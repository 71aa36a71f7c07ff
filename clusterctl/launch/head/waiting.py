"""Runs that wait between two attempts, as nodes and the supervisors of this machine know them.

A stop or kill ends them by a mark on the nodes (payload/launch/stopped.py), and at once where their
supervisor is on this machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.jobs.processes import NodeJob, Pick
from clusterctl.launch import saved_run
from clusterctl.launch.head.link import Link
from clusterctl.launch.state import BETWEEN
from clusterctl.payload.files.private import own_files
from clusterctl.runs.waiting import Waiting, waiting_of

ANSWER_S = 5.0  # of a supervisor


def find_waiting(jobs: Sequence[NodeJob], pick: Pick) -> list[Waiting]:
    """Runs of a pick that wait: none of their ranks is anywhere. No node need answer."""
    if pick.match is not None or pick.gpus:
        return []
    running = {p.run for job in jobs for p in job.processes if p.role == "trainer"}
    here = {one.run: one for one in _supervised_here([job.node.name for job in jobs])}
    told = waiting_of((job.node.name, row) for job in jobs for row in job.waiting)
    found = [*here.values(), *(one for one in told if one.run not in here)]
    found = [one for one in found if one.run not in running]
    return [one for one in found if not pick.runs or one.run in pick.runs]


def _supervised_here(names: Collection[str]) -> list[Waiting]:
    """Of supervisors of this user and machine that may use one of these nodes."""
    return [one for path in own_files("head-*.sock") for one in _ask(Path(path), names)]


def _ask(path: Path, names: Collection[str]) -> Iterator[Waiting]:
    with contextlib.suppress(OSError, ClusterctlError, LookupError, TypeError):
        with contextlib.closing(Link(path)) as link:
            about, message = link.first_state(ANSWER_S)
        state = message["state"]
        nodes = saved_run.read(Path(about["run_dir"])).rules.every_node
        if state["phase"] in BETWEEN and any(node.name in names for node in nodes):
            head = f"process {about['pid']} on {about['host']}"
            since_s = time.time() - float(state["phase_s"])
            facts = (about["run_id"], about["run_dir"], head, state["reason"], state["attempt"])
            yield Waiting(*facts, since_s, socket=path)


def end_waiting(waiting: Sequence[Waiting], order: str, timeout_s: float) -> list[tuple[str, bool]]:
    """Order the supervisors of this machine to end these runs; (line, whether it is proved) of
    each. `order` is "stop" or "kill". All nodes have been told before."""
    lines = []
    for run in waiting:
        result = _end_here(run, order, timeout_s)
        if result is None:
            text = f"run {run.run} is not started again; its supervisor ({run.head}) ends it when "
            text += "it next looks at the nodes, within a minute"
            lines.append((text, run.socket is None))
            continue
        lines.append((f"run {run.run} is over: {result['reason']}", True))
        lines += [(f"still there: {left}", False) for left in result["leftovers"]]
        lines += [(f"NOT CONFIRMED: {name}", False) for name in result["unconfirmed"]]
    return lines


def _end_here(run: Waiting, order: str, timeout_s: float) -> Mapping[str, Any] | None:
    """How it ended; None where it has not within the time, or is supervised elsewhere."""
    if run.socket is None:
        return None
    try:
        link = Link(run.socket)
    except OSError:
        return None
    link.send(order)
    deadline = time.monotonic() + timeout_s
    with contextlib.closing(link), contextlib.suppress(ClusterctlError):
        while not link.ended and time.monotonic() < deadline:
            for message in link.take(0.2):
                if message["type"] == "result":
                    found: Mapping[str, Any] = message["result"]
                    return found
    return None
