"""What the screens do on nodes, with the same library functions as the commands.

All of it waits, so it runs in the threads of `background.Job`, never in the app's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import CouldNotFindOut, TransportError, UsageError
from clusterctl.jobs.processes import NodeJob, Pick, look, one_run, others_lines, plan_rows
from clusterctl.nodes import fold
from clusterctl.runs.waiting import Waiting
from clusterctl.settings import Settings
from dashboards.model.state import RunState
from dashboards.operations.background import Watch
from trainer.runlog.run_files import read_bytes, read_end

if TYPE_CHECKING:
    from checks.finding import Report
    from clusterctl.remote.cluster import Cluster
    from clusterctl.stacks.diagnose import Diagnosis
    from clusterctl.transport.base import Transport

LOG_BYTES = 128 << 10  # of the end of a log
RUN_ID_FILE = ".run-id"
KERNEL = "journalctl -k --no-pager -q -n 400 2>/dev/null || dmesg -T 2>/dev/null | tail -n 400"


@dataclass(frozen=True, slots=True)
class Ending:
    """Processes that are to be ended, as they were found."""

    pick: Pick
    jobs: tuple[NodeJob, ...]
    waiting: tuple[Waiting, ...] = ()  # runs between two attempts

    @property
    def count(self) -> int:
        return sum(len(job.processes) for job in self.jobs)

    @property
    def is_something(self) -> bool:
        return bool(self.count or self.waiting)

    @property
    def nodes(self) -> list[str]:
        return [job.node.name for job in self.jobs if job.processes]

    def lines(self) -> list[str]:
        """Nodes with equal shares in one line, then what is left alone."""
        lines = []
        for row in plan_rows(self.jobs):
            ranks = f", ranks {row.ranks}" if row.ranks else ""
            text = f"{row.count} processes each: {row.what}{ranks}, of {row.owners}"
            lines.append(f"{row.nodes}  {text}")
        failed = [(job.node.name, job.unreachable) for job in self.jobs if job.unreachable]
        lines += [f"{name}  {error.sentence()}" for name, error in failed]
        return lines + [one.sentence for one in self.waiting] + others_lines(self.jobs)


@dataclass(frozen=True, slots=True)
class LogText:
    """The end of a log."""

    where: str  # path, and the node it was read on
    text: str
    is_cut: bool = False  # there is more before


NO_NODES = "there are no nodes to ask here, only what was written down"


class Actions:
    """What the screens offer. This class reaches no node (a replay, no hostfile).

    Each method raises `ClusterctlError` with a sentence, or `background.Cancelled`.
    """

    def diagnose(self, run: RunState | None, nodes: Sequence[str], watch: Watch) -> Diagnosis:
        """Stacks of the run (None: the only one), on these nodes or all."""
        raise CouldNotFindOut(NO_NODES)

    def preflight(self, nodes: Sequence[str], watch: Watch) -> list[str]:
        """All checks of these nodes, as lines."""
        raise CouldNotFindOut(NO_NODES)

    def find(self, directory: str | None, nodes: Sequence[str], watch: Watch) -> Ending:
        """What `end` would end; touches nothing."""
        raise CouldNotFindOut(NO_NODES)

    def end(self, ending: Ending, watch: Watch) -> tuple[str, list[str]]:
        """End it: (what is gone, what is not)."""
        raise CouldNotFindOut(NO_NODES)

    def kernel_log(self, node: str, watch: Watch) -> LogText:
        """The end of a node's kernel log."""
        raise CouldNotFindOut(NO_NODES)

    def rank_log(self, run: RunState, rank: int, watch: Watch) -> LogText:
        """The end of a rank's output, from the run directory on this machine."""
        path = Path(run.directory) / "ranks" / f"{rank}.log"
        try:
            data, is_cut = read_end(Path(run.directory), f"ranks/{rank}.log", LOG_BYTES)
        except FileNotFoundError:
            raise CouldNotFindOut(f"{path} does not exist") from None
        except OSError as error:
            raise CouldNotFindOut(f"{path}: {error.strerror or error}") from None
        return LogText(str(path), data.decode(errors="replace"), is_cut)


