"""The recorded outputs, by folder and name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "captures"


def recorded(name: str) -> str:
    """Text of `chrony/good.tracking.csv`."""
    return (FOLDER / name).read_text(encoding="utf-8", errors="backslashreplace")


def names(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (FOLDER / folder).iterdir())
