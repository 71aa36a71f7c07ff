"""Styles by meaning, for each kind of terminal: 16 million, 256, 16 colours, none.

Colour says nothing that text does not say too: cells hold numbers and marks.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import Any

from rich.color import Color
from rich.style import Style
from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from clusterctl.errors import UsageError
from dashboards.model.table import STALE, UNKNOWN

# From dark to light along one path that colour-blind eyes can follow as well (blue to
# yellow-green); heat goes on to red, where a number near its limit is bad.
_COOL = ((0.0, "#2f4a78"), (0.2, "#3560a0"), (0.45, "#2f83a8"), (0.7, "#2fa79a"), (0.9, "#5fbf7a"), (1.0, "#a5d65c"))  # fmt: skip
_HEAT = ((0.0, "#3560a0"), (0.35, "#2f83a8"), (0.55, "#3fa98a"), (0.72, "#d0b84a"), (0.86, "#e0853a"), (1.0, "#e2495b"))  # fmt: skip
# The same paths as grounds: dark, because a healthy fleet fills the screen and stays there all day.
_COOL_GROUND = ((0.0, "#1a2130"), (0.2, "#1c2f4c"), (0.45, "#1b4763"), (0.7, "#1a5d66"), (0.88, "#1f6b55"), (1.0, "#3d8a4c"))  # fmt: skip
_HEAT_GROUND = ((0.0, "#1c2f4c"), (0.35, "#1b4763"), (0.55, "#226655"), (0.72, "#80702a"), (0.86, "#9c5526"), (1.0, "#ad2f3f"))  # fmt: skip
_SCHEMES = {  # (grounds of cells, of heat, cells as ink, heat as ink, alarm's ground and text)
    "": (_COOL_GROUND, _HEAT_GROUND, _COOL, _HEAT, "#c8283f", "#ffffff"),
    "day": (
        ((0.0, "#e6ecf3"), (0.2, "#d3e3f2"), (0.45, "#bfdcea"), (0.7, "#b5dfd6"), (0.88, "#a9dcb4"), (1.0, "#8fd08f")),
        ((0.0, "#d3e3f2"), (0.35, "#bfdcea"), (0.55, "#b8dfcb"), (0.72, "#eedd9a"), (0.86, "#f2bd8c"), (1.0, "#ee9aa0")),
        ((0.0, "#5a7396"), (0.45, "#256f94"), (0.7, "#1d7d72"), (1.0, "#2b7a35")),
        ((0.0, "#2f5a99"), (0.55, "#2b7a5e"), (0.72, "#8a6d00"), (0.86, "#a85a12"), (1.0, "#b02335")),
        "#c8283f", "#ffffff",
    ),
    "blue-orange": (
        ((0.0, "#1a2130"), (0.25, "#182f4d"), (0.6, "#1a4470"), (0.88, "#1f5a99"), (1.0, "#3a7fc4")),
        ((0.0, "#182f4d"), (0.4, "#1f5a99"), (0.6, "#4d6680"), (0.75, "#806a4a"), (0.88, "#ad6a1e"), (1.0, "#e08214")),
        ((0.0, "#3a587f"), (0.5, "#4a90d9"), (1.0, "#9ad1ff")),
        ((0.0, "#4a90d9"), (0.6, "#9db4c8"), (0.8, "#f2c464"), (1.0, "#ff9a3c")),
        "#f08a1d", "#10141b",
    ),
}  # fmt: skip
_ANSI_COOL = ("blue", "cyan", "cyan", "green", "bright_green")
_ANSI_HEAT = ("blue", "cyan", "green", "yellow", "red")
_ANSI_BARS = ("cyan", "blue", "green", "magenta", "yellow", "red", "default")
_INKS = {  # (colour of the theme, how much of it, of sixteen colours, bold, dim of those)
    "text": ("foreground", 1.0, "default", False, False),
    "strong": ("foreground", 1.0, "default", True, False),
    "dim": ("foreground", 0.5, "default", False, True),
    "label": ("foreground", 0.68, "default", False, True),
    "accent": ("accent", 1.0, "bright_cyan", True, False),
    "good": ("success", 1.0, "green", False, False),
    "warn": ("warning", 1.0, "yellow", True, False),
    "bad": ("error", 1.0, "red", True, False),
    "cursor": ("accent", 1.0, "bright_white", True, False),
}
LEVELS = 24
SILENT = (UNKNOWN, STALE)  # marks of nodes without a reading now
Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Palette:
    text: Style
    strong: Style
    dim: Style
    label: Style
    accent: Style
    good: Style
    warn: Style
    alarm: Style  # on its own ground: has to be seen
    bad: Style
    cursor: Style
    chart: tuple[Style, ...]  # from the bottom to the top of an area
    spark: Style  # small curves in rows
    faint: Style  # the raw values behind a smoothed curve
    cool: tuple[Style, ...]  # grounds of cells by level
    heat: tuple[Style, ...]
    cool_ink: tuple[Style, ...]  # the same as text
    heat_ink: tuple[Style, ...]
    bars: tuple[Style, ...]  # parts of a whole, told apart by their labels too

    def severity(self, name: str) -> Style:
        return self.bad if name == "fail" else self.warn

    def mark(self, mark: str, fine: Style) -> Style:
        """Of a node's mark; `fine` where it has none."""
        return fine if not mark else self.warn if mark in SILENT else self.bad

    def cell(self, level: float | None, hot: bool) -> Style:
        """Ground and text of a grid cell."""
        return self.dim if level is None else _step(self.heat if hot else self.cool, level)

    def ink(self, level: float | None, hot: bool) -> Style:
        """The level as text on the usual ground, for bars and numbers."""
        return self.dim if level is None else _step(self.heat_ink if hot else self.cool_ink, level)