class ClusterActions(Actions):
    """On the nodes of the hostfile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @functools.cached_property
    def _transport(self) -> Transport:
        return self._settings.transport()

    def _cluster(self, settings: Settings, watch: Watch) -> Cluster:
        return dataclasses.replace(settings.cluster(watch.sweep), transport=self._transport)

    def _only(self, nodes: Sequence[str]) -> Settings:
        if not nodes:
            return self._settings
        known = {node.name for node in self._settings.nodes()}
        unknown = [name for name in nodes if name not in known]
        if unknown:
            raise UsageError(f"{unknown[0]} is not in {self._settings.hostfile}")
        return dataclasses.replace(self._settings, only=",".join(nodes), without=None)

    def diagnose(self, run: RunState | None, nodes: Sequence[str], watch: Watch) -> Diagnosis:
        from clusterctl.stacks.diagnose import diagnose

        settings, pick = self._only(nodes), _pick(run.directory if run else None)
        is_part = bool(settings.only or settings.without)
        seen = diagnose(self._cluster(settings, watch), pick, is_part=is_part)
        snapshot = seen.snapshot
        if not snapshot.procs and not snapshot.silent:
            names = fold([node.name for node in snapshot.nodes])
            raise CouldNotFindOut(f"no process of a run on {names}")
        if len(snapshot.runs) > 1:
            found = f"{len(snapshot.runs)} runs are there: {', '.join(snapshot.runs)}"
            raise UsageError(found, hint="clusterctl dump-stacks --run ID")
        return seen

    def preflight(self, nodes: Sequence[str], watch: Watch) -> list[str]:
        from clusterctl.preflight.last_census import default_path
        from clusterctl.preflight.run import run_preflight

        cluster = self._cluster(self._only(nodes), watch)
        return preflight_lines(run_preflight(cluster, memory=default_path()))

    def find(self, directory: str | None, nodes: Sequence[str], watch: Watch) -> Ending:
        pick = _pick(directory)
        jobs, _ = look(pick, self._cluster(self._only(nodes), watch))
        from clusterctl.launch.head.waiting import find_waiting

        waiting = find_waiting(jobs, pick)
        one_run(jobs, pick, waiting, every=False)
        return Ending(pick, tuple(jobs), tuple(waiting))

    def end(self, ending: Ending, watch: Watch) -> tuple[str, list[str]]:
        from clusterctl.jobs.kill import OVER_S, Order, end, report_lines
        from clusterctl.launch.head.waiting import end_waiting

        cluster = self._cluster(self._settings, watch)
        ended, _ = end(ending.jobs, ending.pick, Order(), cluster, ending.waiting)
        good, bad = report_lines(ended)
        over = end_waiting(ending.waiting, "kill", OVER_S)
        good = "; ".join([good, *(line for line, proved in over if proved)])
        return good, [*bad, *(line for line, proved in over if not proved)]

    def rank_log(self, run: RunState, rank: int, watch: Watch) -> LogText:
        """From the run directory; where it is not shared, from the rank's node."""
        try:
            return super().rank_log(run, rank, watch)
        except CouldNotFindOut:
            place = run.place_of(rank)
            if place is None:
                raise
        node = place[0]
        path = Path(run.directory).absolute() / "ranks" / f"{rank}.log"
        text = self._shell(node, f"tail -c {LOG_BYTES} -- {shlex.quote(str(path))}", watch)
        return LogText(f"{node}:{path}", text, len(text.encode()) >= LOG_BYTES)

    def kernel_log(self, node: str, watch: Watch) -> LogText:
        text = self._shell(node, KERNEL, watch)
        if not text.strip():
            raise CouldNotFindOut(f"{node}: neither journalctl -k nor dmesg may be read there")
        return LogText(f"{node}: kernel", text, True)

    def _shell(self, node: str, command: str, watch: Watch) -> str:
        """Output of a command on one node. Raises `TransportError`, `CouldNotFindOut`."""
        from clusterctl.remote.output_groups import read_answer

        args = {"command": command, "timeout_s": 10.0, "max_bytes": 2 * LOG_BYTES}
        cluster = self._cluster(self._only([node]), watch)
        (result,) = cluster.ask("shell", args, timeout_s=16.0, lease=True)
        if result.value is None:
            assert result.unreachable is not None
            raise TransportError(result.unreachable.phase, result.unreachable.sentence())
        answer = read_answer(node, result.value)
        if not answer.good and not answer.out:
            raise CouldNotFindOut(f"{node}: {answer.err.strip() or answer.ending}")
        return answer.out


def _pick(directory: str | None) -> Pick:
    """The run of a directory by its id, else any run."""
    run = ""
    if directory is not None:
        with contextlib.suppress(OSError, ValueError):
            run = read_bytes(Path(directory), RUN_ID_FILE, 200).decode().strip()
    return Pick(runs=(run,), user=None) if run else Pick()


def preflight_lines(report: Report) -> list[str]:
    """The report as the command prints it."""
    from clusterctl.preflight.run import fix_lines, headline, table_rows

    rows = table_rows(report)
    wide = max((len(id) for _, id, _, _ in rows), default=0)
    lines = [headline(report), ""]
    lines += [f"{verdict.value:<7}  {id:<{wide}}  {text}" for verdict, id, _, text in rows]
    fixes = fix_lines(report)
    return lines + (["", *fixes] if fixes else [])
