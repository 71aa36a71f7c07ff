"""The file of a run from which another supervisor can go on: plan, rules, what has happened.

It holds the word by which agents know their head, and the ranks' environment with its secrets, so
only its user can read it (0600), and it is removed at the run's end. It also names programs, nodes
and keys: one that came with somebody else's run directory belongs to this user once it is unpacked,
and must start nothing. So it is sealed with a secret that is in no run directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clusterctl import seal
from clusterctl.dataclass_json import decode, encode
from clusterctl.errors import UsageError
from clusterctl.launch.plan import LaunchPlan, job_id_of
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.nodes import Node
from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.launch.stopped import found as mark_of
from clusterctl.payload.launch.stopped import sentence
from clusterctl.transport.base import Limits
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.json_file import parse_object

FILE = ".supervisor.json"
MAX_BYTES = 64 << 20
PHASES = ("starting", "running", "between")


class OtherVersion(UsageError):
    """The run is of another version of clusterctl: its nodes and its id are all that is known."""

    def __init__(self, run_dir: Path, document: Mapping[str, Any]) -> None:
        theirs = self.theirs = str(document["version"])[:40]
        self.run_id, self.nodes = "", ()  # type: str, tuple[Node, ...]
        self.accept_new = False
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, UsageError):
            _check_seal(run_dir, dict(document))  # no node is asked that a stranger names
            self.run_id = str(document["plan"]["run_id"])
            self.accept_new = document["accept_new"] is True
            self.nodes = tuple(decode(Node, share["node"]) for share in document["plan"]["shares"])
        text = f"{run_dir} was started by clusterctl {theirs}, this is {version('clusterctl')}"
        hint = f"clusterctl status tells what it can; to attach or stop it use clusterctl {theirs}"
        super().__init__(text, hint=hint)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """All that a supervisor needs. `phase` is one of `PHASES`."""

    plan: LaunchPlan
    rules: Rules
    limits: Limits = field(default_factory=Limits)
    width: int = 64
    accept_new: bool = False
    phase: str = "starting"
    past: Past = field(default_factory=Past)
    version: str = field(default_factory=lambda: version("clusterctl"))

    def write(self) -> None:
        """Replace the file. Raises OSError."""
        document = self._document()
        sealed = {"seal": seal.seal_of(document), **document}
        write_whole(self.plan.run_dir / FILE, json.dumps(sealed), 0o600)

    @property
    def over(self) -> str:
        """Why the run is not started again, although its end is not on record; "" where it is."""
        mark = mark_of(self.plan.run_id, str(self.plan.run_dir))
        if mark is not None:
            return sentence(mark)
        return (
            self.past.over(self.rules.max_restarts)
            if self.phase == "between"
            else self.past.stopped
        )

    def at(self, plan: LaunchPlan, phase: str, past: Past) -> SavedRun:
        return replace(self, plan=plan, phase=phase, past=past)

    def _document(self) -> dict[str, Any]:
        return {"version": self.version, "phase": self.phase, **encode(self)}


@dataclass(frozen=True, slots=True)
class Job:
    """What a run trains and where, by which a second one of the same is known."""

    run_id: str
    job_id: str
    nodes: frozenset[str]  # names, also of spares


def job_of(run_dir: Path) -> Job | None:
    """Of a run of any version, also of one that this user cannot continue; None where no run
    continues. It is compared and shown, nothing is done by it. Raises `UsageError`."""
    document = _load(run_dir)
    if document is None:
        return None
    try:
        plan, rules = document["plan"], document["rules"]
        nodes = [share["node"] for share in plan["shares"]] + rules["nodes"] + rules["spares"]
        job_id = job_id_of(plan["config"], Path(plan["workdir"]), Path(plan["run_dir"]))
        return Job(str(plan["run_id"]), job_id, frozenset(str(node["name"]) for node in nodes))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(run_dir, f"{type(error).__name__}: {error}") from None


class Given(UsageError):
    """The file is none that this user's clusterctl wrote for this directory."""


def read(run_dir: Path) -> SavedRun:
    """The run of a directory. Raises `UsageError` for one that is over, damaged, of another user,
    `OtherVersion` since agents and supervisor must speak alike, `Given` for a copy."""
    document = _load(run_dir)
    if document is None:
        raise UsageError(f"no run continues in {run_dir}", hint="clusterctl runs")
    try:
        if document["version"] != version("clusterctl"):
            raise OtherVersion(run_dir, document)
        _check_seal(run_dir, document)
        return _run(document)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(run_dir, f"{type(error).__name__}: {error}") from None


def _load(run_dir: Path) -> dict[str, Any] | None:
    """The file as it is; None where there is none. Raises `UsageError`."""
    try:
        with os.fdopen(open_own(str(run_dir / FILE), os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            return parse_object(file.read(MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(run_dir, error.strerror or str(error)) from None
    except ValueError as error:
        raise _unreadable(run_dir, f"ValueError: {error}") from None


def _unreadable(run_dir: Path, why: str) -> UsageError:
    return UsageError(f"{run_dir / FILE} cannot be read: {why}")


def _check_seal(run_dir: Path, document: dict[str, Any]) -> None:
    """Raises `Given`."""
    hint = f"clusterctl why {run_dir} and clusterctl report {run_dir} read its files only"
    if not seal.fits(document.pop("seal", None), document):
        text = (
            f"{run_dir / FILE} was not written by this user's clusterctl: the nodes and programs "
            "that it names are not used"
        )
        raise Given(text, hint=f"{hint}; to continue the run, attach where it was launched")
    own = Path(document["plan"]["run_dir"])
    if not own.exists() or not own.samefile(run_dir):
        text = f"{run_dir} is a copy of {own}: nothing is done with the run that it was copied from"
        raise Given(text, hint=hint)


def remove(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)


def _run(document: Mapping[str, Any]) -> SavedRun:
    run = decode(SavedRun, document)
    if run.phase not in PHASES:
        raise ValueError(f"phase {run.phase!r}")
    return run
