"""The command group: imports a command's module when it is run, turns errors into sentences.

`clusterctl --help` imports click and this file, nothing else; a test checks that.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from typing import NoReturn

import click

from clusterctl.errors import ClusterctlError, OutputLost, UsageError

# In the order of a working day. Entry points instead of this list would cost `--help` 20 ms and be
# missing in a checkout until it is installed again.
GROUPS = {
    "Start here": ["demo", "nodes", "preflight"],
    "Look at nodes": ["gpus", "clock", "fabric", "env", "top", "watch", "export"],
    "Work on nodes": ["run", "push", "data", "exclude"],
    "Train": ["plan-checkpoints", "launch", "attach", "stop", "kill"],
    "Look at runs": ["runs", "status", "logs", "why", "dump-stacks", "report", "compare"],
    "Videos of a run": ["serve", "gallery"],
}
COMMANDS = [name for names in GROUPS.values() for name in names]
HELP = "help"  # `clusterctl help [COMMAND]`, as git and kubectl have it
_OF_DASHBOARDS = ("top", "watch", "export", "report", "compare", "serve", "gallery")
FOLDERS = {
    **dict.fromkeys(_OF_DASHBOARDS, "dashboards.commands"),
    **dict.fromkeys(("runs", "status", "attach", "logs", "why"), "clusterctl.commands.runs"),
}
OPEN_FILES = 65536  # enough for every cluster; old programs close all numbers up to their limit
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def _module_name(command: str) -> str:
    return f"{FOLDERS.get(command, 'clusterctl.commands')}.{command.replace('-', '_')}"


def _load(name: str) -> click.Command:
    command: click.Command = importlib.import_module(_module_name(name)).command
    return command


class LazyGroup(click.Group):
    """Knows its commands by file name; `--help` reads first lines without importing anything."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from clusterctl.defaults import load_defaults

        _refuse_foreign_packages()
        if args[0] == HELP:
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(f"no command is called {args[0]}", hint=near_command(args[0]))
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            ctx.default_map = {name: load_defaults(name, COMMANDS, _load)}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), _summary(name)) for name in names])


def near_command(name: str) -> str:
    """A hint with the command that is most like a wrong one."""
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {near[0]}?" if near else "clusterctl --help lists the commands"


def _summary(command: str) -> str:
    """The first line of the module's docstring."""
    path = os.path.join(HOME, *_module_name(command).split("."))  # noqa: PTH118
    with open(f"{path}.py", encoding="utf-8") as file:  # noqa: PTH123
        return file.readline().strip().strip('"').rstrip(".")


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 good, 1 a finding or a node failed, 2 usage, 3 could not find out,
4 declined or needs --yes, 93 a run that was given up, 130 interrupted.

TIME is seconds (90, 0.5) or 10m, 1h30m, 2d.

\b
Examples:
  clusterctl demo
  clusterctl gpus nodes.txt""",
)
@click.version_option(
    package_name="clusterctl", message="%(prog)s %(version)s", help="Print the version and exit."
)
def group() -> None:
    """Operate GPU machines and train on them over plain ssh: a hostfile is all it needs."""


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code of the table."""
    os.umask(0o077)  # plans, logs, reports and recordings are for this user alone
    _prepare_streams()
    _allow_open_files()
    code = run(sys.argv[1:] if args is None else args)
    try:
        sys.stdout.flush()
    except OSError:
        # Reported already. The interpreter flushes again at its end and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(args: list[str]) -> int:
    """As `main`, but returns the exit code."""
    try:
        result = _called(args)
        _flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # whose message is the help
            error.message = _quoted(error.message, args)  # type: ignore[misc]
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        cause = error.__cause__  # which click makes an Abort
        said = str(cause if isinstance(cause, KeyboardInterrupt) else error)
        _say("; ".join(["interrupted", *([said] if said else [])]))
        return 130
    except OSError as error:
        text, hint, code = _fault_of_process(error)
        _say(_quoted(f"error: {text}", args), f"  hint: {hint}")
        if "-vv" in args:
            import traceback

            traceback.print_exc()
        return code
    except ClusterctlError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            return READER_GONE
        _say(*(_quoted(line, args) for line in (f"error: {error}", *error.more)))
        if error.hint:
            _say(_quoted(f"  hint: {error.hint}", args))
        if "-vv" in args:
            import traceback

            traceback.print_exc()
        return error.exit_code


def _called(args: list[str]) -> object:
    """As the command itself; click prints help and version: these raise `OutputLost` here, too."""
    try:
        return group.main(args, prog_name="clusterctl", standalone_mode=False)
    except OSError as error:
        import traceback

        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if frame.f_code is click.echo.__code__:
            raise OutputLost(error) from error
        raise


READER_GONE = 141  # as a shell has it for SIGPIPE, which `head` and `less` cause


def _fault_of_process(error: OSError) -> tuple[str, str, int]:
    """Sentence, hint and exit code of what may fail anywhere."""
    if error.errno == errno.EMFILE:
        hint = "each node needs one: raise the limit (ulimit -n), or name fewer nodes (-w)"
        return "this process may open no more files", hint, 3
    if error.errno == errno.ENAMETOOLONG:
        return f"no file has a name so long: {error.filename}", "look for a missing space", 2
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        return "the current folder has been removed", "cd to another one", 2
    from clusterctl.closed_places import why_closed

    return why_closed(error), "look at that place (ls -ld, df); -vv shows where it was used", 3


LONGEST_WORD, LONGEST_LINE = 255, 4000  # characters; a name of a file has at most 255


def _quoted(text: str, args: list[str]) -> str:
    """A sentence as one line, in which long words are cut: also those of the user with spaces."""
    import re

    from trainer.runlog.output import printable

    given = {word for arg in args for word in (arg, arg.partition("=")[2])}
    for word in sorted(given, key=len, reverse=True):
        if len(word) <= LONGEST_WORD:
            break
        text = text.replace(word, _cut(word, LONGEST_WORD))
    text = printable(text.rstrip("\n"))
    text = re.sub(rf"[^\s,]{{{LONGEST_WORD + 1},}}", lambda one: _cut(one[0], LONGEST_WORD), text)
    return _cut(text, LONGEST_LINE)


def _cut(text: str, most: int) -> str:
    """Its begin and its end."""
    tail = most // 5
    return text if len(text) <= most else f"{text[: most - tail - 1]}…{text[-tail:]}"


def _say(*lines: str) -> None:
    """Lines on stderr, which may be closed or full."""
    with contextlib.suppress(OSError):
        click.echo("\n".join(lines), err=True)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputLost(error) from error


def _prepare_streams() -> None:
    """Standard streams that are closed, or whose encoding lacks characters, must not end a command.

    A closed stdout is opened so that writing fails: its lines are data and must not be lost.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Takes the lowest free number: this one.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if descriptor and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _allow_open_files() -> None:
    """Each node's connection is an open file, and most systems allow 1,024 until a process asks for
    more. What is started here, as a supervisor, is allowed as many."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _refuse_foreign_packages() -> None:
    """`checks` and `trainer` are names that other distributions install too."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parent.parent
    for name in ("checks", "trainer", "dashboards"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parents[1] != home:
            where = f"{spec.origin if spec else 'nowhere'}, not from beside clusterctl in {home}"
            hint = "another distribution owns that name here; use a separate environment"
            raise UsageError(f"the package {name!r} comes from {where}", hint=hint)
