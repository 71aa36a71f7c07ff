"""clusterctl.toml: the defaults of options, for all commands or for one.

The user's file applies everywhere, the one of the current folder takes precedence over it. That one
may have come with somebody's project: it chooses nodes, limits and looks, and nothing that runs
programs, lowers guards, opens ports or writes files.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from checks import units
from clusterctl.errors import UsageError
from clusterctl.payload.files.ownership import changed_by_others

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path("clusterctl.toml")
MAX_BYTES = 1 << 20

PERSONAL = frozenset(
    (
        "exec", "py_spy", "python", "workdir", "env",  # programs that are run, and how
        "ras",  # where nodes connect to
        "accept_new", "sudo", "yes", "force", "skip_preflight",  # guards
        "listen", "host", "port", "web", "share",  # who may look
        "out", "copies", "save_to", "log", "record", "write_good", "junit", "speedscope", "once", "bundle", "note", "repaired",  # what is written
        "presets", "prompts",  # whose prompts are read, and logged as captions
        "match", "user", "gpus", "all_runs", "all", "signal", "stop",  # whose processes are ended or read
    )
)  # fmt: skip
"""Options that only the user's own file may set; a test fails for a new one that is not judged."""


def config_folder() -> Path:
    """Of the user's own settings and known hosts."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clusterctl"


def load_defaults(
    name: str, commands: Sequence[str], load: Callable[[str], click.Command]
) -> dict[str, Any]:
    """click's defaults for the command `name`: keys are its long options, with - or _.

    Top-level keys hold for every command that has such an option, a table `[gpus]` for one. `load`
    gives a command by its name. Raises `UsageError` for files that others can change, for unknown
    keys and tables, for wrong values, and for `PERSONAL` keys of the current folder.
    """
    own = config_folder() / FILE
    known = options(load(name))
    chosen: dict[str, Any] = {}
    for path in (own, FILE):
        data = _read_toml(path)
        tables = {key for key, value in data.items() if isinstance(value, dict)}
        for strange in sorted(tables - set(commands)):
            near = difflib.get_close_matches(strange, commands, 1)
            hint = f"did you mean [{near[0]}]?" if near else "a table has the name of a command"
            text = f"{path.absolute()}: no command is called {strange}"
            raise UsageError(text, hint=hint)
        _refuse_no_tables(path, data, commands, load)
        common = {_plain(key): data[key] for key in data if key not in tables}
        table = data[name] if name in tables else {}
        given = {_plain(key): value for key, value in table.items()}
        if not common.keys() <= known.keys():  # only now: 0.1 s of imports
            everything = {key for other in commands for key in options(load(other))}
            _refuse_unknown(path, "", common, everything)
        _refuse_unknown(path, f" of [{name}]", given, known)
        given = {**common, **given}
        if path is FILE and (refused := ", ".join(sorted(PERSONAL & set(given)))):
            text = f"{path.absolute()} may not set {refused}: it may have come with a project"
            raise UsageError(text, hint=f"your own {own} may")
        for key in set(given) & set(known):
            is_one = known[key].multiple and not isinstance(given[key], list)
            value = [given[key]] if is_one else given[key]
            _refuse_value(f"{path}: {key} = {given[key]!r}", known[key], value)
            chosen[str(known[key].name)] = value
    return chosen


def _refuse_no_tables(
    path: Path, data: dict[str, Any], commands: Sequence[str], load: Callable[[str], click.Command]
) -> None:
    """`status = 1`, `[[gpus]]`: the name of a command with what is no table. `nodes` and others are
    names of options as well."""
    for key, value in data.items():
        if isinstance(value, dict) or key not in commands:
            continue
        is_tables = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        if is_tables or not any(_plain(key) in options(load(other)) for other in commands):
            text = f"{path.absolute()}: {key} is the name of a command, and here it is no table"
            raise UsageError(text, hint=f"write [{key}], and its options below")


def options(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their long names, without dashes and with _."""
    return {
        _plain(word[2:]): param
        for param in command.params
        if isinstance(param, click.Option)
        for word in param.opts
        if word.startswith("--")
    }


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _refuse_unknown(path: Path, where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    for key in sorted(set(keys) - set(known)):
        hint = "keys are long options"
        if near := difflib.get_close_matches(key, list(known), 1):
            hint = f"did you mean --{near[0].replace('_', '-')}?"
        raise UsageError(
            f"{path.absolute()}: no option --{key.replace('_', '-')}{where}", hint=hint
        )


def _refuse_value(where: str, option: click.Option, value: Any) -> None:
    context = click.Context(click.Command(""))
    try:
        is_many = option.multiple or option.nargs != 1
        if isinstance(value, dict) or isinstance(value, list) != is_many:
            raise TypeError
        if isinstance(value, float) and isinstance(option.type, click.types.IntParamType):
            raise TypeError  # 3.7 would count as 3
        option.process_value(context, value)
    except (click.BadParameter, TypeError, AttributeError, ArithmeticError):
        # The others: click, of a table, and of a number without end.
        words = ["true or false"] if option.is_flag else option.get_help_record(context) or ()
        raise UsageError(
            f"{where} is no value of {option.opts[-1]}", hint="  ".join(words)
        ) from None


def _read_toml(path: Path) -> dict[str, Any]:
    """The file's contents; nothing where there is no such file. Raises `UsageError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return {}
    with os.fdopen(descriptor, "rb") as file:
        if why := changed_by_others(found):
            hint = "make it yours alone (chown, chmod go-w), or work in another folder"
            text = f"{path.absolute()} {why}, and it sets how clusterctl works"
            raise UsageError(text, hint=hint)
        if found.st_size > MAX_BYTES:
            raise UsageError(f"{path} cannot be read: it is longer than {units.size(MAX_BYTES)}")
        try:
            return parse_toml(file.read(MAX_BYTES).decode("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError with the reason."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # int() refuses it, with advice for programmers
        if "limit" not in str(error):
            raise
        raise ValueError("it holds a number of thousands of digits") from None
