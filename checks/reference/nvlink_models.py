"""Which GPUs have their NVLinks wired on a board, and which have them over bridges, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Names by nvidia-smi: a card says PCIe or NVL, or is none of the sockets' models. GH200 may stand
# alone. Boards with SXM2 join no GPU with every other (a hybrid cube mesh).
_CARD = re.compile(
    r"PCIE\b|\bNVL\b|RTX|Quadro|GeForce|TITAN|\bA[34]0\b|\bA800 40GB Active", re.IGNORECASE
)
_SOCKET = re.compile(r"SXM|HGX|\bHBM3|\bG?B[23]\d\d\b|\bH(?:20|100|200|800)\b")
# Cards whose bridges use fewer links than the card lists: links that are up.
_BRIDGED: Sequence[tuple[re.Pattern[str], int]] = (
    (re.compile(r"\bH100 (?:NVL|PCIe)\b", re.IGNORECASE), 12),
)


def is_card(name: object) -> bool:
    """Whether a GPU of this name has NVLink only over a bridge, if at all."""
    return _CARD.search(str(name)) is not None


def is_wired(name: object) -> bool:
    """Whether all links of a GPU of this name are wired on its board."""
    return not is_card(name) and _SOCKET.search(str(name)) is not None


def is_joined_with_all(name: object) -> bool:
    return is_wired(name) and "SXM2" not in str(name)


def links_of_bridge(name: object) -> int | None:
    """Links that the bridges of a card use where the card lists more."""
    return next((count for kind, count in _BRIDGED if kind.search(str(name))), None)
