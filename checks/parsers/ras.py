"""RAS answers of NCCL: JSON from 2.28.7 on, text before.

Sources: src/ras/client_support.cc of NCCL 2.24.3, 2.26.2, 2.28.9 and 2.30.7, and the page "RAS" of
its user guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from checks.facts import Maybe, RasAnswer, RasComm, RasMissing, RasRank, Unknown
from checks.parsers.ras_text import parse_text

MOST_VALUES = 400_000  # values, and what opens a list or an object: 17 for each rank
IN_PROGRESS = 7


def parse_ras(text: str, *, is_cut: bool = False) -> Maybe[RasAnswer]:
    """The answer to VERBOSE STATUS; never raises."""
    bare = text.strip()
    if not bare:
        return Unknown("RAS answered nothing")
    if is_cut:
        return Unknown("the answer of RAS is longer than what is kept")
    if bare.startswith("{"):
        return _parse_json(bare)
    return parse_text(bare)


def _parse_json(text: str) -> Maybe[RasAnswer]:
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        return Unknown("the answer of RAS has too many values")
    try:
        found = json.loads(text)
        comms = tuple(_comm(one) for one in found["communicators"])
        ras = found.get("ras") or {}
        timeouts = _whole(ras.get("timeouts_count", 0))
        return RasAnswer(_word(found["nccl_version"]), comms, True, timeouts=timeouts)
    except RecursionError:
        return Unknown("the answer of RAS is nested too deeply")
    except KeyError as error:
        return Unknown(f"the answer of RAS has no {error.args[0]}")
    except (ValueError, TypeError, AttributeError) as error:
        return Unknown(f"the answer of RAS cannot be read: {str(error)[:120]}")


def _comm(one: Mapping[str, Any]) -> RasComm:
    ranks = tuple(_rank(row) for row in one["ranks"])
    missing = tuple(_missing(row) for row in one.get("missing_ranks", ()))
    key = f"{_word(one['hash'])} {_word(one.get('secondary_hash', ''))}"
    return RasComm(key.strip(), _whole(one["size"]), ranks, missing)


def _rank(row: Mapping[str, Any]) -> RasRank:
    status = row.get("status") or {}
    started, running = _whole(status.get("init_state", 0)), _whole(status.get("async_error", 0))
    if status.get("abort_flag"):
        word = "ABORT"
    elif status.get("finalize_called") or status.get("destroy_flag"):
        word = "FINALIZE"
    else:
        word = "INIT" if started else "RUNNING"
    error = next((code for code in (started, running) if code not in (0, IN_PROGRESS)), 0)
    counts = {_word(name): _whole(value) for name, value in row["collective_counts"].items()}
    return RasRank(_whole(row["rank"]), *_process(row), counts, word, error)


def _missing(row: Mapping[str, Any]) -> RasMissing:
    status = row.get("status") or {}
    flags = bool(status.get("unresponsive")), bool(status.get("considered_dead"))
    return RasMissing(_whole(row["rank"]), *_process(row), *flags)


def _process(row: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """(host, process id); RAS writes "unknown" and -1 for what it does not know."""
    host, pid = _word(row.get("host", "unknown")), _whole(row.get("pid", -1))
    return (host if host not in ("unknown", "") else None), (pid if pid > 0 else None)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 64:
        raise ValueError(f"{str(value)[:40]!r} is not a valid number")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or len(value) > 300:
        raise ValueError(f"{str(value)[:40]!r} is not a valid name")
    return "".join(char for char in value if char.isprintable())