def _step(ramp: tuple[Style, ...], level: float) -> Style:
    return ramp[max(0, min(len(ramp) - 1, int(level * len(ramp))))]


def palette(app: App[object], ground: Color) -> Palette:
    """The palette for the app's theme and terminal, on a ground."""
    plain = app.no_color
    few = app.native_ansi_color or app.console.color_system == "standard"
    variables = app.theme_variables
    if few or plain or ground.triplet is None:
        return _few_colors(plain)
    colors = tuple(variables.get(name, "#888888") for name in _NAMES.split()[:7])
    return _many_colors(colors, ground.triplet, variables.get("cells", ""))


@functools.cache
def _many_colors(colors: tuple[str, ...], ground: Rgb, scheme: str) -> Palette:
    cool_ground, heat_ground, cool, heat, alarm, on_alarm = _SCHEMES.get(scheme, _SCHEMES[""])
    primary, secondary, accent, success, warning, error, foreground = map(_rgb, colors)
    behind = Color.from_rgb(*ground)

    def ink(color: Rgb, part: float = 1.0, bold: bool = False) -> Style:
        return Style(color=Color.from_rgb(*_mix(ground, color, part)), bgcolor=behind, bold=bold)

    theme = dict(zip(_NAMES.split(), map(_rgb, colors), strict=False))
    inks = {name: ink(theme[of], part, bold) for name, (of, part, _, bold, _) in _INKS.items()}
    return Palette(
        **inks,
        alarm=Style(color=on_alarm, bgcolor=Color.from_rgb(*_rgb(alarm)), bold=True),
        chart=tuple(ink(_mix(primary, success, n / 11), 0.55 + 0.45 * n / 11) for n in range(12)),
        spark=ink(_mix(primary, success, 0.5), 0.8),
        faint=ink(primary, 0.75),
        cool=tuple(map(_on, _ramp(cool_ground))),
        heat=tuple(map(_on, _ramp(heat_ground))),
        cool_ink=tuple(map(ink, _ramp(cool))),
        heat_ink=tuple(map(ink, _ramp(heat))),
        bars=tuple(map(ink, (accent, primary, success, secondary, warning, error, foreground))),
    )


