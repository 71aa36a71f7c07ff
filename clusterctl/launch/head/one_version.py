"""A supervisor lives for weeks: it runs the code of its start, whatever is installed meanwhile.

What it imports or sends at its first failure would otherwise be of another version than what runs.
"""

from __future__ import annotations

import importlib
import pkgutil

from clusterctl.remote import payload
from clusterctl.stacks import files

_PACKAGES = ("checks", *(f"clusterctl.{name}" for name in ("launch", "remote", "stacks")))
_PACKAGES += ("clusterctl.exclude", "clusterctl.ledger")
_MODULES = ("clusterctl.defaults",)  # imported in functions


def keep_code() -> None:
    """Import and read now what is needed later: 0.1 s."""
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(found.name)
    for name in _MODULES:
        importlib.import_module(name)
    payload.keep()
    files.template()
