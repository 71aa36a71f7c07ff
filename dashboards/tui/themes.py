"""Our themes beside Textual's own. `clusterctl-blue-orange` is for colour-blind eyes."""

from __future__ import annotations

from textual.theme import Theme

NIGHT = Theme(
    name="clusterctl",
    primary="#3f8fb8",
    secondary="#8f7fd8",
    accent="#58c4dc",
    success="#6fcf7f",
    warning="#e8b454",
    error="#f0657a",
    foreground="#d6dde8",
    background="#0f131a",
    surface="#141a23",
    panel="#1c2531",
    dark=True,
)

# Good is blue and bad is orange: told apart with every kind of colour blindness, and in grey by
# lightness. Nothing on any screen needs red against green.
BLUE_ORANGE = Theme(
    name="clusterctl-blue-orange",
    primary="#4a90d9",
    secondary="#b3a6d9",
    accent="#9ad1ff",
    success="#6db3f2",
    warning="#f2c464",
    error="#ff9a3c",
    foreground="#dbe2ea",
    background="#10141b",
    surface="#151b24",
    panel="#1d2733",
    dark=True,
    variables={"cells": "blue-orange"},
)

DAY = Theme(
    name="clusterctl-day",
    primary="#2d7ba3",
    secondary="#6a58b8",
    accent="#00708f",
    success="#217a3c",
    warning="#9a6200",
    error="#c22742",
    foreground="#1d2630",
    background="#f6f7f9",
    surface="#eceff3",
    panel="#dfe5ec",
    dark=False,
    variables={"cells": "day"},
)

OURS = (NIGHT, BLUE_ORANGE, DAY)
FEW_COLORS = "ansi-dark"  # Textual's theme of the terminal's own sixteen colours
