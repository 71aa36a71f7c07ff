"""The GPU census: one line per node that says what is there, and what is not as it should be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.facts import Fleet, Gpu, GpuFacts, NodeFacts, Unknown, Unreached, to_json
from checks.parsers.host import parse_census
from checks.profile import Profile
from checks.rules.gpu import expected_count
from checks.rules.gpu_health import unread
from clusterctl.gpus.outliers import Idle, Place, coldest_and_hottest, find_idle, idle_words, label
from clusterctl.gpus.processes import list_processes
from clusterctl.nodes import counted, fold, is_loopback
from clusterctl.remote.fanout import NodeResult

WAITING = "waiting"  # phase of a node whose first answer has not come yet


def read_fleet(results: Sequence[NodeResult[dict[str, Any]]]) -> tuple[NodeFacts, ...]:
    """Facts of the nodes from what the census payload sent home, in the given order."""
    return tuple(read_node(result) for result in results)


def read_node(result: NodeResult[dict[str, Any]]) -> NodeFacts:
    """Facts of one node; one that gave no answer is `unreached`."""
    node = result.node
    if result.value is not None:
        return parse_census(node.name, result.value, loopback=is_loopback(node))
    why = result.unreachable
    assert why is not None
    return NodeFacts(
        name=node.name,
        loopback=is_loopback(node),
        unreached=Unreached(why.phase, why.seconds, why.message, why.hint),
    )


@dataclass(frozen=True, slots=True)
class GpuRow:
    """What `clusterctl gpus` says about one node. Means are over the GPUs that gave a value."""

    node: str
    gpus: int | None  # None: unknown
    processes: int | None
    power_w: float | None  # mean per GPU
    power_sum_w: float
    utilization_percent: float | None
    memory_share: float | None
    temperature_c: float | None  # of the hottest
    flags: tuple[str, ...]
    verdict: str  # good, bad (exit 1), unknown (exit 3)

    def cells(self) -> list[str]:
        unsure = self.verdict == "unknown" and self.gpus is not None
        mark = (
            "!" if self.verdict == "bad" else "?" if unsure else " "
        )  # keeps digits in one column
        return [
            f"{'-' if self.gpus is None else self.gpus}{mark}",
            "-" if self.processes is None else str(self.processes),
            "-" if self.power_w is None else watts(self.power_sum_w),
            "-" if self.power_w is None else f"{self.power_w:.0f}",
            "-" if self.utilization_percent is None else f"{self.utilization_percent:.0f}%",
            "-" if self.memory_share is None else f"{self.memory_share:.0%}",
            "-" if self.temperature_c is None else f"{self.temperature_c:.0f} C",
            "; ".join(self.flags),
        ]


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
        if self.gpus != self.expected:
            words[1] += f" (expected {self.expected})"
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
        """(node set, row) with neighbours that look alike as one."""
        groups: list[tuple[list[str], GpuRow]] = []
        for row in self.rows:
            if groups and row.cells() == groups[-1][1].cells():
                groups[-1][0].append(row.node)
            else:
                groups.append(([row.node], row))
        return [(fold(names), row) for names, row in groups]


def take_census(nodes: Sequence[NodeFacts], limits: Profile | None = None) -> Census:
    """Judge the GPUs of each node against the fleet, or against what a profile recorded."""
    limits = limits or Profile()
    recorded = limits.expected.get("gpu.count_majority", "")
    by_profile = recorded.isdecimal() and len(recorded) < 6
    expected = int(recorded) if by_profile else expected_count(Fleet(tuple(nodes)).reached)
    source = "the profile says" if by_profile else "most nodes have"
    idle = find_idle(nodes, limits)
    rows = tuple(_row(node, expected, source, limits, idle) for node in nodes)
    return Census(rows, expected, *coldest_and_hottest(nodes), tuple(idle.values()))


def _row(
    node: NodeFacts, expected: int, source: str, limits: Profile, idle: Mapping[str, Idle]
) -> GpuRow:
    facts = node.gpus
    if node.unreached is not None:
        why = node.unreached
        waits = why.phase == WAITING
        flag = "- no answer yet" if waits else f"no answer: {why.phase}: {why.message}"
        return _empty(node.name, None, (flag,), "unknown")
    if facts.state in ("hung", "unreadable"):
        return _empty(node.name, None, (facts.summary,), "unknown")
    if facts.state == "failed":
        return _empty(node.name, None, (facts.summary,), "bad")
    if facts.state in ("none", "no-tool"):
        flag = "no nvidia-smi" if facts.state == "no-tool" else "no GPU"
        on_pci = 0 if isinstance(facts.on_pci, Unknown) else facts.on_pci
        if on_pci:
            flag += f", but {on_pci} NVIDIA devices on PCI"
        blind = isinstance(facts.on_pci, Unknown) and not facts.on_pci.is_absence
        if blind:
            flag += f", and whether PCI shows one: {facts.on_pci}"
        bad = on_pci > 0 or expected > 0
        return _empty(node.name, 0, (flag,), "bad" if bad else "unknown" if blind else "good")
    return _counted(node.name, facts, expected, source, limits, idle.get(node.name))


def _empty(name: str, gpus: int | None, flags: tuple[str, ...], verdict: str) -> GpuRow:
    return GpuRow(name, gpus, None, None, 0.0, None, None, None, flags, verdict)


def _counted(
    name: str, facts: GpuFacts, expected: int, source: str, limits: Profile, idle: Idle | None
) -> GpuRow:
    gpus = facts.gpus
    flags = []
    verdict = "good"
    on_pci = 0 if isinstance(facts.on_pci, Unknown) else facts.on_pci
    should = max(expected, on_pci)
    if len(gpus) < should:
        by_pci = on_pci > max(len(gpus), expected)
        source = f"PCI shows {on_pci}" if by_pci else f"{source} {expected}"
        flags.append(f"{should - len(gpus)} missing ({source})")
        verdict = "bad"
    if facts.state == "partial":
        flags.append(facts.summary)
        verdict = "bad"
    powers = [gpu.power_w for gpu in gpus if not isinstance(gpu.power_w, Unknown)]
    use = [g.utilization_percent for g in gpus if not isinstance(g.utilization_percent, Unknown)]
    heat = [g.temperature_c for g in gpus if not isinstance(g.temperature_c, Unknown)]
    flags += [] if idle is None else [idle_words(idle, len(gpus))]
    flags += _unreadable(gpus) + _held(facts, limits)
    processes = facts.processes
    if isinstance(processes, Unknown):
        flags.append(f"processes: {processes.reason}")
    values = [processes, *(value for gpu in gpus for value in (gpu.power_w, gpu.memory_used_bytes))]
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
        temperature_c=max(heat, default=None),
        flags=tuple(flags),
        verdict=verdict,
    )


def _memory_share(gpus: Sequence[Gpu]) -> float | None:
    used = total = 0
    for gpu in gpus:
        if not isinstance(gpu.memory_used_bytes, Unknown) and not isinstance(
            gpu.memory_total_bytes, Unknown
        ):
            used, total = used + gpu.memory_used_bytes, total + gpu.memory_total_bytes
    return used / total if total else None


def _unreadable(gpus: Sequence[Gpu]) -> list[str]:
    """`power [N/A] on GPU 3`: a mean must not hide that a value is missing."""
    flags = []
    for field, word in (("power_w", "power"), ("memory_used_bytes", "memory")):
        reasons: dict[str, list[str]] = {}
        for position, gpu in enumerate(gpus):
            value = getattr(gpu, field)
            if isinstance(value, Unknown):
                reasons.setdefault(value.reason, []).append(label(gpu, position))
        for reason, labels in reasons.items():
            which = "all GPUs" if len(labels) == len(gpus) else f"GPU {','.join(labels)}"
            flags.append(f"{word} {reason} on {which}")
    return flags


def _held(facts: GpuFacts, limits: Profile) -> list[str]:
    """Memory that is taken where the driver names no process: a killed job may leave it so."""
    if isinstance(facts.processes, Unknown):
        return []
    taken = {one.gpu_uuid for one in facts.processes}
    held = [
        f"GPU {label(gpu, position)} holds {gpu.memory_used_bytes / (1 << 30):.0f} GiB"
        for position, gpu in enumerate(facts.gpus)
        if not isinstance(gpu.memory_used_bytes, Unknown)
        and gpu.memory_used_bytes > limits.gpu_memory_held_warn_gib * (1 << 30)
        and gpu.uuid not in taken
    ]
    if not held:
        return []
    more = f" and {len(held) - 2} more" if len(held) > 2 else ""
    return [f"{', '.join(held[:2])}{more}, and no process is listed there"]


def to_document(census: Census, nodes: Sequence[NodeFacts]) -> dict[str, Any]:
    """All per-GPU data for --json; a value that could not be had is null, its reason beside it."""
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
