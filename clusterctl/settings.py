"""What a command works on and how: flag, then environment, then clusterctl.toml, then default."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.hostfile import read_hostfile
from clusterctl.nodes import Node, select
from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.remote.fanout import WIDTH
from clusterctl.transport.base import Limits
from trainer.runlog.run_files import WAIT_S

if TYPE_CHECKING:
    from clusterctl.exclude.leave_out import Chosen
    from clusterctl.remote.cluster import Cluster, Sweep
    from clusterctl.transport.base import Transport

Command = Callable[..., Any]
Option = Callable[[Command], Command]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster part of a command line, resolved."""

    hostfile: Path
    only: str | None
    without: str | None
    width: int
    limits: Limits
    accept_new: bool

    def nodes(self) -> list[Node]:
        """The chosen nodes in the hostfile's order. Raises `HostfileError`."""
        return select(self._all_nodes(), self.only, self.without)

    def _all_nodes(self) -> list[Node]:
        return read_hostfile(self.hostfile, min(WAIT_S, self.limits.run_s or WAIT_S))

    def transport(self) -> Transport:
        """The ssh backend; imports paramiko."""
        from clusterctl.transport.paramiko_backend import ParamikoTransport

        return ParamikoTransport(accept_new=self.accept_new)

    def cluster(self, sweep: Sweep) -> Cluster:
        """The chosen nodes with the ssh backend."""
        return self._cluster(self.nodes(), sweep)

    def cluster_for_run(
        self, output: Output, nodes: Sequence[Node] | None = None
    ) -> tuple[Cluster, Chosen]:
        """As `cluster`, or of other `nodes`, without those that exclude.toml leaves out; says so.

        Raises `ExcludeError`, and `HostfileError` where no node is left.
        """
        from clusterctl.exclude.entries import path_beside, read
        from clusterctl.exclude.leave_out import leave_out

        entries = read(path_beside(self.hostfile))
        given = self.nodes() if nodes is None else nodes
        chosen = leave_out(given, entries, time.time(), named=self.only is not None)
        for sentence in chosen.sentences:
            output.warn(sentence, "warn")
        return self._cluster(chosen.nodes, output.sweep), chosen

    def _cluster(self, nodes: list[Node], sweep: Sweep) -> Cluster:
        from clusterctl.remote.cluster import Cluster

        return Cluster(nodes, self.transport(), self.limits, self.width, sweep)


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


class _Renamed(click.Option):
    """Its first name is that of earlier versions: not shown, accepted with a warning."""

    @property
    def _by_former(self) -> str:
        return f"{self.name} by {self.opts[0]}"

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        every, name, former = self.opts, self.name, self._by_former
        self.opts = every[1:]
        super().add_to_parser(parser, ctx)
        self.name, self.opts = former, every[:1]
        super().add_to_parser(parser, ctx)
        self.name, self.opts = name, every

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        if self._by_former in opts:
            click.echo(f"warning: {self.opts[0]} is now {self.opts[1]}", err=True)
            opts = {str(self.name): opts[self._by_former], **opts}
        return super().consume_value(ctx, opts)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every, self.opts = self.opts, self.opts[1:]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


def option(*words: str, former: str = "", **attributes: Any) -> Option:
    """`click.option` that shows its default; the last of `words` is the help. `former` is a name
    that it had."""
    *names, text = words
    if former:
        own = [] if any(map(str.isidentifier, names)) else [names[0].strip("-").replace("-", "_")]
        names, attributes = [former, *names, *own], {"cls": _Renamed, **attributes}
    return click.option(*names, help=text, **{"show_default": True, **attributes})


def flag(*words: str, former: str = "") -> Option:
    """An option without a value; the last of `words` is the help."""
    return option(*words, former=former, is_flag=True)


