"""Whatever a tool prints, parsers give facts or Unknown: cut, empty, noise before, another locale.

Seeded rather than searched: every recorded output is damaged in the ways that happen on nodes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from checks.facts import Fleet, Unknown, to_json
from checks.parsers import clock, gpu_health, infiniband, kernel_log, machine, nvidia_smi
from checks.parsers.census import parse_census
from checks.runner import run_checks
from tests.checks.captures import names, recorded
from tests.checks.sections import NODE, ended

Parser = Callable[[str], Any]
PARSERS: dict[str, list[Parser]] = {
    "chrony": [clock.read_tracking, clock.read_sources],
    "ntp": [clock.read_peers, clock.read_timedatectl, clock.read_adjtimex],
    "infiniband": [lambda text: infiniband.parse_sysfs(text, text)],
    "nvlink": [gpu_health.read_nvlinks],
    "topo": [gpu_health.read_topology],
    "nvidia-smi": [gpu_health.read_details, lambda text: nvidia_smi.parse_gpus(ended(text), ended(text))],
    "dmesg": [lambda text: kernel_log.read_events(text, 1e6, 1.8e9)],
}  # fmt: skip
FILES = [name for folder in PARSERS for name in names(folder)]
NOISE = "Last login: Sat Nov 21\nWARNING: no environment loaded\n\x1b[31mhello\x1b[0m\n"


def damaged(text: str, random_: random.Random) -> list[str]:
    """The text in the ways it arrives broken."""
    lines = text.splitlines()
    places = [random_.randrange(len(text) + 1) for _ in range(4)]
    swapped = [line[: random_.randrange(len(line) + 1)] for line in lines]
    return [
        "", "\n", "\0\0", NOISE, NOISE + text, text + NOISE, text[: len(text) // 2], text[len(text) // 2 :],
        *(text[:place] for place in places), "\n".join(swapped), "\n".join(reversed(lines)),
        text.replace(".", ","), text.replace(" ", "\t"), text.upper(), text.replace("\n", "\r\n"),
        text.replace("0", "99999999999999999999"), text.replace("1", "-"), text.replace("Normal", "Normale"),
        text.replace("4", "nan"), text.replace("2", "1e999"), text.replace("Enabled", "Activé"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_damaged_output_gives_facts_or_unknown(name: str) -> None:
    random_ = random.Random(name)
    text = recorded(name)[:20000]
    for parser in PARSERS[name.split("/")[0]]:
        for broken in damaged(text, random_):
            result = parser(broken)
            assert result is not None
            json.dumps(to_json(result), allow_nan=False)


@pytest.mark.parametrize(
    "name", [one for one in FILES if one.startswith("chrony") and "tracking" in one]
)
def test_cut_tracking_never_looks_healthy(name: str) -> None:
    text = recorded(name).rstrip()
    for end in range(len(text) - 12):
        found = clock.read_tracking(text[:end])
        assert isinstance(found, Unknown) or not found.leap.startswith("Normal"), text[:end]


def test_foreign_text_is_unknown_for_every_parser() -> None:
    for parsers in PARSERS.values():
        for parser in parsers:
            for text in ("command not found", "", "Segmentation fault (core dumped)"):
                found = parser(text)
                empty = isinstance(found, Unknown) or not found
                assert empty or getattr(found, "state", "") in ("failed", "unreadable"), (
                    parser,
                    text,
                )


SECTIONS = (
    "nvml", "gpus", "gpu_details", "nvlink", "topology", "fabric_manager", "ib", "ib_again", "began",
    "adjtimex", "clocksource", "log_ahead", "chrony_tracking", "chrony_sources", "ntpq", "timedatectl",
    "kernel_log", "processes", "limits", "mounts", "network", "addresses", "name:@", "system", "git_head",
    "git_status", "files", "token", "wandb", "python", "meminfo", "disk:/", "port:1", "pci", "nvswitch",
)  # fmt: skip


@pytest.mark.long
def test_any_sections_give_findings_and_no_fault_of_a_check() -> None:
    random_ = random.Random(5)
    texts = [recorded(name)[:3000] for name in FILES]
    texts += [
        "",
        "yes",
        "1 2",
        "count\t3\nblocked\t1\tx\t?\t?",
        '{"path": "/", "error": "no answer"}',
        "eth0\tup\t9000\t1\t1",
    ]
    for _ in range(60):
        nodes = []
        for number in range(3):
            sections = {
                name: {"state": random_.choice(["ended", "ended", "timeout", "missing", "error"]),
                       "rc": random_.choice([0, 0, 0, 1]), "out": random_.choice(texts), "err": "", "seconds": 0.1}
                for name in random_.sample(SECTIONS, 20)
            }  # fmt: skip
            envelope = {"sections": sections, "node": NODE, "head": {"samples": [(1.0, 2.0, 3.0)]}}
            nodes.append(parse_census(f"n{number}", envelope))
        report = run_checks(Fleet(tuple(nodes)))
        assert not [one for one in report.findings if "fault in this check" in one.evidence]


def test_machine_parsers_take_any_line() -> None:
    random_ = random.Random(7)
    for _ in range(300):
        text = "".join(random_.choice('abc\t\n=:{}"0159-./ ') for _ in range(80))
        for parser in (
            machine.read_processes, machine.read_limits, machine.read_mounts, machine.read_system,
            machine.read_wandb, machine.read_files,
        ):  # fmt: skip
            json.dumps(to_json(parser(text)))
