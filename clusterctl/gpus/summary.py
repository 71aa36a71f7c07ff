"""The GPU census: one line per node with what is there, and what is not as it should be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks import units
from checks.facts import Gpu, GpuFacts, NodeFacts, Unknown, known, or_none, to_json
from checks.profile import Profile
from checks.rules.gpu import expected_count
from checks.rules.gpu_health import unread
from checks.units import counted
from clusterctl.gpus.outliers import Idle, Place, coldest_and_hottest, find_idle, idle_words
from clusterctl.gpus.processes import list_processes
from clusterctl.nodes import fold, grouped

WAITING = "waiting"  # phase of a node whose first answer has not come yet


@dataclass(frozen=True, slots=True)
class GpuRow:
    """The row of one node in `clusterctl gpus`. Means are over the GPUs that gave a value."""

    node: str
    gpus: int | None = None  # None: unknown
    processes: int | None = None
    power_w: float | None = None  # mean per GPU
    power_sum_w: float = 0.0
    utilization_percent: float | None = None
    memory_share: float | None = None
    temperature_c: float | None = None  # of the hottest
    flags: tuple[str, ...] = ()
    verdict: str = "unknown"  # good, bad (exit 1), unknown (exit 3)

    def cells(self) -> list[str]:
        # A blank keeps the digits in one column.
        mark = {"bad": "!", "unknown": " " if self.gpus is None else "?"}.get(self.verdict, " ")
        return [
            f"{_or_dash(self.gpus)}{mark}",
            _or_dash(self.processes),
            "-" if self.power_w is None else watts(self.power_sum_w),
            _or_dash(self.power_w, "{:.0f}"),
            _or_dash(self.utilization_percent, "{:.0f}%"),
            _or_dash(self.memory_share, "{:.0%}"),
            _or_dash(self.temperature_c, "{:.0f} C"),
            "; ".join(self.flags),
        ]


def _or_dash(value: float | None, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


def watts(power_w: float) -> str:
    """`5.59 kW`, `690 W`."""
    if power_w < 1000:
        return f"{power_w:.0f} W"
    return f"{power_w / 1000:.1f} kW" if power_w >= 10_000 else f"{power_w / 1000:.2f} kW"


@dataclass(frozen=True, slots=True)
class Census:
    """All rows in the hostfile's order, and the sums."""

    rows: tuple[GpuRow, ...]
    expected_per_node: int
    coldest: Place | None = None
    hottest: Place | None = None
    idle: tuple[Idle, ...] = ()  # GPUs that do nothing while the others work

    @property
    def gpus(self) -> int:
        return sum(row.gpus or 0 for row in self.rows)

    @property
    def expected(self) -> int:
        """GPUs if every node had as many as most have, or as the profile says."""
        return self.expected_per_node * len(self.rows)

    @property
    def power_w(self) -> float:
        return sum(row.power_sum_w for row in self.rows)

    @property
    def exit_code(self) -> int:
        verdicts = {row.verdict for row in self.rows}
        return 1 if "bad" in verdicts else 3 if "unknown" in verdicts else 0

    def summary(self) -> str:
        """`24 nodes, 191 GPUs (expected 192), 126.9 kW`."""
        words = [counted(len(self.rows), "node"), counted(self.gpus, "GPU")]
        silent = sum(row.gpus is None for row in self.rows)
        if silent == len(self.rows):
            words[1] = "GPUs unknown"
        elif self.gpus != self.expected:
            of = f", those of {counted(silent, 'node')} unknown" if silent else ""
            words[1] += f" (expected {self.expected}{of})"
        elif silent:
            words[1] += f" (those of {counted(silent, 'node')} unknown)"
        if self.power_w:
            words.append(watts(self.power_w))
        return ", ".join(words)

    def extremes(self) -> str:
        """`idle among busy: n4/3; coldest n4/3 41 C 101 W, hottest n6/6 71 C 701 W`, or empty."""
        words = []
        if self.idle:
            names = [f"{one.node}/{one.numbers}" for one in self.idle]
            more = f" and {len(names) - 4} more nodes" if len(names) > 5 else ""
            words.append(f"idle among busy: {' '.join(names[:4] if more else names)}{more}")
        if self.coldest is not None and self.hottest is not None:
            words.append(f"coldest {self.coldest.words()}, hottest {self.hottest.words()}")
        return "; ".join(words)

    def folded(self) -> list[tuple[str, GpuRow]]:
        """(node set, row) with equal neighbours as one."""
        groups = [list(rows) for _, rows in itertools.groupby(self.rows, GpuRow.cells)]
        return [(fold([row.node for row in rows]), rows[0]) for rows in groups]


def take_census(nodes: Sequence[NodeFacts], limits: Profile) -> Census:
    """Judge the GPUs of each node against the fleet, or against what a profile recorded."""
    recorded = limits.expected.get("gpu.count_majority", "")
    by_profile = recorded.isdecimal() and len(recorded) < 6
    reached = tuple(node for node in nodes if node.unreached is None)
    expected = int(recorded) if by_profile else expected_count(reached)
    source = "the profile says" if by_profile else "most nodes have"
    idle = find_idle(nodes, limits)
    rows = tuple(_row(node, expected, source, limits, idle) for node in nodes)
    return Census(rows, expected, *coldest_and_hottest(nodes), tuple(idle.values()))