def with_options(
    *options: Option, prepare: Callable[[Values], None] | None = None
) -> Callable[[Command], Command]:
    """Give a command these options, in the order of its help; `prepare` changes their values."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            if prepare is not None:
                prepare(values)
            return function(*args, **values)

        made: Command = command
        for one in reversed(options):
            made = one(made)
        return made

    return decorate


def _read_settings(values: Values) -> None:
    argument, given = values.pop("hostfile"), values.pop("hostfile_option")
    source = click.get_current_context().get_parameter_source("hostfile_option")
    if argument and source is ParameterSource.COMMANDLINE and argument != given:
        raise UsageError(f"two hostfiles: {argument} and --hostfile {given}")
    connect_s, command_s = values.pop("connect_timeout"), values.pop("command_timeout")
    values["settings"] = Settings(
        hostfile=argument or given or Path("nodes.txt"),
        limits=Limits(tcp_s=connect_s, command_s=command_s, run_s=values.pop("deadline")),
        **{name: values.pop(name) for name in ("only", "without", "width", "accept_new")},
    )


COMMAND_S = 30.0


def _cluster_options(command_s: float) -> Option:
    return with_options(
        click.argument("hostfile", required=False, type=PATH),
        click.option("--hostfile", "hostfile_option", type=PATH, envvar="CLUSTERCTL_HOSTFILE", help="Same as the argument HOSTFILE. Default: nodes.txt."),
        click.option("-w", "--only", metavar="SET", help="Only these nodes: n[1-3],n7."),
        click.option("-x", "--without", metavar="SET", help="Leave these nodes out."),
        click.option("-f", "--fanout", "width", type=click.IntRange(1, 1024), default=WIDTH, show_default=True, envvar="CLUSTERCTL_FANOUT", help="Nodes talked to at once."),
        click.option("--connect-timeout", type=Duration(0.1), default=3.0, show_default=True, envvar="CLUSTERCTL_CONNECT_TIMEOUT", help="Seconds for the TCP connection."),
        click.option("--command-timeout", type=Duration(0.1), default=command_s, show_default=True, envvar="CLUSTERCTL_COMMAND_TIMEOUT", help="Seconds for what runs on the node."),
        click.option("--deadline", type=Duration(0.1), envvar="CLUSTERCTL_DEADLINE", help="Seconds for all nodes together."),
        click.option("--accept-new", is_flag=True, envvar="CLUSTERCTL_ACCEPT_NEW", help="Write unknown host keys to clusterctl's own known_hosts. A changed key is always refused."),
        prepare=_read_settings,
    )  # fmt: skip


cluster_options = _cluster_options(COMMAND_S)
"""Give a command the argument HOSTFILE and the options about nodes; it receives `settings`."""


def _one_source(values: Values) -> None:
    sources = {"--run": "run_dir", "--replay": "replay", "--demo": "demo"}
    if sum(bool(values.get(name)) for name in sources.values()) > 1:
        *first, last = (option for option, name in sources.items() if name in values)
        raise UsageError(f"{', '.join(first)} and {last} exclude each other")


RUN = "Run directory, its number or its name below outputs/. Default: the newest."
source_options = with_options(
    option("--run", "run_dir", RUN, former="--run-dir", type=PATH, metavar="RUN"),
    flag("--demo", "A simulated cluster of 24 nodes."),
    option("--interval", "Seconds between readings.", type=Duration(0.2, 60), default=1.0),
    prepare=_one_source,
)
"""Give a command that repeats its reading --run, --demo and --interval.

