"""The process that supervises a run: apart from every terminal, `python -m … RUN_DIR begin`.

`begin` is for a new run, `resume` for one whose supervisor has gone. What it prints is in
supervisor.log of the run directory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError, CouldNotFindOut
from clusterctl.launch import journal, positions, saved_run
from clusterctl.launch.head.attached import LOG
from clusterctl.launch.head.detached import last_words, spawn
from clusterctl.launch.head.link import Link
from clusterctl.launch.head.one_version import keep_code
from clusterctl.launch.head.views import Views
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.recheck import recheck
from clusterctl.launch.saved_run import SavedRun
from clusterctl.launch.state import Left, RunResult, RunState
from clusterctl.launch.supervise import supervise
from clusterctl.nodes import Node
from clusterctl.payload.launch import stopped
from clusterctl.payload.launch.logout import leave_session
from clusterctl.remote.cluster import Cluster
from clusterctl.runs import owner
from clusterctl.runs.journal import launcher_event
from trainer.runlog import run_files, telemetry
from trainer.runlog.own_modules import module_command

START_S = 30.0  # for Python and its imports, on a busy machine
# Events that agents' messages give once more.
REPEATED = ("rank", "rank-ended", "unread", "unshared")


def start(run_dir: Path, word: str) -> Link:
    """Start a supervisor of a saved run and connect to it. Raises `CouldNotFindOut`."""
    path = owner.socket_path(saved_run.read(run_dir).plan.run_id)
    command = module_command(__name__, run_dir, word)
    child = spawn(command, run_dir / LOG)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            return Link(path)
        except OSError:
            code = child.poll()
            if code == -signal.SIGINT:  # a Ctrl-C before it had left the terminal; the caller asks
                child = spawn(command, run_dir / LOG)
            elif code is not None:
                break
        time.sleep(0.05)
    child.terminate()  # one that comes later would begin the run all the same
    why = last_words(run_dir / LOG)
    raise CouldNotFindOut(f"the run has no supervisor: {why}", hint=f"see {run_dir / LOG}")


def main(run_dir: Path, word: str) -> int:
    os.umask(0o077)
    lock = owner.take(run_dir)
    why = leave_session()
    if why is not None:
        print(f"warning: {why}", file=sys.stderr)
    run = saved_run.read(run_dir)
    keep_code()
    if run.plan.share:
        os.umask(0o027)
    signals: list[int] = []  # no word of the run's owner: of a machine that goes down, for example
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it belongs to no terminal
    phase = run.phase if word == "resume" else "new"
    try:
        supervise_here(run, lock, phase=phase, leave=lambda: bool(signals))
    except Left as left:
        other = str(left)
        why = other or f"ended by {signal.Signals(signals[0]).name}"
        text = f"process {os.getpid()} on {socket.gethostname()} leaves ({why})"
        journal.Journal(run_dir).write("supervisor", f"{text}; its run continues")
        print(f"{text}; the run goes on: clusterctl attach {run_dir} continues with it")
        if not other:
            owner.give_back(run_dir, lock)  # else it would count for a while on other machines
        return 3  # ranks go on that this process sees no more
    return 0


def supervise_here(
    run: SavedRun,
    lock: int,
    *,
    phase: str = "new",
    leave: Callable[[], bool] = lambda: False,
    on_update: Callable[[RunState], None] = lambda state: None,
) -> RunResult:
    """Supervise a saved run in this process, which holds its `lock`, to its end: `status`, `attach`
    and `stop` find it. Raises `Left` where `leave` becomes true, or another one has the run."""
    run_dir = run.plan.run_dir
    lost: list[str] = []  # why this is no longer the run's supervisor
    owner.keep(run_dir, lock, lost.append)
    orders: list[str] = []  # of views: two people who stop the run do not cut its save short
    about = {"run_id": run.plan.run_id, "run_dir": str(run_dir), "pid": os.getpid()}
    views = Views(
        lambda: owner.socket_path(run.plan.run_id),
        {**about, "host": socket.gethostname()},
        orders.append,
    )

    def update(state: RunState) -> None:
        views.update(state)
        on_update(state)

    try:
        result = supervise(
            run.plan,
            cluster_of(run),
            on_update=update,
            stop=lambda: bool(orders),
            kill=lambda: "kill" in orders,
            leave=lambda: bool(lost) or leave(),
            rules=run.rules,
            past=replace(_past(run), phase=phase),
            on_change=lambda plan, phase, past: run.at(plan, phase, past).write(),
            recheck=lambda plan, nodes: recheck(plan, cluster_of(run), run.rules, nodes),
        )
    except Left as left:
        raise Left(str(left) or "".join(lost[:1])) from None
    forget(run)
    views.end(result)
    owner.give_back(run_dir, lock)
    return result


def forget(run: SavedRun) -> None:
    """Leave nothing with which another supervisor could go on."""
    try:
        saved_run.remove(run.plan.run_dir)
        positions.remove(run.plan.run_dir)
        stopped.forget(run.plan.run_id, str(run.plan.run_dir))
    except OSError as error:  # views must get the result all the same
        print(f"warning: {error}", file=sys.stderr)


def cluster_of(run: SavedRun) -> Cluster:
    return to_nodes(run.plan.nodes, run.accept_new, limits=run.limits, width=run.width)


def to_nodes(nodes: Sequence[Node], accept_new: bool = False, **more: Any) -> Cluster:
    from clusterctl.transport.paramiko_backend import ParamikoTransport

    return Cluster(list(nodes), ParamikoTransport(accept_new=accept_new), **more)


def _past(run: SavedRun) -> Past:
    """With what the run directory tells of a run that another supervisor has begun."""
    events = []
    with suppress(OSError):
        lines = run_files.lines(run.plan.run_dir / journal.EVENTS_FILE)
        events = [event for event in map(launcher_event, lines) if event is not None]
    began_s = events[0].time_s if events else None
    last = max((at for at, one in enumerate(events) if one.name == "attempt"), default=0)
    repeated = [one for one in events[last:] if one.name in REPEATED]
    known = frozenset((one.name, one.data.get("node"), one.text) for one in repeated)
    # It cuts copies to what is sent once more: between two attempts no agent has anything to send.
    found = positions.load(run.plan.run_dir) if run.phase == "running" else {}
    step, saved = telemetry.newest(run.plan.run_dir)
    path = saved.data.get("path") if saved else None
    return replace(
        run.past, positions=found, known=known, began_s=began_s, step=step, checkpoint=path
    )


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
    except ClusterctlError as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
