"""The board and the rules that the command prints."""

from __future__ import annotations

import json
import re

import pytest

from clusterctl.cli import run
from dashboards.commands.export import PRINTED
from dashboards.export.metrics import METRICS
from tests.dashboards import grafana_board as board
from tests.dashboards import grafana_rules as rules

RULES_FILE = PRINTED["rules"]


def test_board_and_rules_are_what_the_list_makes() -> None:
    for name, module in (("board", board), ("rules", rules)):
        text = PRINTED[name].read_text(encoding="utf-8")
        assert text == module.render(), f"python -m {module.__name__} writes it again"


def test_board_asks_for_metrics_that_exist_and_every_panel_has_its_place() -> None:
    panels = [panel for panel in board.board()["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    drawn = {metric.full_name for metric in METRICS if metric.row}
    assert set(re.findall(r"clusterctl_\w+", " ".join(asked))) == drawn
    taken: set[tuple[int, int]] = set()
    for panel in board.board()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


# Of Grafana's value formats (grafana-data, valueFormats/categories.ts); another word is shown as it is.
UNITS = {"short", "sci", "percentunit", "bytes", "joule", "Bps", "watt", "celsius", "hertz", "s"}


def test_board_is_what_grafana_takes() -> None:
    """By its schema (kinds/dashboard/dashboard_kind.cue) and what it migrates by version."""
    made = board.board()
    assert (
        37 <= made["schemaVersion"] <= 42
    )  # below, legends and data sources were written otherwise
    assert re.fullmatch(r"[\w-]{8,40}", made["uid"])
    variables = {one["name"]: one["type"] for one in made["templating"]["list"]}
    assert variables == {"source": "datasource", "node": "query", "run": "query"}
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert set(place) == {"x", "y", "w", "h"}
        assert min(place["w"], place["h"]) > 0
        if panel["type"] == "row":
            assert (panel["collapsed"], panel["panels"]) == (False, [])
            continue
        assert panel["type"] == "timeseries"
        assert panel["fieldConfig"]["overrides"] == []
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["options"]["legend"]["showLegend"] is True
        assert panel["options"]["tooltip"]["mode"] in ("single", "multi", "none")
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == sorted(set(refs))
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${source}"}
    text = json.dumps(made)
    assert set(re.findall(r"\$\{?(\w+)", text.replace("$__all", ""))) <= set(variables)
    by_panel: dict[tuple[str, str], set[str]] = {}
    for metric in METRICS:
        by_panel.setdefault((metric.row, metric.panel), set()).add(metric.unit)
        # An aggregation keeps only the labels that it names.
        kept = re.search(r"by \(([\w, ]+)\)", metric.query)
        labels = set(kept[1].split(", ")) if kept else set(metric.labels)
        assert set(re.findall(r"{{(\w+)}}", metric.legend)) <= labels, metric.name
    assert all(len(units) == 1 for (row, _), units in by_panel.items() if row)


def test_files_come_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--print", "board"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "clusterctl"
    assert run(["export", "--print", "rules"]) == 0
    assert "ClusterctlGpuIdle" in capsys.readouterr().out
