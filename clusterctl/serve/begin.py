"""`clusterctl serve`: from its options to a server that runs, or a plan that is shown."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import ClusterctlError, CouldNotFindOut, UsageError
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.payload.launch.logout import leave_session
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import WIDTH
from clusterctl.runs.find import find_run
from clusterctl.serve import control
from clusterctl.serve.backlog import Follow, Plan
from clusterctl.serve.claims import Claims
from clusterctl.serve.events import Events
from clusterctl.serve.presets import read_presets
from clusterctl.serve.remote_run import RemoteRun, split
from clusterctl.serve.runs import find_runs, follow
from clusterctl.serve.samplers import Samplers
from clusterctl.serve.server import serve
from clusterctl.serve.source import LocalRun, Source
from clusterctl.serve.wandb import VideoLog
from clusterctl.serve.wanted import Choice
from clusterctl.serve.work import DONE, Folder
from clusterctl.settings import Settings
from clusterctl.signal_handlers import handled_by
from clusterctl.transport.base import Limits
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.paramiko_backend import ParamikoTransport
from trainer.runlog.own_modules import HOME, bound_command, environment

HERE = "localhost"
CONFIG_S = 30.0  # for the config of a run elsewhere


@dataclass(frozen=True)
class Wanted:
    """The options of the command, by their names."""

    runs: Sequence[str]
    numbers: Sequence[tuple[int, ...]]
    outputs: Path
    names: Sequence[str]
    presets: Path | None
    prompts: Path | None
    validate: bool
    no_videos: bool
    weights: str
    last_step: int | None
    every: int
    only_first_of_epoch: bool
    once: bool
    nodes: Path | None
    only: str | None
    without: str | None
    connect_timeout: float
    accept_new: bool
    copies: Path
    compute_only: bool
    save_to: str
    gpus: str | None
    python: str
    web: bool
    host: str
    port: int
    detach: bool
    list_servers: bool
    stop: bool
    log: Path | None
    dry_run: bool


def begin(wanted: Wanted, output: Output, on_finished: Callable[[Path], object]) -> int:
    """Follow the runs; the exit code. `on_finished` gets a run's folder after each checkpoint.

    Raises `UsageError`, and `ClusterctlError` where a run's folder cannot be written.
    """
    if not Path(wanted.python).is_absolute():
        raise UsageError(f"--python {wanted.python} is not an absolute path")
    if wanted.no_videos and not wanted.validate:
        raise UsageError("--no-videos leaves nothing to do without --validate")
    cluster = _cluster(wanted)
    sources = _sources(wanted, cluster)
    folders = [source.folder for source in sources]
    if wanted.list_servers or wanted.stop:
        return (control.stop if wanted.stop else control.show)(folders, output)
    if wanted.detach and not wanted.dry_run:
        words = [word for word in sys.argv[1:] if word != "--detach"]
        return control.detach(folders[0] / "samples", words, output)
    with ExitStack() as stack:
        for source in sources:
            stack.callback(source.close)
            source.start()
        plan = _plan(wanted, sources)
        if wanted.dry_run:
            return _show_plan(plan, cluster, output)
        if wanted.log is not None and (why := leave_session()) is not None:
            output.warn(why, "warn")
        if wanted.web:
            stack.enter_context(_gallery(wanted, folders))
        return _serve(wanted, plan, cluster, output, on_finished)


@contextmanager
def _gallery(wanted: Wanted, folders: Sequence[Path]) -> Iterator[None]:
    """The web server of the gallery, as a process that ends with this one."""
    where = ["--host", wanted.host, "--port", wanted.port]
    words = bound_command("clusterctl", "gallery", *folders, "--web", *where)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment()) as child:
        try:
            yield
        finally:
            child.kill()


def _sources(wanted: Wanted, cluster: Cluster) -> list[Source]:
    """Of HOST:PATH the host is a node of --nodes, else one that ssh knows."""
    numbers = [number for group in wanted.numbers for number in group]
    elsewhere = [found for found in map(split, wanted.runs) if found is not None]
    names = [name for name in wanted.runs if split(name) is None]
    folders = find_runs(names, numbers, wanted.outputs)
    if not folders and not elsewhere:
        folders = [find_run(None, wanted.outputs).resolve()]
    sources: list[Source] = [LocalRun(folder) for folder in folders]
    known = {node.name: node for node in (read_hostfile(wanted.nodes) if wanted.nodes else ())}
    for host, path in elsewhere:
        (node,) = [known[host]] if host in known else parse_hostfile(host, host)
        transport = ParamikoTransport(accept_new=wanted.accept_new)
        sources.append(RemoteRun(node, path, wanted.copies, transport))
    return sources


def _cluster(wanted: Wanted) -> Cluster:
    if wanted.nodes is None:
        if wanted.only or wanted.without:
            raise UsageError("-w and -x choose nodes of a hostfile", hint="give --nodes FILE")
        return Cluster([Node(HERE)], LocalTransport())
    limits = Limits(tcp_s=wanted.connect_timeout)
    settings = Settings(
        hostfile=wanted.nodes,
        only=wanted.only,
        without=wanted.without,
        width=WIDTH,
        limits=limits,
        accept_new=wanted.accept_new,
    )
    return settings.cluster(lambda fanout, total: fanout)


def _plan(wanted: Wanted, sources: Sequence[Source]) -> Plan:
    known = read_presets(wanted.presets)
    for source in sources:
        if not source.wait(CONFIG_S):
            why = source.why or f"it does not answer within {units.duration(CONFIG_S)}"
            raise CouldNotFindOut(f"{source.name} cannot be looked at: {why}")
    what = {"validates": wanted.validate, "has_videos": not wanted.no_videos}
    follows = [follow(one, wanted.names, known, wanted.prompts, **what) for one in sources]
    after = -1 if wanted.last_step is None else wanted.last_step
    choice = Choice(after, wanted.every, wanted.only_first_of_epoch)
    return Plan(follows, choice, wanted.weights, wanted.once)


def _serve(
    wanted: Wanted,
    plan: Plan,
    cluster: Cluster,
    output: Output,
    on_finished: Callable[[Path], object],
) -> int:
    events = Events(output)

    def samplers(claims: Mapping[Source, Claims]) -> Samplers:
        gpus = wanted.gpus
        devices = None if gpus is None else [None] if gpus == "none" else gpus.split(",")
        tokens = [(str(one.token_file), one.id) for one in claims.values()]
        args: dict[str, Any] = {"python": wanted.python, "home": HOME, "gpus": devices}
        folders = [source.folder for source in claims]
        return Samplers(cluster, {**args, "tokens": tokens}, folders)

    logs: dict[Path, VideoLog] = {}
    if not wanted.compute_only:
        for one in plan.follows:
            place = one.source.folder
            logs[place] = VideoLog(place, wanted.save_to, events.warning)

    def finished(folder: Folder, claims: Claims, *, is_new: bool) -> None:
        place = folder.source.folder
        try:
            if is_new and folder.has_videos:
                on_finished(place)
            log = logs.get(place)
            if log is None or not log.add(folder.path, claims):
                claims.clear(folder.path)
        except ClusterctlError as error:  # the page
            events.warning(str(error), error.hint)
        except OSError as error:
            events.warning(f"{place / 'samples'} cannot be written: {error.strerror}")

    for one in plan.follows:
        for name, place in one.places.items():
            events.following(one.source.name, name, len(one.prompts[name]), str(place))
        if one.validates:
            events.validating(one.source.name)
    signals: list[int] = []
    try:
        with handled_by(lambda number, _: signals.append(number)):
            log_name = str(wanted.log or "")
            code = serve(plan, samplers, events, finished, lambda: bool(signals), log_name)
            for log in logs.values():
                log.close(wait=wanted.once and not signals)
    except OSError as error:
        text = f"{error.filename} cannot be written: {error.strerror}"
        raise ClusterctlError(text) from None
    finally:
        for log in logs.values():
            log.close(wait=False)
        events.close()
    return 130 if code == 0 and signal.SIGINT in signals else code


def _show_plan(plan: Plan, cluster: Cluster, output: Output) -> int:
    """What would be made of the checkpoints that there are now."""
    rows, documents = [], []
    for one in plan.follows:
        for name, step, preset, state, count in _rows(plan, one):
            rows.append([name, preset, state, str(count)])
            facts = {"run": one.source.name, "checkpoint": name, "step": step, "preset": preset}
            documents.append({**facts, "state": state, "videos": count})
    nodes = [node.name for node in cluster.nodes]
    if output.json:
        output.document("serve", event="plan", nodes=nodes, checkpoints=documents)
        return 0
    output.table(["CHECKPOINT", "PRESET", "STATE", "PROMPTS"], rows, ["PROMPTS"])
    where = nodes[0] if len(nodes) == 1 else counted(len(nodes), "node")
    output.note(f"{counted(len(plan.follows), 'run')}, sampled on {where}; nothing was made")
    return 0


def _rows(plan: Plan, one: Follow) -> list[tuple[str, int, str, str, int]]:
    source = one.source
    if source.why:
        raise ClusterctlError(source.why)
    found = []
    for sealed in plan.choice.of(source.sealed or []):
        for folder in one.folders_of(sealed, plan.weights):
            state = DONE if folder.is_served() else "to make"
            count = len(folder.prompts) if folder.has_videos else 0
            found.append((sealed.name, sealed.step, folder.preset.name, state, count))
    return found
