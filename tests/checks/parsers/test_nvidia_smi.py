"""nvidia-smi's text in all its moods."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.facts import GpuFacts, NodeFacts, Section, Unknown
from checks.finding import Verdict
from checks.parsers.nvidia_smi import count_on_pci, parse_gpus, parse_processes, parse_quantity
from checks.profile import Profile
from checks.rules.gpu import driver
from clusterctl.gpus.summary import take_census
from tests.captures.fake_nvidia_smi import HEADER, capture, h100
from tests.checks.sections import FAILED, HUNG, NO_TOOL, ended, gpus, lacking


def test_eight_idle_gpus() -> None:
    facts = gpus(8, pci=8)
    assert facts.state == "ok"
    assert facts.count == 8
    assert facts.on_pci == 8
    assert facts.processes == ()
    first = facts.gpus[0]
    assert (first.index, first.name, first.driver) == (0, "NVIDIA H100 80GB HBM3", "565.57.01")
    assert (first.power_w, first.power_limit_w, first.temperature_c) == (100.89, 700.0, 30)
    assert first.memory_used_bytes == 1 << 20
    assert first.memory_total_bytes == 81559 << 20
    assert first.uuid == "GPU-b42dd28e-ffdd-8720-1df0-98bd8cdc05b1"


@pytest.mark.parametrize("name", ["a100-sxm-x4.gpus.csv", "h100-nvl-x2.gpus.csv"])
def test_other_machines(name: str) -> None:
    facts = parse_gpus(ended(capture(name)), ended(capture("no-processes.apps.csv")))
    assert facts.state == "ok"
    for gpu in facts.gpus:
        names = [field.name for field in dataclasses.fields(gpu) if field.name != "health"]
        values = [getattr(gpu, name) for name in names]
        assert not any(isinstance(value, Unknown) for value in values)


def test_no_tool_no_device_failed_and_hung_are_four_things() -> None:
    assert (NO_TOOL.state, NO_TOOL.count) == ("no-tool", 0)
    for rc in (0, 6):
        none = parse_gpus(ended(capture("no-devices.txt"), rc))
        assert (none.state, none.count) == ("none", 0)
    assert FAILED.state == "failed"
    assert isinstance(FAILED.count, Unknown)
    assert FAILED.message.startswith("NVIDIA-SMI has failed because")
    assert HUNG.state == "hung"
    assert isinstance(HUNG.count, Unknown)
    mismatch = parse_gpus(ended(capture("version-mismatch.txt"), 18))
    assert mismatch.state == "failed"
    assert "Driver/library version mismatch" in mismatch.message


def test_error_text_is_never_counted_as_gpus_or_processes() -> None:
    # The original script counted its two lines as two processes.
    text = capture("driver-failed.txt")
    facts = parse_gpus(ended(text, 9), ended(text, 9))
    assert facts.gpus == ()
    assert isinstance(facts.processes, Unknown)
    assert isinstance(parse_processes(ended(text, 0)), Unknown)


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    facts = parse_gpus(ended(capture("lost-gpu.txt"), 15))
    assert facts.state == "partial"
    assert facts.count == 7
    assert "GPU0000:5D:00.0: Unknown Error" in facts.message


@pytest.mark.parametrize(
    "cell",
    ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU is lost]", "", "-",
     "[GPU requires reset]", "[Insufficient Permissions]", "watt", "1.2.3 W", "1e5 W", "nan"],
)  # fmt: skip
def test_values_that_are_none_are_unknown_and_the_gpu_still_counts(cell: str) -> None:
    facts = parse_gpus(ended(h100(8, power=cell or " ")))
    if cell:
        assert facts.count == 8
        assert all(isinstance(gpu.power_w, Unknown) for gpu in facts.gpus)
        assert facts.gpus[0].memory_used_bytes == 1 << 20
    assert isinstance(parse_quantity(cell), Unknown)


def test_decimal_comma_of_other_locales() -> None:
    facts = parse_gpus(ended(h100(2, power="100,89 W")))
    assert facts.state == "ok"
    assert [gpu.power_w for gpu in facts.gpus] == [100.89, 100.89]


def test_noise_before_the_header_and_a_cut_row_are_kept_as_message() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n" + h100(3)
    facts = parse_gpus(ended(text[:-60]))
    assert facts.count == 2
    assert facts.state == "partial"
    assert "infoROM is corrupted" in facts.message


def test_warning_beside_gpus_that_all_answer_is_no_failure() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"
    for facts in (parse_gpus(ended(text + h100(3))), parse_gpus(ended(h100(3), 0, text))):
        assert (facts.state, facts.message, facts.count) == ("ok", "", 3)
        assert facts.warnings == (text.strip(),)
    assert parse_gpus(ended(text, 1)).state == "failed"


def test_header_alone_is_no_gpu_and_silence_is_unreadable() -> None:
    assert parse_gpus(ended(HEADER + "\n")).state == "none"
    assert parse_gpus(ended("")).state == "unreadable"
    assert parse_gpus(ended("", 1)).state == "failed"
    assert parse_gpus(None).state == "unreadable"
    assert parse_gpus(lacking("error", "Permission denied")).state == "unreadable"


def test_processes_have_owners_where_proc_shows_them() -> None:
    owners = ended(
        "88121\t1000\talice\t3700\tpython train.py\t?\t?\n88122\t1000\talice\tx\tbad line\t?\t?\n"
    )
    found = parse_processes(ended(capture("h100-sxm-x8.apps.csv")), owners)
    assert not isinstance(found, Unknown)
    assert len(found) == 8
    assert (found[0].user, found[0].age_s, found[0].used_bytes) == ("alice", 3700.0, 71204 << 20)
    assert isinstance(found[1].user, Unknown)


def test_process_name_may_hold_a_comma_and_memory_may_be_hidden() -> None:
    text = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\nGPU-1, 7, [N/A], a, b\n"
    found = parse_processes(ended(text))
    assert not isinstance(found, Unknown)
    assert found[0].name == "a, b"
    assert isinstance(found[0].used_bytes, Unknown)


def test_no_processes_are_told_by_a_header_or_in_words_and_never_by_nothing() -> None:
    for text in ("No running processes found\n", capture("no-processes.apps.csv")):
        assert parse_processes(ended(text)) == ()
    assert isinstance(parse_processes(ended("")), Unknown)


def test_pci_that_cannot_be_read_is_unknown() -> None:
    assert isinstance(count_on_pci(lacking()), Unknown)


PIECES = st.one_of(
    st.text(max_size=40),
    st.sampled_from([HEADER, h100(8), h100(8)[:333], capture("driver-failed.txt"), "\n", ", ",
                     "[N/A]", "0, GPU-1, x", "No devices were found\n", "\x00", "index\n", "1,"]),
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@pytest.mark.long
@given(TEXTS, TEXTS, TEXTS, st.sampled_from(["ended", "missing", "timeout", "error"]))
def test_any_text_gives_facts(out: str, apps: str, owners: str, state) -> None:
    query = Section(state, 0 if state == "ended" else None, out, apps, 0.0)
    facts = parse_gpus(query, ended(apps), ended(owners))
    assert isinstance(facts, GpuFacts)
    if facts.state == "ok":
        assert facts.gpus


@pytest.mark.parametrize(
    ("field", "was", "said"),
    [
        ("power_w", "100.89 W", "-100.89 W"), ("power_w", "100.89 W", "99999999999999999100 W"),
        ("power_limit_w", "700.00 W", "-700 W"), ("power_limit_w", "700.00 W", "0 W"),
        ("memory_used_bytes", "1 MiB", "-1 MiB"), ("memory_total_bytes", "81559 MiB", "0 MiB"),
        ("memory_total_bytes", "81559 MiB", "-5 MiB"), ("memory_total_bytes", "81559 MiB", "9999999999999 MiB"),
        ("temperature_c", ", 30\n", ", 1e20\n"), ("temperature_c", ", 30\n", ", 100000000000000000000\n"),
        ("utilization_percent", "0 %", "101 %"), ("utilization_percent", "0 %", "-1 %"),
    ],
)  # fmt: skip
def test_values_that_no_card_has_are_unknown_and_never_good(
    field: str, was: str, said: str
) -> None:
    text = re.sub(r", \d+$", ", 30", h100(2), flags=re.MULTILINE)
    text = re.sub(r"100\.\d\d W|\d{2,3}\.\d\d W(?=, 700)", "100.89 W", text)
    assert text.count(was) == 2
    facts = parse_gpus(ended(text.replace(was, said)), ended(capture("no-processes.apps.csv")))
    assert facts.count == 2
    for gpu in facts.gpus:
        value = getattr(gpu, field)
        assert isinstance(value, Unknown)
        assert not value.is_absence
    node = NodeFacts("n1", gpus=facts)
    row = take_census([node], Profile()).rows[0]
    assert row.verdict == "unknown"
    assert re.search("cannot be (true|read)|cannot read", row.flags[0])
    found = driver(facts)
    assert (found.verdict, "cannot" in found.evidence) == (Verdict.UNKNOWN, True)


@pytest.mark.parametrize("index", ["0", "[N/A]", "-1", "x"])
def test_an_index_that_is_none_or_that_of_several_is_told(index: str) -> None:
    text = re.sub(r"(?m)^\d+,", f"{index},", h100(3))
    facts = parse_gpus(ended(text), ended(capture("no-processes.apps.csv")))
    assert facts.count == 3
    assert all(isinstance(gpu.index, Unknown) and not gpu.index.is_absence for gpu in facts.gpus)
    node = NodeFacts("n1", gpus=facts)
    row = take_census([node], Profile()).rows[0]
    assert (row.verdict, row.flags[0].startswith("index ")) == ("unknown", True)
    assert driver(facts).verdict is Verdict.UNKNOWN
