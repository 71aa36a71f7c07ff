"""Answers of many nodes to one command: equal ones together, the others compared with the most."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.nodes import fold, grouped
from clusterctl.payload.jobs.processes import SIGNAL_NAMES


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended on one node. `rc` is negative for a signal, None when it was killed."""

    node: str
    rc: int | None
    out: str
    err: str
    ending: str  # "exit 2", "signal SIGKILL", "no end in 30 s, killed"
    seconds: float
    truncated: bool
    noise: str

    @property
    def good(self) -> bool:
        return self.rc == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "unreachable": None}


def read_answer(node: str, envelope: dict[str, Any]) -> Answer:
    section = envelope["sections"]["command"]
    rc, out, err = section["rc"], section["out"], section["err"]
    ending = f"exit {rc}"
    if rc is None:  # the last line is the payload's, not the command's
        *output, last = err.splitlines() or [section["state"]]
        err, ending = "".join(f"{line}\n" for line in output), last or "not run"
        if section["state"] == "timeout":
            ending += "; --command-timeout gives it more time"
    elif rc < 0:
        ending = f"signal {SIGNAL_NAMES.get(-rc, -rc)}"
    truncated, noise = bool(section.get("truncated")), envelope.get("noise", "")
    return Answer(node, rc, out, err, ending, section["seconds"], truncated, noise)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes whose answers are equal."""

    answers: tuple[Answer, ...]

    @property
    def first(self) -> Answer:
        return self.answers[0]

    def title(self, timings: bool = False) -> str:
        """`n[1-3] (3 nodes)`, `n4 (exit 2)`."""
        count, nodes = len(self.answers), fold(answer.node for answer in self.answers)
        words = [f"{count} nodes"] if count > 1 else []
        words += [] if self.first.good else [self.first.ending]
        words += ["output cut"] if self.first.truncated else []
        if timings:
            times = [answer.seconds for answer in self.answers]
            low, high = f"{min(times):.2f}", f"{max(times):.2f}"
            words.append(f"{low} s" if low == high else f"{low} to {high} s")
        return f"{nodes} ({', '.join(words)})" if words else nodes


def group(answers: Iterable[Answer]) -> list[Group]:
    """Groups of equal ending and output, in the order of their first node."""
    groups = grouped(((one.ending, one.out, one.truncated), one) for one in answers)
    return [Group(tuple(members)) for members in groups.values()]


def group_errors(answers: Iterable[Answer]) -> list[tuple[str, str]]:
    """(node set, text) of stderr, equal texts together."""
    groups = grouped((answer.err, answer.node) for answer in answers if answer.err.strip())
    return [(fold(nodes), text) for text, nodes in groups.items()]


def majority_first(groups: Sequence[Group]) -> list[Group]:
    """The largest group, then the others in their order; of two equally large the first one."""
    largest = max(groups, key=lambda one: len(one.answers), default=None)
    return sorted(groups, key=lambda one: one is not largest)


def lines(text: str) -> list[str]:
    """Lines by newline alone: splitlines() also cuts at form feeds and progress bars' returns."""
    return text.removesuffix("\n").split("\n") if text else []


def diff(base: Group, other: Group) -> Iterator[str]:
    """Unified diff of the outputs; one line says that outputs with different endings are equal."""
    titles = (base.title(), other.title())
    outputs = (lines(base.first.out), lines(other.first.out))
    found = list(difflib.unified_diff(*outputs, *titles, lineterm=""))
    yield from found or [f"--- {titles[0]}", f"+++ {titles[1]}", " (same output)"]
