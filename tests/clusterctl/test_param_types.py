"""Numbers and times on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from clusterctl import cli
from clusterctl.param_types import Duration, Number, Percent


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1e2", 100), ("0.5", 0.5), (".5", 0.5), (7, 7), ("10m", 600), ("1h30m", 5400), ("1.5H", 5400), (" 2d ", 172_800)],
)  # fmt: skip
def test_times_as_people_write_them(text: object, seconds: float) -> None:
    assert Duration(0.1).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "ten", "10 m", "m", "", "5m3", "0", "-5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration(0.1).convert(text, None, None)


@pytest.mark.parametrize("text", ["5", "5%", " 5.0 % ", 5])
def test_percent_with_or_without_its_sign(text: object) -> None:
    assert Percent(0).convert(text, None, None) == 0.05


@pytest.mark.parametrize("text", ["", "%", "-1%", "five", "nan", "1.2.3%", "5%%"])
def test_what_is_no_percent_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Percent(0).convert(text, None, None)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", float("nan"), "-1"])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(click.BadParameter):
        Number(0).convert(value, None, None)


@pytest.mark.parametrize(
    "flags", [["--deadline", "inf"], ["--connect-timeout", "nan"], ["--command-timeout", "1e300"]]
)
def test_a_wait_without_an_end_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("127.0.0.9\n")
    assert cli.run(["run", "true", str(nodes), *flags]) == 2
    assert flags[0] in capsys.readouterr().err
