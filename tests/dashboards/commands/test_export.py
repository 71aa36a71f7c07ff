"""The exporter: one list of metrics for all, unknown is never 0, a real prometheus scrapes and judges."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clusterctl.cli import run
from clusterctl.errors import UsageError
from dashboards.commands.export import PRINTED
from dashboards.export.metrics import METRICS
from dashboards.export.serve import StateCollector, address, registry_of
from dashboards.model.samples import Gpu, NodeDown, NodeSample, RunOpened, StepSample, Tick
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.dashboards import grafana_board as board
from tests.dashboards import grafana_rules as rules
from tests.dashboards.conftest import NOW, demo_state
from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.runs import record
from tests.ports import free_port

RULES_FILE = PRINTED["rules"]
WAIT_S = 60.0  # a deadline for a loaded machine
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    not PROMETHEUS or not PROMTOOL, reason="prometheus is not installed (make lab-tools)"
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(text: str) -> Samples:
    """(name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def page(state: Any) -> Samples:
    return scraped(generate_latest(registry_of(StateCollector(state))).decode())


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get(("clusterctl_" + name, tuple(sorted(labels.items()))))


def test_metrics_of_the_demo() -> None:
    samples = page(demo_state())
    node = "ml-64-node-001"
    assert value(samples, "node_up", node=node) == 1
    assert value(samples, "node_up", node="ml-64-node-003") == 0
    assert 600 < (value(samples, "gpu_power_watts", node=node, gpu="3") or 0) < 710
    assert value(samples, "gpu_sm_clock_hertz", node=node, gpu="0") == 1980e6
    assert value(samples, "gpus_missing", node="ml-64-node-008") == 1
    assert value(samples, "run_step", run="015-STDiT3-XL-2")
    assert value(samples, "run_phase_seconds", run="015-STDiT3-XL-2", phase="encode") == pytest.approx(1.1)  # fmt: skip
    lost = {"id": "gpu.missing", "severity": "fail", "node": "ml-64-node-008", "part": "GPU 6"}
    assert value(samples, "alert_active", **lost) == 1


def test_what_is_not_known_has_no_sample() -> None:
    """Neither a figure that could not be read, nor the last one of a node that is silent or gone."""
    gpus = (Gpu(0, power_w=None, util=0.5), Gpu(1, error="GPU is lost"))
    state = initial_state(("n1", "n2", "n3"), now_s=NOW, source="nodes.txt")
    samples = [NodeSample(name, NOW, cpu=None, load1=3.0, gpus=gpus) for name in ("n1", "n2", "n3")]
    state = fold(state, [*samples, Tick(NOW), NodeDown("n3", NOW + 5, "tcp", "refused")])
    state = fold(state, [replace(samples[0], at_s=NOW + 5), Tick(NOW + 5)])
    found = page(state)
    about = {name for name, labels in found if ("node", "n1") in labels}
    assert "clusterctl_node_load1" in about
    assert "clusterctl_gpu_utilization_ratio" in about
    assert about.isdisjoint(["clusterctl_node_cpu_ratio", "clusterctl_gpu_power_watts"])
    assert value(found, "node_reading_age_seconds", node="n2") == 5.0
    for name in ("n2", "n3"):
        left = {metric for metric, labels in found if ("node", name) in labels}
        assert left <= {"clusterctl_node_up", "clusterctl_node_reading_age_seconds", "clusterctl_alert_active"}  # fmt: skip
        assert value(found, "node_up", node=name) == 0


def test_figures_of_steps_are_those_that_the_newest_steps_know() -> None:
    """What is measured at times is the last one known, losses by part are means."""
    bands = ({"0-250": 0.2, "750-1000": 0.6}, {"0-250": 0.4})
    steps = [
        record(1, update_ratio=2e-3, loss_by_time=bands[0], loss_by_bucket={"144p 51f": 0.5}),
        record(2, loss_by_time=bands[1], mfu=0.4, memory_reserved_bytes=1 << 30),
    ]
    opened = RunOpened("outputs/001-x", "001-x", NOW)
    state = fold(initial_state((), now_s=NOW), [opened, *(StepSample(one, NOW) for one in steps)])
    found = page(state)
    assert value(found, "run_step", run="001-x") == 2
    assert value(found, "run_update_ratio", run="001-x") == 2e-3
    assert value(found, "run_mfu_ratio", run="001-x") == 0.4
    assert value(found, "run_memory_reserved_bytes", run="001-x") == 1 << 30
    assert value(found, "run_loss_by_time", run="001-x", band="0-250") == pytest.approx(0.3)
    assert value(found, "run_loss_by_time", run="001-x", band="750-1000") == 0.6
    assert value(found, "run_loss_by_bucket", run="001-x", bucket="144p 51f") == 0.5
    assert not [name for name, _ in found if "ema_gap" in name]  # not known: no sample


def test_run_alone_says_nothing_of_nodes() -> None:
    state = initial_state((), now_s=NOW)
    assert {name for name, _ in page(state)} == {
        "clusterctl_build_info", "clusterctl_state_age_seconds", "clusterctl_alerts",
    }  # fmt: skip


def test_names_follow_prometheus() -> None:
    assert len({metric.full_name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help
        assert bool(metric.row) == bool(metric.panel) == bool(metric.legend), metric.name


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


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9839", ("127.0.0.1", 9839)),
        ("9839", ("127.0.0.1", 9839)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:9", ("::1", 9)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses_are_loopback_unless_said(text: str, parsed: tuple[str, int]) -> None:
    assert address(text) == parsed


@pytest.mark.parametrize("text", ["", "here", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        address(text)


def test_once_writes_the_file_whole_and_tells_of_silent_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clusterctl.prom"
    path.write_text("old\n")
    args = ["export", "--demo", "--once"]
    assert run([*args, str(path)]) == 3  # a node of the demo does not answer
    assert value(scraped(path.read_text()), "node_up", node="ml-64-node-001") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["clusterctl.prom"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert "of 24 nodes give no readings" in capsys.readouterr().err
    assert run([*args, str(tmp_path / "no" / "x.prom")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@contextmanager
def exporting(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`clusterctl export --demo` and its address."""
    child = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "export", "--demo", "--listen", "127.0.0.1:0"],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)
        assert found, line
        yield child, found[1]
    finally:
        child.kill()
        child.communicate()


def get(url: str, host: str | None = None) -> str:
    headers = {} if host is None else {"Host": host}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return str(answer.read().decode())


def test_page_of_another_site_cannot_read_the_metrics(tmp_path: Path) -> None:
    """Its own name may point to this machine; the request then says that name."""
    with exporting(tmp_path) as (_, where):
        port = where.rpartition(":")[2]
        for name in (where, f"localhost:{port}", "10.1.2.3"):
            assert "clusterctl_build_info" in get(f"http://{where}/metrics", name)
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"http://{where}/metrics", name)
            assert refused.value.code == 403
            assert "its own name" in refused.value.read().decode()


def test_who_asks_and_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    with exporting(tmp_path) as (_, where):
        host, port = where.split(":")
        with socket.create_connection((host, int(port))) as mute:
            mute.send(b"GET /metrics HT")
            assert "clusterctl_build_info" in get(f"http://{where}/metrics")


def test_serves_on_this_machine_until_it_is_told_to_end(tmp_path: Path) -> None:
    with exporting(tmp_path) as (child, where):
        until(lambda: "clusterctl_gpu_power_watts{" in get(f"http://{where}/metrics"), WAIT_S)
        taken = run(["export", "--demo", "--listen", where])
        assert taken == 2
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=WAIT_S)
        assert (child.returncode, out, err) == (0, "", "")


def _started(directory: Path, config: Path) -> tuple[subprocess.Popen[bytes], int]:
    """It takes no port 0, so a free one is looked for, and another one when that was lost."""
    for attempt in range(5):
        port = free_port()
        with (directory / "prometheus.log").open("w") as log:
            child = subprocess.Popen(
                [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={directory / f'tsdb{attempt}'}",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        until(lambda child=child, port=port: child.poll() is not None or is_ready(port), WAIT_S)  # type: ignore[misc]
        if child.poll() is None:
            return child, port
    raise AssertionError((directory / "prometheus.log").read_text())


def is_ready(port: int) -> bool:
    try:
        return bool(get(f"http://127.0.0.1:{port}/-/ready"))
    except OSError:
        return False


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Callable[..., Any]]:
    """A prometheus that scrapes `target` each second; gives a function that asks its API."""
    config = directory / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n"
        f"rule_files: ['{RULES_FILE}']\n"
        f"scrape_configs: [{{job_name: clusterctl, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    child, port = _started(directory, config)

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            return json.loads(get(url))["data"]
        except OSError:
            assert child.poll() is None, (directory / "prometheus.log").read_text()
            return {"result": []}

    try:
        yield ask
    finally:
        child.terminate()
        child.wait(WAIT_S)


@pytest.mark.slow
@needs_prometheus
def test_real_prometheus_scrapes_it_and_judges_our_rules(tmp_path: Path) -> None:
    def names(answer: Any) -> set[str]:
        return {one["metric"]["alertname"] for one in answer["result"]}

    with exporting(tmp_path) as (child, where), prometheus(tmp_path, where) as ask:
        until(lambda: ask("query", query='up{job="clusterctl"} == 1')["result"], WAIT_S)
        firing = 'ALERTS{alertstate="firing"}'
        wanted = {"ClusterctlGpuMissing", "ClusterctlNodeDown"}
        until(lambda: names(ask("query", query=firing)) >= wanted, WAIT_S)
        (lost,) = ask("query", query='ALERTS{alertname="ClusterctlGpuMissing"}')["result"]
        assert lost["metric"]["severity"] == "critical"
        assert (lost["metric"]["node"], lost["metric"]["part"]) == ("ml-64-node-008", "GPU 6")
        (group,) = ask("rules")["groups"]
        assert len(group["rules"]) == rules.render().count("- alert:")
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        for metric in METRICS:
            if metric.row:
                query = board.expression(metric).replace("$node", ".*").replace("$run", ".*")
                assert ask("query", query=query)["resultType"] == "vector", query
        for name in ("gpu_power_watts", "run_loss", "node_cpu_ratio"):
            assert ask("query", query=f"clusterctl_{name}")["result"]
        child.kill()
        down = 'ALERTS{alertname="ClusterctlExporterDown"}'  # pending: it waits a minute
        until(lambda: names(ask("query", query=down)) == {"ClusterctlExporterDown"}, WAIT_S)


RULE_TESTS = """
rule_files: [{file}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'clusterctl_disk_used_bytes{{node="n1",path="/data"}}'
        values: '600+1x400'
      - series: 'clusterctl_disk_total_bytes{{node="n1",path="/data"}}'
        values: '1000+0x400'
      - series: 'clusterctl_disk_used_bytes{{node="n2",path="/data"}}'
        values: '600+0x400'
      - series: 'clusterctl_disk_total_bytes{{node="n2",path="/data"}}'
        values: '1000+0x400'
      - series: 'clusterctl_node_up{{node="n3"}}'
        values: '1+0x100 0 1 0 1 0 1 0 1+0x200'
      - series: 'clusterctl_node_up{{node="n4"}}'
        values: '1+0x100 0 0 0 1+0x300'
      - series: 'clusterctl_build_info{{version="1"}}'
        values: '1+0x400'
      - series: 'up{{job="clusterctl"}}'
        values: '1+0x200 0+0x200'
      - series: 'clusterctl_state_age_seconds'
        values: '0+0x40 40+0x40 0+0x400'
    alert_rule_test:
      - eval_time: 1h
        alertname: ClusterctlDiskFullIn6h
        exp_alerts:
          - exp_labels: {{severity: warning, node: n1, path: /data}}
            exp_annotations: {{summary: "n1 /data is full in 6 h", description: "At the pace of the last hour."}}
      - eval_time: 30m
        alertname: ClusterctlNodeComesAndGoes
        exp_alerts:
          - exp_labels: {{severity: warning, node: n3}}
            exp_annotations:
              summary: "n3 was lost and came back three times in an hour"
              description: "A cable, a machine that is too busy for its sshd, or a power supply."
      - eval_time: 30m
        alertname: ClusterctlExporterDown
        exp_alerts: []
      - eval_time: 53m
        alertname: ClusterctlExporterDown
        exp_alerts:
          - exp_labels: {{severity: critical, job: clusterctl}}
            exp_annotations:
              summary: clusterctl export does not answer
              description: "Nothing is known of the cluster: this is no sign that it is well."
      - eval_time: 15m
        alertname: ClusterctlExporterStuck
        exp_alerts:
          - exp_labels: {{severity: critical}}
            exp_annotations:
              summary: clusterctl export answers with old figures
              description: Its reading of nodes and run stands still.
      - eval_time: 40m
        alertname: ClusterctlExporterStuck
        exp_alerts: []
"""


@needs_prometheus
def test_promtool_finds_the_rules_right_and_those_of_long_memory_fire(tmp_path: Path) -> None:
    file = RULES_FILE
    for words, text in ((["check", "rules", str(file)], ""), (["test", "rules"], RULE_TESTS.format(file=file))):  # fmt: skip
        if text:
            (tmp_path / "test.yml").write_text(text)
            words = [*words, str(tmp_path / "test.yml")]
        done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, timeout=WAIT_S)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_promtool_finds_the_page_right() -> None:
    text = generate_latest(registry_of(StateCollector(demo_state())))
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