It receives `run_dir`, `demo` and `interval`. At most one of --run, --demo and a --replay of the
command may be given.
"""


def _read_output(values: Values) -> None:
    names = {"json": "as_json", "quiet": "quiet", "verbose": "verbose", "color": "color"}
    values["output"] = Output(**{field: values.pop(name) for field, name in names.items()})


COLORS = click.Choice(["auto", "always", "never"])
COLOR = "Colour on a terminal (auto), always or never."
JSON = "One JSON document on stdout."


def _output_options(json: str) -> Option:
    return with_options(
        option("--json", "as_json", json, is_flag=True, hidden=not json),
        flag("-q", "--quiet", "Only the verdict."),
        click.option("-v", "--verbose", count=True, help="-v reasons and timings, -vv ssh phases."),
        click.option("--color", type=COLORS, default="auto", envvar="CLUSTERCTL_COLOR", help=COLOR),
        prepare=_read_output,
    )


output_options = _output_options(JSON)
"""Give a command --json, -q, -v and --color; it receives `output`."""
line_output_options = _output_options("A JSON document for each line, on stdout.")
"""The same for a command whose output is lines that come one after another."""


class GroupedCommand(click.Command):
    """Its help shows the command's own options first, then those that many commands have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shared = {"Nodes and ssh": set(_SHARED_NAMES), "Output": set(_OUTPUT_NAMES)}
        groups: dict[str, list[tuple[str, str]]] = {"Options": [], **{name: [] for name in shared}}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if isinstance(one, click.Option) and record is not None:
                at = (name for name, names in shared.items() if one.name in names)
                groups[next(at, "Options")].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _names(options: Option) -> list[str]:
    """The names of the parameters that a decorator gives a command."""

    def nothing() -> None:
        pass

    made = click.command("any")(options(nothing))
    return [str(one.name) for one in made.params]


_SHARED_NAMES = _names(cluster_options)
_OUTPUT_NAMES = _names(output_options)


def cluster_command(
    name: str,
    *options: Option,
    examples: str,
    cls: type[click.Command] | None = None,
    json: str = JSON,
    command_s: float = COMMAND_S,
    keeps_answers: bool = False,
) -> Callable[[Command], click.Command]:
    """Make a command of `options`, `cluster_options` and `output_options`.

    Its help is the first line of the module, the function's docstring, and `examples`, a line each.
    `json` is the help of --json, "" for a command that refuses it. `command_s` is the default of
    --command-timeout. One that `keeps_answers` shows at Ctrl-C what the nodes have answered so far.
    """
    every = with_options(*options, _cluster_options(command_s), _output_options(json))

    def decorate(function: Command) -> click.Command:
        if keeps_answers:
            function = _ended_by_interrupt(function)
        summary = (sys.modules[function.__module__].__doc__ or "").partition("\n")[0]
        text = f"{summary}\n\n{inspect.cleandoc(function.__doc__ or '')}"
        epilog = f"\b\nExamples:{examples}"
        return click.command(name, cls=cls or GroupedCommand, help=text, epilog=epilog)(
            every(function)
        )

    return decorate


def _ended_by_interrupt(function: Command) -> Command:
    """After a Ctrl-C that the command has outlived, to show what it knew."""

    @functools.wraps(function)
    def command(*args: Any, output: Output, **values: Any) -> Any:
        output = replace(output, keeps_answers=True)
        try:
            code = function(*args, output=output, **values)
        except ClusterctlError:
            if not output.interrupted.is_set():
                raise
        if output.interrupted.is_set():
            raise KeyboardInterrupt
        return code

    return command


def watch_options(text: str, *, interval_s: float, least_s: float) -> Option:
    """--watch, --interval and --for of a command that can repeat its reading."""

    def check(values: Values) -> None:
        if values["for_s"] and not values["watch"]:
            raise UsageError("--for goes with --watch")

    between, until = "Seconds between two readings of --watch.", "Default: until Ctrl-C."
    least, positive = Duration(least_s), Duration(0, min_open=True)
    return with_options(
        flag("--watch", text),
        option("--interval", "interval_s", between, type=least, default=interval_s),
        option("--for", "for_s", f"Seconds to watch. {until}", type=positive),
        prepare=check,
    )


# Options of several commands with one meaning.
YES = flag("--yes", "Do not ask.")
NO_FOLD = flag("--no-fold", "One line for each node, also for equal ones.")
NO_HISTORY = "Do not read or write the record of the last run."
NO_RECORD = flag("--no-history", NO_HISTORY, former="--no-memory")
