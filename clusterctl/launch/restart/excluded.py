"""Nodes that the next attempt may not use by exclude.toml, as it is at that moment."""

from __future__ import annotations

import time
from collections.abc import Mapping

from clusterctl.exclude.entries import ExcludeError, read
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules


def excluded(rules: Rules, past: Past) -> Mapping[str, str]:
    """Node and reason, of the file's entries and of nodes with a fault of their own.

    People change the file while a run lasts: what they add is left out, and a node whose entry they
    remove, or whose time is over, may be used again. While the file cannot be read, no node with a
    fault of its own may.
    """
    if rules.exclude_file is None:
        return past.barred
    try:
        entries = read(rules.exclude_file)
    except ExcludeError:
        return past.barred
    now_s, names = time.time(), {node.name for node in rules.every_node}
    held = [one for one in entries if one.node in names and not one.is_over(now_s)]
    own = {name: why for name, why in past.barred.items() if name not in past.entered}
    return own | {one.node: f"excluded: {one.reason}" for one in held}


def unread(rules: Rules) -> str | None:
    """Why exclude.toml cannot be read, and what follows; None where it can."""
    if rules.exclude_file is None:
        return None
    try:
        read(rules.exclude_file)
    except ExcludeError as error:
        return f"{error}; nodes that people have added to it since the launch are used"
    return None
