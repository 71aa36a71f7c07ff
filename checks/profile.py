"""Thresholds and expected values of the checks: one field, one default, one reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.finding import Verdict


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits where a peer or a vendor states one; between nodes the majority is the baseline."""

    # Peers warn at 80 to 95 % of a disk; the bytes that a launch needs are judged apart.
    disk_used_warn: float = 0.90
    inodes_used_warn: float = 0.90
    # A rank that hangs draws 100 W beside peers at 700 W; the mean of a node hides it.
    power_outlier_share: float = 0.5
    # trainer needs it; payloads run on 3.8.
    python_min: tuple[int, int] = (3, 10)
    # PyAV 14.0 to 14.2 hang in the slice threads of HEVC.
    av_bad_from: tuple[int, int] = (14, 0)
    av_bad_to: tuple[int, int] = (14, 2)
    # Checks whose bad verdicts become SKIP, and others that get another verdict, by id.
    silence: tuple[str, ...] = ()
    severity: Mapping[str, Verdict] = field(default_factory=dict)


def profile_from(data: Mapping[str, Any]) -> Profile:
    """A profile from plain data on top of the defaults. Raises `ProfileError` for a bad key or type."""
    known = {item.name: item for item in dataclasses.fields(Profile)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ProfileError(f"no threshold is called {key!r}; there are: {', '.join(known)}")
        values[name] = _convert(key, value, getattr(Profile(), name))
    return Profile(**values)


def _convert(key: str, value: Any, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            kind = type(default[0]) if default else str
            return tuple(kind(item) for item in value)
        if isinstance(default, Mapping):
            return {str(id): Verdict(verdict) for id, verdict in value.items()}
        return float(value)
    except (TypeError, ValueError, AttributeError):
        raise ProfileError(f"{key}: cannot use {value!r}") from None
