"""One text for one value: sizes, rates, durations and counts for people."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import units
from clusterctl.checkpoints import report
from clusterctl.clocks.report import step_words
from clusterctl.gpus.processes import ProcessRow
from clusterctl.launch.restart.between import no_room
from clusterctl.transfer import push
from clusterctl.transport.base import Unreachable
from dashboards.model import units as cells
from trainer.runlog import units as of_trainer

SIZES = {
    0: "0 B",
    1: "1 B",
    1023: "1,023 B",
    1024: "1 KiB",
    1500: "1.46 KiB",
    64 << 20: "64 MiB",
    512 << 20: "512 MiB",
    1_000_000_000: "954 MiB",
    (1 << 30) - 1: "1 GiB",
    1010 << 20: "1,010 MiB",
    73_700_000_000: "68.6 GiB",
    5 << 38: "1.25 TiB",
    1 << 51: "2,048 TiB",
    -1536: "-1.5 KiB",
}
DURATIONS = {
    0: "0 s",
    1e-6: "0 s",
    0.00021: "0.21 ms",
    0.0489: "49 ms",
    0.0999: "0.1 s",
    0.453: "0.45 s",
    5: "5 s",
    7.23: "7.2 s",
    9.96: "10 s",
    45.4: "45 s",
    59.6: "1 min 00 s",
    125: "2 min 05 s",
    3599.7: "1 h 00 min",
    7384: "2 h 03 min",
    273_600: "3 d 04 h",
    -7384: "-2 h 03 min",
    math.inf: "inf s",
}
MEASURED = {
    0.0489: "48.9 ms",
    0.453: "0.453 s",
    4.113: "4.11 s",
    12.34: "12.3 s",
    65.2: "1 min 05 s",
}
numbers = st.floats(-1e20, 1e20)


def test_the_trainer_s_module_is_that_of_checks() -> None:
    ours, other = (Path(str(one.__file__)).read_bytes() for one in (units, of_trainer))
    assert ours == other


@pytest.mark.parametrize("module", [units, of_trainer], ids=["checks", "trainer"])
def test_texts(module: object) -> None:
    one = units if module is units else of_trainer
    assert {value: one.size(value) for value in SIZES} == SIZES
    assert {value: one.rate(value) for value in SIZES} == {
        value: f"{text}/s" for value, text in SIZES.items()
    }
    assert {value: one.duration(value) for value in DURATIONS} == DURATIONS
    assert {value: one.measured(value) for value in MEASURED} == MEASURED
    assert [one.ago(s) for s in (-3.0, 7384)] == ["0 s ago", "2 h 03 min ago"]
    assert [one.offset(s) for s in (0.0, -1e-6, 0.00042, -2.514, -0.02)] == [
        "+0 ms", "+0 ms", "+0.42 ms", "-2.51 s", "-20 ms",
    ]  # fmt: skip
    assert [one.counted(*of) for of in ((1, "node"), (24, "node"), (3264, "process"))] == [
        "1 node", "24 nodes", "3,264 processes",
    ]  # fmt: skip


@given(numbers)
def test_both_modules_say_the_same(value: float) -> None:
    for name in ("size", "rate", "duration", "measured", "offset", "ago"):
        assert getattr(units, name)(value) == getattr(of_trainer, name)(value)
    assert units.counted(int(value), "class") == of_trainer.counted(int(value), "class")


@given(st.integers(0, 1 << 60))
def test_a_size_is_within_half_of_its_last_digit(count: int) -> None:
    text, unit = units.size(count).replace(",", "").split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    value = float(text)
    least = 1.0 if unit == "B" or value >= 100 else 0.1 if value >= 10 else 0.01
    assert abs(value * factor - count) <= 0.5001 * factor * least
    assert unit == "TiB" or value < 1024
    assert unit == "B" or value >= 1


@given(st.floats(0, 1e7))
def test_a_duration_is_within_its_last_digit(seconds: float) -> None:
    text = units.duration(seconds)
    sizes = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"([0-9.,]+) (ms|s|min|h|d)", text)
    value = sum(float(number.replace(",", "")) * sizes[unit] for number, unit in parts)
    assert " ".join(" ".join(part) for part in parts) == text
    least = sizes[parts[-1][1]] if seconds >= 9.95 else max(0.05 * seconds, 1e-5)
    assert abs(value - seconds) <= 1.001 * least


BYTES, SECONDS = 73_700_000_000, 7384


def test_commands_print_one_text_for_one_value() -> None:
    """One size and one duration through what renders them in each package."""
    row = ProcessRow("n1", ("0",), 7, "me", SECONDS, BYTES, None, None, "python3", None)
    plan = push.Plan(Path("x"), "/x", folder=False, files=1, size=BYTES, mode=0o644)
    sizes = [
        " ".join(row.cells(with_run=False)),
        plan.sentence(),
        no_room(Path("/x"), 2 * BYTES, BYTES),
        report._held(2, BYTES),
        cells.size(BYTES),
        cells.part(BYTES, 2 * BYTES).replace("/", " GiB/"),
    ]
    assert [text for text in sizes if "68.6 GiB" not in text] == []
    times = [
        " ".join(row.cells(with_run=False)),
        Unreachable("tcp", SECONDS, "no answer").sentence(),
        cells.ago(SECONDS),
        cells.measured(SECONDS),
        step_words(SECONDS, "now"),
    ]
    assert [text for text in times if "2 h 03 min" not in text] == []
