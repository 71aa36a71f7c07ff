"""The page of a comparison, and the command that writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clusterctl.cli import run as command
from clusterctl.compare.judge import Limits, compare
from clusterctl.compare.read import read
from dashboards.report import curves
from dashboards.report.comparison import page
from tests.clusterctl.compare.runs_of import steps, write
from tests.dashboards.report.test_page import Document


@pytest.mark.long
def test_page_has_both_curves_and_their_difference(tmp_path: Path) -> None:
    runs = [read(write(tmp_path / f"00{seed}-x", steps(400, seed))) for seed in (1, 2)]
    text = page([compare(*runs, Limits(0.01, 0.05))], "AB", 0.0)
    document = Document(text)
    assert document.addresses == []
    assert text.count('<polyline class="one"') == text.count('<polyline class="other"') == 1
    assert text.count('class="dot"') == 400 // 20
    assert "Loss over steps" in text
    assert "Loss over clips" not in text  # equal batches: it is the same picture


@pytest.mark.long
def test_page_has_curves_over_clips_where_batches_differ(tmp_path: Path) -> None:
    runs = [
        read(write(tmp_path / f"00{clips}-x", steps(400, 1, clips=clips))) for clips in (32, 64)
    ]
    assert "Loss over clips" in page([compare(*runs, Limits())], "AB", 0.0)


def test_names_of_runs_and_buckets_are_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "a<script>", steps(60, 1))
    path = folder / "telemetry.jsonl"
    path.write_text(path.read_text().replace("256px", "<b>\\u001b"))
    runs = read(folder), read(write(tmp_path / "b", steps(60, 2)))
    text = page([compare(*runs, Limits())], "AB", 0.0)
    Document(text)
    assert "<script>" not in text
    assert "\x1b" not in text


def test_smoothed_curve_is_the_mean_of_each_part() -> None:
    places = [float(i) for i in range(1201)]
    found = curves.smoothed(places, [2.0 * at for at in places])
    assert len(found) == curves.BINS
    assert all(y == pytest.approx(2 * x) for x, y in found)
    assert curves.smoothed([1.0, 2.0], [float("nan")] * 2) == []


def test_labels_of_curves_that_end_together_lie_apart() -> None:
    points = [(0.0, 1.0), (100.0, 0.5)]
    text = curves.curves([("A", points), ("B", [(0.0, 1.0), (100.0, 0.501)])], "steps")
    heights = [float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="start">[AB]<', text)]
    assert abs(heights[0] - heights[1]) >= 12


@pytest.mark.long
def test_command_gives_codes_for_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, slower in ((1, 1.0), (2, 1.2), (3, 1.0)):
        write(Path(f"outputs/00{number}-x"), steps(300, number, slower=slower))
    assert command(["compare", "1", "2", "--max-slowdown", "5%"]) == 1
    assert command(["compare", "1", "3", "--max-slowdown", "5%"]) == 0
    assert command(["compare", "1", "3", "--max-loss-increase", "0.01%", "-q"]) == 3
    capsys.readouterr()
    assert command(["compare", "1", "3", "2", "--max-slowdown", "5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["exit_code"] for one in found["comparisons"]] == [0, 1]
    assert [one["run"] for one in found["runs"]] == [f"outputs/00{n}-x" for n in (1, 3, 2)]
    assert command(["compare", "1", "2", "3", "--out", "x.html"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    Document(Path("x.html").read_text())
