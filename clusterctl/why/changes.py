"""What changed since the last attempt, or the last run of the same config, that worked.

Compared is what the run directory records: nodes, number of ranks, the trainer's code, config,
Python, variables and command. What is not recorded is said.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.nodes import fold
from clusterctl.payload.secrets.marks import HIDDEN, is_secret
from clusterctl.payload.secrets.mask import hide
from clusterctl.runs.attempts import DONE, Attempt
from clusterctl.runs.find import EVENTS_FILE, PLAN_FILE, runs_by_time
from clusterctl.runs.journal import Journal, after_event, launcher_event, planned_nodes
from trainer.runlog import run_files
from trainer.runlog.telemetry import FILE, Event, decode

CONFIG_FILE, SAMPLER = "config.json", "sampler.json"
MOST_RUNS = 50  # that are looked at, the newest first
MOST = 40  # changes that are kept
LAST_BYTES = 1 << 16
# Differ in every run, or are the launcher's own.
_OWN = ("CLUSTERCTL_", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_NEVER = ("package versions", "the data set's contents")


@dataclass(frozen=True, slots=True)
class Changes:
    """`since` names what worked, "" where nothing did. Each change is (what, before, now)."""

    since: str
    changes: tuple[tuple[str, str, str], ...] = ()
    not_recorded: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        rows = [{"what": what, "before": old, "now": new} for what, old, new in self.changes]
        return {
            "since": self.since or None,
            "changes": rows,
            "not_recorded": list(self.not_recorded),
        }


def changes_of(run_dir: Path, recorded: Any, number: int, failed: Attempt | None) -> Changes:
    """Against the attempt before that took steps, else against another run that ended well."""
    before = [
        one for one in recorded.account.attempts if one.number < number and one.first is not None
    ]
    if failed is not None and before:
        return _attempts(before[-1], failed)
    other = _last_good(run_dir, recorded.plan.get("config"))
    if other is None:
        return Changes("")
    return between(other, run_dir, f"run {other.name}, which ended well")


def _attempts(good: Attempt, failed: Attempt) -> Changes:
    rows = [
        ("nodes", fold(good.nodes), fold(failed.nodes)),
        ("ranks", _text(good.world), _text(failed.world)),
        ("begins from", good.checkpoint or "the beginning", failed.checkpoint or "the beginning"),
    ]
    found = tuple((what, old, new) for what, old, new in rows if old != new)
    never = ("code and config of each attempt", *_NEVER)
    return Changes(f"attempt {good.number}, which took steps", found, never)


def _last_good(run_dir: Path, config: Any) -> Path | None:
    """The newest other run of that config, beside this one, that ended well."""
    if not isinstance(config, str):
        return None
    here = run_dir.resolve()
    others = [path for path in runs_by_time(here.parent) if path.resolve() != here]
    for path in others[:MOST_RUNS]:
        if run_files.object_in(path, PLAN_FILE).get("config") == config and _ended_well(path):
            return path
    return None


def _ended_well(path: Path) -> bool:
    journal = Journal()
    for line in _last_lines(path / EVENTS_FILE):
        event = launcher_event(line)
        if event is not None:
            journal = after_event(journal, event)
    if journal.end is not None:
        return journal.end.exit_code == 0
    records = [record for record in map(decode, _last_lines(path / FILE)) if record is not None]
    ends = [one.name for one in records if isinstance(one, Event) and one.name in (DONE, "start")]
    return ends[-1:] == [DONE]


def _last_lines(path: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return list(run_files.lines(path, last=LAST_BYTES))
    return []


def between(before: Path, now: Path, since: str = "") -> Changes:
    """What differs in what two run directories record; `since` is how the first one is called."""
    plans = [run_files.object_in(path, PLAN_FILE) for path in (before, now)]
    configs = [run_files.object_in(path, CONFIG_FILE) for path in (before, now)]
    never = [] if all(configs) else ["code and config (config.json is missing)"]
    rows: list[tuple[str, str, str]] = []
    rows.append(("nodes", _nodes(plans[0]), _nodes(plans[1])))
    for name in ("world_size", "device", "python", "workdir"):
        rows.append((name, _text(plans[0].get(name)), _text(plans[1].get(name))))
    if all(configs):
        old, new = configs
        rows.append(("code", _commit(old.get("commit")), _commit(new.get("commit"))))
        rows.append(("Python", _text(old.get("python")), _text(new.get("python"))))
        old_keys, new_keys = (dict(_flat(one.get("config"), "")) for one in configs)
        workdirs = [_text(one.get("workdir")) for one in plans]
        new_keys |= {
            key: value
            for key, value in old_keys.items()
            if key in new_keys and _is_one_path([value, new_keys[key]], workdirs)
        }
        rows += _differing("config ", old_keys, new_keys)
    recorded = configs if all(configs) else plans
    given = [_variables(one.get("environment")) for one in recorded]
    own = [_own_paths(*each) for each in zip((before, now), plans, strict=True)]
    alike = {name for name in given[0] if _is_alike(name, recorded, own)}
    rows += _differing("", *({k: v for k, v in one.items() if k not in alike} for one in given))
    digests = [_fingerprint(path) for path in (before, now)]
    if all(digests):
        rows.append(("data set", digests[0][:12], digests[1][:12]))
        never.append(_NEVER[0])
    else:
        never += _NEVER
    found = tuple(row for row in rows if row[1] != row[2])
    return Changes(since, found[:MOST], tuple(never))


def _differing(
    prefix: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for name in sorted({*old, *new}):
        values = (old.get(name, "not set"), new.get(name, "not set"))
        if values[0] != values[1]:
            yield (f"{prefix}{name}", *values)


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        text = "None" if value is None else _text(value)  # as a config says it
        yield name, HIDDEN if is_secret(name.rpartition(".")[2]) else text


def _is_one_path(values: Sequence[str], workdirs: Sequence[str]) -> bool:
    """Whether one is absolute and the other one leads to the same place from its workdir."""
    if len({value.startswith("/") for value in values}) == 1:
        return False
    both = zip(workdirs, values, strict=True)
    full = [text if text.startswith("/") else f"{workdir}/{text}" for workdir, text in both]
    return os.path.normpath(full[0]) == os.path.normpath(full[1])


def _variables(value: Any) -> dict[str, str]:
    found = value if isinstance(value, dict) else {}
    kept = {str(key): item for key, item in found.items() if not str(key).startswith(_OWN)}
    return {key: HIDDEN if is_secret(key) else _text(item) for key, item in kept.items()}


def _own_paths(run_dir: Path, plan: Mapping[str, Any]) -> list[str]:
    """What a run calls its directory: when it was launched, and now."""
    found = {plan.get("run_dir"), str(run_dir.absolute()), str(run_dir.resolve())}
    return sorted((one for one in found if isinstance(one, str) and one), key=len, reverse=True)


def _is_alike(name: str, recorded: list[dict[str, Any]], own: list[list[str]]) -> bool:
    """Whether a variable of both differs by nothing but the run's own path."""
    values = []
    for one, paths in zip(recorded, own, strict=True):
        given = one.get("environment")
        value = given.get(name) if isinstance(given, dict) else None
        if not isinstance(value, str):
            return False
        names = "|".join(map(re.escape, paths))
        values.append(re.sub(rf"(?<![^:=,\s])(?:{names})(?=$|[/:,\s])", "\0", value))
    return values[0] == values[1]


def _nodes(plan: Mapping[str, Any]) -> str:
    return fold(name for name, _ in planned_nodes(plan)) or "not recorded"


def _commit(value: Any) -> str:
    if not isinstance(value, str) or not value:
        return "not recorded"
    return f"{value.rstrip('+')[:12]}{' with local changes' if value.endswith('+') else ''}"


def _fingerprint(run_dir: Path) -> str:
    """That of the data set, which every checkpoint has; "" without a checkpoint."""
    with contextlib.suppress(OSError, ValueError):
        name = run_files.read_bytes(run_dir, "latest", 1000).decode().strip()
        if name and "/" not in name:
            found = run_files.read_object(run_dir, f"{name}/{SAMPLER}").get("fingerprint")
            return found if isinstance(found, str) else ""
    return ""


def _text(value: Any) -> str:
    return "not recorded" if value is None else hide(str(value))[:200]
