"""What a command works on and how: flag, then environment, then clusterctl.toml, then default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clusterctl.errors import UsageError
from clusterctl.nodes import Node, read_hostfile, select
from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.remote.fanout import WIDTH
from clusterctl.transport.base import Limits

if TYPE_CHECKING:
    from clusterctl.transport.base import Transport


Command = Callable[..., Any]


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that gives a command these click options, in this order of its help."""

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


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
        return select(read_hostfile(self.hostfile), self.only, self.without)

    def transport(self) -> Transport:
        """The ssh backend; imports paramiko."""
        from clusterctl.transport.paramiko_backend import ParamikoTransport

        return ParamikoTransport(accept_new=self.accept_new)


_cluster = with_options(
    click.argument("hostfile", required=False, type=click.Path(path_type=Path)),
    click.option("--hostfile", "hostfile_option", type=click.Path(path_type=Path), envvar="CLUSTERCTL_HOSTFILE", help="Same as the argument HOSTFILE. Default: nodes.txt."),
    click.option("-w", "--only", metavar="SET", help="Only these nodes: n[1-3],n7."),
    click.option("-x", "--without", metavar="SET", help="Leave these nodes out."),
    click.option("-f", "--fanout", "width", type=click.IntRange(1, 1024), default=WIDTH, show_default=True, envvar="CLUSTERCTL_FANOUT", help="Nodes talked to at once."),
    click.option("--connect-timeout", type=Duration(0.1), default=3.0, show_default=True, envvar="CLUSTERCTL_CONNECT_TIMEOUT", help="Seconds for the TCP connection."),
    click.option("--command-timeout", type=Duration(0.1), default=30.0, show_default=True, envvar="CLUSTERCTL_COMMAND_TIMEOUT", help="Seconds for what runs on the node."),
    click.option("--deadline", type=Duration(0.1), envvar="CLUSTERCTL_DEADLINE", help="Seconds for all nodes together."),
    click.option("--accept-new", is_flag=True, envvar="CLUSTERCTL_ACCEPT_NEW", help="Write unknown host keys to clusterctl's own known_hosts. A changed key is always refused."),
)  # fmt: skip


def cluster_options(function: Command) -> Command:
    """Give a command the argument HOSTFILE and the options about nodes; it receives `settings`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        argument, option = kwargs.pop("hostfile"), kwargs.pop("hostfile_option")
        source = click.get_current_context().get_parameter_source("hostfile_option")
        if argument and source is ParameterSource.COMMANDLINE and argument != option:
            raise UsageError(f"two hostfiles: {argument} and --hostfile {option}")
        kwargs["settings"] = Settings(
            hostfile=argument or option or Path("nodes.txt"),
            only=kwargs.pop("only"),
            without=kwargs.pop("without"),
            width=kwargs.pop("width"),
            limits=Limits(
                tcp_s=kwargs.pop("connect_timeout"),
                command_s=kwargs.pop("command_timeout"),
                run_s=kwargs.pop("deadline"),
            ),
            accept_new=kwargs.pop("accept_new"),
        )
        return function(*args, **kwargs)

    return _cluster(wrapped)


_source = with_options(
    click.option(
        "--run",
        "--run-dir",
        "run_dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Run directory. Default: the one below outputs/ that was written last.",
    ),
    click.option("--demo", is_flag=True, help="An invented cluster of 24 nodes."),
    click.option(
        "--interval",
        type=Duration(0.2, 60),
        default=1.0,
        show_default=True,
        help="Seconds between readings.",
    ),
)


def source_options(function: Command) -> Command:
    """Give a command that goes on looking --run, --demo and --interval.

    It receives `run_dir`, `demo` and `interval`. At most one of --run, --demo and a --replay of its
    own may be given.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        sources = {"--run": "run_dir", "--replay": "replay", "--demo": "demo"}
        if sum(bool(kwargs.get(name)) for name in sources.values()) > 1:
            *first, last = (option for option, name in sources.items() if name in kwargs)
            raise UsageError(f"{', '.join(first)} and {last} exclude each other")
        return function(*args, **kwargs)

    return _source(wrapped)


_output = with_options(
    click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Only the verdict."),
    click.option("-v", "--verbose", count=True, help="-v reasons and timings, -vv ssh phases."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        envvar="CLUSTERCTL_COLOR",
        help="Colour on a terminal (auto), always or never.",
    ),
)


def output_options(function: Command) -> Command:
    """Give a command --json, -q, -v and --color; it receives `output`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kwargs["output"] = Output(
            json=kwargs.pop("as_json"),
            quiet=kwargs.pop("quiet"),
            verbose=kwargs.pop("verbose"),
            color=kwargs.pop("color"),
        )
        return function(*args, **kwargs)

    return _output(wrapped)
