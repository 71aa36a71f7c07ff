"""The command group: loads a command's module when it is asked for, turns errors into sentences.

`clusterctl --help` imports click and this file, nothing else: a test holds that.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from clusterctl.errors import ClusterctlError, UsageError

# In the order of a working day; a test compares this list with commands/.
COMMANDS = (
    "demo",
    "nodes",
    "run",
    "gpus",
    "clock",
    "fabric",
    "env",
    "push",
    "data",
    "preflight",
    "launch",
    "top",
    "watch",
    "export",
    "dump-stacks",
    "stop",
    "kill",
)


def _module_name(command: str) -> str:
    return "clusterctl.commands." + command.replace("-", "_")


class LazyGroup(click.Group):
    """Knows its commands by file name; `--help` reads first lines without importing anything."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load(cmd_name) if cmd_name in COMMANDS else None

    def _load(self, name: str) -> click.Command:
        command = importlib.import_module(_module_name(name)).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from clusterctl.defaults import load_defaults

        _refuse_strangers()
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            ctx.default_map = {name: load_defaults(name, COMMANDS, self._load)}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in COMMANDS])


def _summary(command: str) -> str:
    """The first line of the module's docstring."""
    name = command.replace("-", "_") + ".py"
    path = os.path.join(os.path.dirname(__file__), "commands", name)  # noqa: PTH118, PTH120
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.readline().strip().strip('"').rstrip(".")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"clusterctl {version('clusterctl')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 good, 1 a finding or a node failed, 2 usage, 3 could not find out,
4 declined or needs --yes, 130 interrupted.

TIME is seconds (90, 0.5) or 10m, 1h30m, 2d.

\b
Examples:
  clusterctl demo
  clusterctl gpus nodes.txt""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Print the version and exit.",
)  # fmt: skip
def group() -> None:
    """Operate GPU machines and train on them over plain ssh: a hostfile is all it needs."""


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code of the table.

    What it writes (plans, logs, reports, recordings) is for this user alone, unless an option says more.
    """
    os.umask(0o077)
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """As `main`, but returns the exit code."""
    try:
        result = group.main(args, prog_name="clusterctl", standalone_mode=False)
        _flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except ClusterctlError as error:
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
        if "-vv" in args:
            import traceback

            traceback.print_exc()
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing to say to it. Keep the interpreter's own
        # flush at exit from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _flush() -> None:
    sys.stdout.flush()


def _refuse_strangers() -> None:
    """`checks` and `trainer` are names that other distributions install too."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parent.parent
    for name in ("checks", "trainer", "dashboards"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent.parent != home:
            where = spec.origin if spec else "nowhere"
            raise UsageError(
                f"the package {name!r} comes from {where}, not from beside clusterctl in {home}",
                hint="another distribution owns that name here; use an environment of its own",
            )
