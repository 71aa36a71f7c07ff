"""The page about a run: whole, alone, honest about what did not count, safe whatever a run says."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clusterctl.cli import run as command
from clusterctl.runs.attempts import Account, Attempt
from dashboards.report import svg
from dashboards.report.page import page, read_run
from tests.clusterctl.runs.attempts_of import BEGAN, Attempts, three_attempts
from tests.dashboards.runs import record, write_run
from trainer.runlog.telemetry import Event, Writer

VOID = {"meta", "br", "!doctype"}


class Document(HTMLParser):
    """Fails for tags that are not closed; keeps titles, texts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        assert tag != "script"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def made(run: Attempts, run_dir: Path) -> str:
    return page(*read_run(run.write(run_dir), run.at_s), run.at_s)


def points(text: str, kind: str) -> list[float]:
    found = re.search(rf'<polyline class="{kind}" points="([^"]*)"', text)
    assert found is not None
    return [float(pair.split(",")[0]) for pair in found[1].split()]


def test_timeline_tells_of_each_attempt_without_colour(tmp_path: Path) -> None:
    text = made(three_attempts(), tmp_path / "001-x")
    document = Document(text)
    assert document.addresses == []
    about = [title for title in document.titles if title.startswith("attempt ")]
    assert "attempt 2, on n[1-2], 4 ranks, from epoch0-global_step100, steps 101 to 120" in about[1]
    assert about[1].endswith("hang-data on n1: rank 0 on n1: hang-data")
    assert about[2].endswith("goes on")
    assert text.count('fill="url(#hatch)"') == 2
    for label in ("! 1", "! 2", "signal-9 on n2", "hang-data on n1", "goes on"):
        assert f">{label}</text>" in text
    assert "effective training time</dt><dd>49%" in text
    assert "<td class=\"\">hang-data</td><td class=\"n\">1 min 48 s</td>" in text  # fmt: skip
    assert "two crashes" in text


def test_no_line_goes_back_and_broken_off_steps_are_not_drawn(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(100, loss=1.0)
    run.train(50, loss=900.0)
    run.incident("diverged")
    run.restart()
    run.attempt(after=100)
    run.train(20, loss=0.5)
    text = made(run, tmp_path / "001-x")
    for kind in ("each", "smooth"):
        found = points(text, kind)
        assert len(found) == 120
        assert found == sorted(found)
    assert "900" not in re.sub(r"points=\"[^\"]*\"", "", text)
    assert "an attempt went on with step 101" in text


def test_bars_lie_beside_each_other_within_the_picture(tmp_path: Path) -> None:
    text = made(three_attempts(), tmp_path / "001-x")
    bars = re.findall(r'<rect class="bar" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)
    ends = [(float(x), float(x) + float(width)) for x, width in bars]
    assert len(ends) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    assert ends[0][0] == svg.LEFT
    assert ends[-1][1] == pytest.approx(svg.WIDTH - svg.RIGHT)


def test_what_a_run_says_is_text_and_never_markup(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>\x1b]0;x\x07\u202e'
    run = Attempts()
    run.attempt(nodes=(evil,), excluded=[{"node": evil, "why": evil}])
    run.train(3)
    run.incident(evil, node=evil)
    text = made(run, tmp_path / "001-<b>")
    Document(text)
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("events", ["", "{\n[]\nnull\n", '{"event": "attempt", "data": {"attempt": 1}}\n'])  # fmt: skip
def test_run_without_attempts_steps_or_sense_has_a_page(tmp_path: Path, events: str) -> None:
    (tmp_path / "001-x").mkdir()
    (tmp_path / "001-x" / "events.jsonl").write_text(events)
    Document(page(*read_run(tmp_path / "001-x", BEGAN), BEGAN))


def test_run_without_a_launcher_has_one_attempt(tmp_path: Path) -> None:
    text = page(*read_run(write_run(tmp_path / "001-x", steps=300, total=300), BEGAN), BEGAN)
    assert Document(text).titles.count("001-x") == 1
    assert ">goes on</text>" in text


def test_thousand_attempts_stay_a_page(tmp_path: Path) -> None:
    attempts = tuple(
        Attempt(number, BEGAN + 60 * number, BEGAN + 60 * number + 50, ending="signal-9")
        for number in range(1, 1001)
    )
    text = svg.timeline(Account(attempts), BEGAN + 60_060)
    assert text.count('class="bar"') == svg.MOST_ROWS
    assert len(text) < 300_000


@pytest.mark.long
def test_command_writes_the_page_into_the_run_or_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = three_attempts().write(Path("outputs/003-x"))
    assert command(["report"]) == 0
    assert capsys.readouterr().out == "outputs/003-x/report.html\n"
    Document((run_dir / "report.html").read_text())
    assert (run_dir / "report.html").stat().st_mode & 0o777 == 0o600
    assert command(["report", "3", "--out", "other.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["page"]) == ("outputs/003-x", "other.html")
    assert command(["report", "--out", "-"]) == 0
    Document(capsys.readouterr().out)
    assert command(["report", "--out", "missing/x.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_page_of_a_run_that_cannot_be_read_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=3)
    (run_dir / "events.jsonl").unlink()
    (run_dir / "events.jsonl").mkdir()
    assert command(["report", str(run_dir)]) == 3
    error = f"the run cannot be read: {run_dir}/events.jsonl: it is a folder, no plain file"
    assert error in capsys.readouterr().err
    assert not (run_dir / "report.html").exists()


def test_page_shows_validation_and_loss_by_time_of_what_counts(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=20, total=40)
    writer = Writer(run_dir)

    def measured(step: int, model: float, ema: float) -> Event:
        return Event("validation", "x", {"model": {"loss": model}, "ema": {"loss": ema}}, step)

    for step in range(21, 30):
        bands = {"750-1000": 0.6 + step / 100, "0-250": 0.2}
        writer.write(record(step, total=40, loss_by_time=bands))
    for event in (measured(10, 0.9, 0.95), measured(20, 0.7, 0.75), measured(28, 9.0, 9.0)):
        writer.write(event)
    writer.write(Event("start", "again", {}, 25))
    for step in range(26, 31):
        writer.write(record(step, total=40, loss_by_time={"750-1000": 0.5, "0-250": 0.25}))
    writer.close()
    _, quality = read_run(run_dir, BEGAN)
    assert [(one.step, one.ema) for one in quality.validations] == [(10, 0.95), (20, 0.75)]
    assert list(quality.by_time) == ["0-250", "750-1000"]
    steps, losses = quality.by_time["750-1000"]
    assert steps == list(range(21, 31))
    assert losses[-5:] == [0.5] * 5
    text = page(*read_run(run_dir, BEGAN), BEGAN)
    Document(text)
    for said in (
        "Validation loss",
        "Loss by time",
        ">weights</text>",
        ">EMA</text>",
        ">0-250</text>",
    ):
        assert said in text
