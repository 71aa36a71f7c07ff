"""A real prometheus scrapes the page and judges by our rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from dashboards.commands.export import PRINTED
from dashboards.export.metrics import METRICS
from dashboards.export.serve import StateCollector, registry_of
from tests.dashboards import grafana_board as board
from tests.dashboards import grafana_rules as rules
from tests.dashboards.conftest import demo_state
from tests.dashboards.export.serving import WAIT_S, exporting, get
from tests.dashboards.feeds.test_feeds import until
from tests.ports import free_port

RULES_FILE = PRINTED["rules"]
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    not PROMETHEUS or not PROMTOOL, reason="prometheus is not installed (make lab-tools)"
)


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


@pytest.mark.long
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
