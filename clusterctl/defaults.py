"""clusterctl.toml: the defaults of options, for all commands or for one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError


def load_defaults(commands: Iterable[str]) -> dict[str, Any]:
    """click's default_map from clusterctl.toml here, else in the user's config folder.

    Top-level keys hold for every command, a table `[gpus]` for one. Raises `UsageError`.
    """
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for path in (Path("clusterctl.toml"), config_home / "clusterctl" / "clusterctl.toml"):
        if path.is_file():
            return _read_toml(path, commands)
    return {}


def _read_toml(path: Path, commands: Iterable[str]) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    data = {
        key.replace("-", "_") if not isinstance(value, dict) else key: value
        for key, value in data.items()
    }
    common = {key: value for key, value in data.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    strangers = set(tables) - set(commands)
    if strangers:
        raise UsageError(f"{path}: no command is called {', '.join(sorted(strangers))}")
    return {name: {**common, **tables.get(name, {})} for name in commands}