def _row(
    node: NodeFacts, expected: int, source: str, limits: Profile, idle: Mapping[str, Idle]
) -> GpuRow:
    facts, why = node.gpus, node.unreached
    if why is not None:
        flag = "- no answer yet" if why.phase == WAITING else f"no answer: {why}"
        return GpuRow(node.name, flags=(flag,))
    if facts.state in ("hung", "unreadable", "failed"):
        verdict = "bad" if facts.state == "failed" else "unknown"
        return GpuRow(node.name, flags=(facts.summary,), verdict=verdict)
    if facts.state in ("none", "no-tool"):
        flag = "no nvidia-smi" if facts.state == "no-tool" else "no GPU"
        on_pci = or_none(facts.on_pci) or 0
        if facts.state == "no-tool" and facts.on_pci == 0:
            flag += ", and no NVIDIA device on PCI"
        if on_pci:
            flag += f", but {on_pci} NVIDIA devices on PCI"
        if facts.is_pci_unread:
            flag += f", and whether PCI shows one: {facts.on_pci}"
        verdict = "bad" if on_pci or expected else "unknown" if facts.is_pci_unread else "good"
        return GpuRow(node.name, 0, flags=(flag,), verdict=verdict)
    return _counted(node.name, facts, expected, source, limits, idle.get(node.name))


def _counted(
    name: str, facts: GpuFacts, expected: int, source: str, limits: Profile, idle: Idle | None
) -> GpuRow:
    gpus, processes = facts.gpus, facts.processes
    powers = known(gpu.power_w for gpu in gpus)
    use = known(gpu.utilization_percent for gpu in gpus)
    flags = []
    on_pci = or_none(facts.on_pci) or 0
    missing = max(expected, on_pci) - len(gpus)
    if missing > 0:
        where = f"PCI shows {on_pci}" if on_pci > expected else f"{source} {expected}"
        flags.append(f"{missing} missing ({where})")
    flags += [facts.summary] if facts.state == "partial" else []
    verdict = "bad" if flags else "good"
    flags += [] if idle is None else [idle_words(idle, len(gpus))]
    flags += _unreadable(gpus) + _held(facts, limits)
    flags += [f"processes: {processes}"] if isinstance(processes, Unknown) else []
    values = [processes, *(value for gpu in gpus for value in gpu.figures.values())]
    if verdict == "good" and unread(*values) is not None:
        verdict = "unknown"
    return GpuRow(
        node=name,
        gpus=len(gpus),
        processes=None if isinstance(processes, Unknown) else len({one.pid for one in processes}),
        power_w=sum(powers) / len(powers) if powers else None,
        power_sum_w=sum(powers),
        utilization_percent=sum(use) / len(use) if use else None,
        memory_share=_memory_share(gpus),
        temperature_c=max(known(gpu.temperature_c for gpu in gpus), default=None),
        flags=tuple(flags),
        verdict=verdict,
    )


def _memory_share(gpus: Sequence[Gpu]) -> float | None:
    read = [(or_none(gpu.memory_used_bytes), or_none(gpu.memory_total_bytes)) for gpu in gpus]
    pairs = [(used, total) for used, total in read if used is not None and total is not None]
    total = sum(total for _, total in pairs)
    return sum(used for used, _ in pairs) / total if total else None


def _unreadable(gpus: Sequence[Gpu]) -> list[str]:
    """`power [N/A] on GPU 3`: a mean must not hide that a value is missing."""
    flags = []
    for word in gpus[0].figures if gpus else ():
        values = [(gpu.figures[word], gpu.label(at)) for at, gpu in enumerate(gpus)]
        is_told = word in ("power", "memory")  # even if the card has no such thing
        reasons = grouped(
            (why.reason, name)
            for why, name in values
            if isinstance(why, Unknown) and (is_told or not why.is_absence)
        )
        for reason, labels in reasons.items():
            which = "all GPUs" if len(labels) == len(gpus) else f"GPU {','.join(labels)}"
            flags.append(f"{word} {reason} on {which}")
    return flags


def _held(facts: GpuFacts, limits: Profile) -> list[str]:
    """Memory that is taken where the driver names no process: a killed job may leave it so."""
    if isinstance(facts.processes, Unknown):
        return []
    taken = {one.gpu_uuid for one in facts.processes}
    used = [or_none(gpu.memory_used_bytes) or 0 for gpu in facts.gpus]
    held = [
        f"GPU {gpu.label(position)} holds {units.size(used[position])}"
        for position, gpu in enumerate(facts.gpus)
        if used[position] / (1 << 30) > limits.gpu_memory_held_warn_gib and gpu.uuid not in taken
    ]
    more = f" and {len(held) - 2} more" if len(held) > 2 else ""
    return [f"{', '.join(held[:2])}{more}, and no process is listed there"] if held else []


def to_document(census: Census, nodes: Sequence[NodeFacts]) -> dict[str, Any]:
    """All per-GPU data for --json; a value that could not be read is null, its reason beside it."""
    return {
        "gpus": census.gpus,
        "expected": census.expected,
        "expected_per_node": census.expected_per_node,
        "power_w": round(census.power_w, 2),
        "coldest": to_json(census.coldest),
        "hottest": to_json(census.hottest),
        "idle": to_json(census.idle),
        "processes": [dataclasses.asdict(row) for row in list_processes(nodes)],
        "nodes": [
            {
                "node": node.name,
                "verdict": row.verdict,
                "flags": list(row.flags),
                "power_w": None if row.power_w is None else round(row.power_sum_w, 2),
                "power_mean_w": row.power_w,
                "unreachable": to_json(node.unreached),
                **to_json(node.gpus),
            }
            for node, row in zip(nodes, census.rows, strict=True)
        ],
    }
