"""TOML on every supported Python: the standard library's parser, before 3.11 the package tomli."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse(text: str) -> dict[str, Any]:
    """Raises ValueError with the reason."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
