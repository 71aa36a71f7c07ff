"""Begin a run, look at it, say how it ended: what `launch` and `attach` do on the head."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import ClusterctlError, CouldNotFindOut, LaunchFailed, UsageError
from clusterctl.launch import saved_run
from clusterctl.launch.head import supervisor, wire
from clusterctl.launch.head.attached import follow
from clusterctl.launch.head.link import Link
from clusterctl.launch.run_dir import write_layout
from clusterctl.launch.saved_run import SavedRun
from clusterctl.launch.state import RunResult
from clusterctl.output import Output
from clusterctl.runs import owner
from clusterctl.signal_handlers import handled_by

STATE_S = 10.0  # for the first word of a supervisor
BEGIN_S = 60.0  # for the first of its nodes; --detach waits no longer


def begin(run: SavedRun, output: Output, *, detach: bool) -> int:
    """Start the supervisor of a new run and show it to its end; the exit code."""
    plan = run.plan
    _refuse_second(run)
    write_layout(plan.run_dir, plan.run_id, plan.to_json(), plan.environment.hidden())
    run.write()
    with _noted() as signals:
        link = supervisor.start(plan.run_dir, "begin")
        if detach:
            about, result = _begun(link, signals)
            if not signals:
                link.close()
                if result is not None:
                    return _tell(run, output, "launch", about, result)
                _say_detached(output, "launch", about)
                return 0
        return _watch(run, link, output, "launch", signals)


def _begun(link: Link, signals: list[int]) -> tuple[dict[str, Any], RunResult | None]:
    """About the run, and its result where it has ended by then. A slow login does not end it: its
    supervisor is there, and connects. Raises `CouldNotFindOut` where that says nothing."""
    about: dict[str, Any] | None = None
    begun_s = time.monotonic()
    while not signals and time.monotonic() < begun_s + (STATE_S if about is None else BEGIN_S):
        if link.ended:
            break
        for message in link.take(0.1):
            if message["type"] == "run":
                about = message
            elif about is not None and message["type"] == "result":
                return about, wire.result_of(message["result"])
            elif about is not None and message["state"]["nodes"]:
                return about, None
    if about is None and not signals:
        raise CouldNotFindOut(f"the supervisor says nothing within {units.duration(STATE_S)}")
    if link.ended and not signals:
        raise CouldNotFindOut("the supervisor of this run has ended", hint="clusterctl status")
    return about or {}, None


@contextlib.contextmanager
def _noted() -> Iterator[list[int]]:
    """Signals for the view to answer, also those that come before it: at a Ctrl-C the supervisor
    that is being started would go on alone."""
    signals: list[int] = []  # no Event: two signals at once would take its lock twice
    with handled_by(lambda number, _: signals.append(number)):
        yield signals


def _refuse_second(run: SavedRun) -> None:
    """Raises `LaunchFailed` where a run of the same job goes on, whichever clusterctl has started
    it. Nodes refuse it as well, but between two attempts no node knows of it."""
    names = {node.name for node in run.rules.every_node}
    for folder in sorted(run.plan.run_dir.parent.iterdir()):
        holder = owner.find(folder) if folder != run.plan.run_dir else None
        if holder is None:
            continue
        try:
            other = saved_run.job_of(folder)
        except UsageError as error:  # a supervisor lives, and what it trains is not known
            text = f"whether {folder} is the same job is not known ({holder.text}): {error}"
            raise LaunchFailed(text, hint="give this one other --outputs") from None
        if other and other.job_id == run.plan.job_id and names & other.nodes:
            text = f"the same job runs already (run {other.run_id}, {holder.text})"
            hint = f"clusterctl attach {folder} shows it; or give this one other --outputs"
            raise LaunchFailed(text, hint=hint)


def attach(run_dir: Path, output: Output, *, detach: bool = False) -> int:
    """Show a run that goes on; where its supervisor has gone, a new one takes over. With `detach`
    only that."""
    run = saved_run.read(run_dir)
    with _noted() as signals:
        link = connect(run)
        if detach and run.over:
            text = f"{run_dir}: {run.over}; what is left of the run is ended"
            if output.json:
                about = {"run_id": run.plan.run_id, "run_dir": str(run_dir)}
                output.document(
                    "attach", **about, ok=True, exit_code=0, detached=True, over=run.over
                )
            else:
                output.note(text)
            link.close()
            return 0
        if detach:
            about = link.about(STATE_S)
            link.close()
            _say_detached(output, "attach", about)
            return 0
        return _watch(run, link, output, "attach", signals)


def attach_all(outputs: Path, output: Output) -> int:
    """A supervisor for every run of a folder that continues without one; the worst exit code.

    Raises `UsageError` for a run directory itself.
    """
    if not outputs.is_dir() or (outputs / saved_run.FILE).exists():
        raise UsageError(f"{outputs} does not hold run directories", hint="attach --all outputs")
    found: list[dict[str, Any]] = []
    for run_dir in sorted(path.parent for path in outputs.absolute().glob(f"*/{saved_run.FILE}")):
        facts: dict[str, Any] = {"run_dir": str(run_dir), "exit_code": 0, "why": None, "over": None}
        try:
            run = saved_run.read(run_dir)
            facts |= {"run_id": run.plan.run_id, "over": run.over or None}
            was = owner.find(run_dir)
            if was is None or was.is_here:
                with contextlib.closing(connect(run)) as link:
                    link.about(STATE_S)  # one that is stopped takes the connection and says nothing
            text = f"it is supervised by {was.text}" if was else "it has a supervisor again"
            style = None if was else "good"
            if facts["over"]:
                text, style = f"{run.over}; what is left of it is ended", "warn"
        except ClusterctlError as error:
            facts |= {"exit_code": error.exit_code, "why": str(error)}
            text, style = f"error: {error}", "bad"
        found.append(facts)
        if not output.json and (style or not output.quiet):
            output.line(f"{run_dir}: {text}", style)
    code = max((one["exit_code"] for one in found), default=0)
    if output.json:
        output.document("attach", runs=found, ok=not code, exit_code=code)
    elif not found:
        output.note(f"no run continues in {outputs}")
    return int(code)


def connect(run: SavedRun) -> Link:
    """To the run's supervisor, of which a new one is started where there is none. Raises
    `UsageError` where it is supervised on another machine, or cannot be asked."""
    run_dir = run.plan.run_dir
    found = owner.find(run_dir)
    if found is None:
        return supervisor.start(run_dir, "resume")
    if not found.is_here:
        text = f"this run is supervised on {found.host} (process {found.pid})"
        raise UsageError(text, hint=f"clusterctl attach on {found.host}")
    try:
        return Link(owner.socket_path(run.plan.run_id))
    except OSError as error:
        text = f"{found.text} supervises this run and cannot be asked ({error.strerror})"
        raise UsageError(text, hint="kill it, then attach again: the ranks go on") from None


def _watch(run: SavedRun, link: Link, output: Output, command: str, signals: list[int]) -> int:
    run_dir = run.plan.run_dir
    about = {"run_id": run.plan.run_id, "run_dir": str(run_dir)}
    result = follow(link, run_dir, output, signals, started_it=command == "launch")
    if result is None:
        _say_detached(output, command, about)
        return 0
    return _tell(run, output, command, about, result)


def _tell(
    run: SavedRun, output: Output, command: str, about: dict[str, Any], result: RunResult
) -> int:
    if output.json:
        facts = {name: about[name] for name in ("run_id", "run_dir")}
        output.document(command, **facts, ok=result.ok, **asdict(result))
    else:
        _say_end(output, run.plan.run_dir, len(run.plan.shares), result)
    return result.exit_code


def _say_detached(output: Output, command: str, about: dict[str, Any]) -> None:
    facts = {name: about[name] for name in ("run_id", "run_dir")}
    if output.json:
        output.document(command, **facts, ok=True, exit_code=0, detached=True)
        return
    output.line(f"the run continues: {about['run_dir']}", "good")
    output.note(f"  clusterctl attach {about['run_dir']} shows it, clusterctl logs -f its output")


def _say_end(output: Output, run_dir: Path, nodes: int, result: RunResult) -> None:
    if result.ok:
        again = f" (after {counted(result.attempts - 1, 'restart')})" if result.attempts > 1 else ""
        output.line(f"done: {run_dir}{again}", "good")
    else:
        was_asked = result.exit_code == 130
        output.warn(result.reason if was_asked else f"error: {result.reason}", "bad")
        for line in result.last_lines:
            output.warn(f"  | {line}")
        if result.cause and result.cause["class"] not in ("unknown", "user-stop"):
            note = f" ({result.cause['note']})" if result.cause["note"] else ""
            output.warn(f"  cause: {result.cause['class']}{note}")
        if result.verdict and output.quiet:  # else it was printed as soon as it was known
            output.warn(f"  {result.verdict}", "bad")
        if result.stacks:
            output.warn(f"  stacks: {result.stacks}/index.html")
        if result.hint:
            output.warn(f"  hint: {result.hint}")
        output.warn(f"  logs: {run_dir}/ranks/")
    for left in result.leftovers:
        output.warn(f"still there: {left}", "bad")
    for name in result.unconfirmed:
        output.warn(f"NOT CONFIRMED: {name}", "bad")
    if not result.leftovers and not result.unconfirmed:
        output.note(f"no process of the run is left on {counted(nodes, 'node')}")