@functools.cache
def _few_colors(plain: bool) -> Palette:
    """Named colours of the terminal's own; without any (NO_COLOR) only bold, dim and reverse."""

    def ink(name: str, bold: bool = False, dim: bool = False) -> Style:
        return Style(color="default" if plain else name, bold=bold, dim=dim)

    cool, heat = tuple(map(ink, _ANSI_COOL)), tuple(map(ink, _ANSI_HEAT))
    inks = {name: ink(of, bold, dim) for name, (_, _, of, bold, dim) in _INKS.items()}
    return Palette(
        **inks,
        alarm=Style(color="default" if plain else "red", bold=True, reverse=True),
        chart=(ink("cyan"),),
        spark=ink("cyan"),
        faint=ink("blue", dim=plain),
        cool=cool,
        heat=heat,
        cool_ink=cool,
        heat_ink=heat,
        bars=tuple(map(ink, _ANSI_BARS)),
    )


def _ramp(stops: tuple[tuple[float, str], ...]) -> list[Rgb]:
    colors = []
    for index in range(LEVELS):
        part = index / (LEVELS - 1)
        above = next(i for i, (at, _) in enumerate(stops) if at >= part)
        (low, first), (high, second) = stops[max(0, above - 1)], stops[above]
        between = (part - low) / (high - low) if high > low else 0.0
        colors.append(_mix(_rgb(first), _rgb(second), between))
    return colors


def _on(ground: Rgb) -> Style:
    """Text that can be read on a ground."""
    red, green, blue = ground
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > 140
    return Style(color="#0c1117" if bright else "#dfe6ee", bgcolor=Color.from_rgb(red, green, blue))


def _rgb(text: str) -> Rgb:
    if not text.startswith("#") or len(text) < 7:
        return (136, 136, 136)
    return (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


def _mix(first: Rgb, second: Rgb, part: float) -> Rgb:
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(first, second, strict=True))
    return red, green, blue


# Our themes beside Textual's own.
_NAMES = "primary secondary accent success warning error foreground background surface panel"


def _theme(name: str, colors: str, *, dark: bool = True, cells: str = "") -> Theme:
    """`colors` in the order of _NAMES; `cells` is a scheme of the palette."""
    named: dict[str, Any] = dict(zip(_NAMES.split(), colors.split(), strict=True))
    return Theme(name, **named, dark=dark, variables={"cells": cells} if cells else {})


_NIGHT = "#3f8fb8 #8f7fd8 #58c4dc #6fcf7f #e8b454 #f0657a #d6dde8 #0f131a #141a23 #1c2531"
# Good is blue and bad is orange: told apart with every kind of colour blindness, and in grey by
# lightness. Nothing on any screen needs red against green.
_BLUE_ORANGE = "#4a90d9 #b3a6d9 #9ad1ff #6db3f2 #f2c464 #ff9a3c #dbe2ea #10141b #151b24 #1d2733"
_DAY = "#2d7ba3 #6a58b8 #00708f #217a3c #9a6200 #c22742 #1d2630 #f6f7f9 #eceff3 #dfe5ec"
NIGHT = _theme("clusterctl", _NIGHT)
OURS = (
    NIGHT,
    _theme("clusterctl-blue-orange", _BLUE_ORANGE, cells="blue-orange"),
    _theme("clusterctl-day", _DAY, dark=False, cells="day"),
)
FEW_COLORS = "ansi-dark"  # Textual's theme of the terminal's own sixteen colours


def check_theme(name: str) -> None:
    """Raises `UsageError` for a theme that is neither ours nor Textual's."""
    known = {*BUILTIN_THEMES, *(theme.name for theme in OURS)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise UsageError(f"no theme is called {name!r}", hint=hint)
