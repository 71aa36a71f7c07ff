"""Our themes beside Textual's own. `clusterctl-blue-orange` is for colour-blind eyes."""

from __future__ import annotations

import difflib

from textual.theme import BUILTIN_THEMES, Theme

from clusterctl.errors import UsageError

_NAMES = ("primary", "secondary", "accent", "success", "warning", "error", "foreground", "background", "surface", "panel")  # fmt: skip


def _theme(name: str, colors: str, *, dark: bool = True, cells: str = "") -> Theme:
    """`colors` in the order of _NAMES; `cells` is a scheme of the palette."""
    variables = {"cells": cells} if cells else {}
    return Theme(name, **dict(zip(_NAMES, colors.split(), strict=True)), dark=dark, variables=variables)  # type: ignore[arg-type]  # fmt: skip


NIGHT = _theme(
    "clusterctl", "#3f8fb8 #8f7fd8 #58c4dc #6fcf7f #e8b454 #f0657a #d6dde8 #0f131a #141a23 #1c2531"
)
# Good is blue and bad is orange: told apart with every kind of colour blindness, and in grey by
# lightness. Nothing on any screen needs red against green.
BLUE_ORANGE = _theme(
    "clusterctl-blue-orange",
    "#4a90d9 #b3a6d9 #9ad1ff #6db3f2 #f2c464 #ff9a3c #dbe2ea #10141b #151b24 #1d2733",
    cells="blue-orange",
)
DAY = _theme(
    "clusterctl-day",
    "#2d7ba3 #6a58b8 #00708f #217a3c #9a6200 #c22742 #1d2630 #f6f7f9 #eceff3 #dfe5ec",
    dark=False,
    cells="day",
)
OURS = (NIGHT, BLUE_ORANGE, DAY)
FEW_COLORS = "ansi-dark"  # Textual's theme of the terminal's own sixteen colours


def check(name: str | None) -> None:
    """Raises `UsageError` for a theme that is neither ours nor Textual's."""
    known = {*BUILTIN_THEMES, *(theme.name for theme in OURS)}
    if name is not None and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise UsageError(f"no theme is called {name!r}", hint=hint)
