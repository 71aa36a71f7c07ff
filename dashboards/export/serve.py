"""Prometheus: the state as metrics, over HTTP on this machine or as a file for node_exporter."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.simple_server import make_server as simple_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.output import Output
from clusterctl.settings import Settings
from dashboards import select_feed as sources
from dashboards.export.metrics import COUNTER, METRICS, PREFIX, values
from dashboards.model.alert_book import AlertBook
from dashboards.model.state import INTERRUPTED, State, state_of
from dashboards.reduce import fold
from dashboards.select_feed import ended_by_signals
from dashboards.web.allowed_hosts import is_loopback, is_ours, our_names
from trainer.runlog.atomic_file import write_whole

FOREIGN = "ask by an address of this machine, by its own name, or by the name that --listen has\n"
REQUEST_S = 30.0  # for a client to send its request


class StateCollector(Collector):
    """Gives the newest state; `state` is replaced whole by the loop, never changed."""

    def __init__(self, state: State) -> None:
        self.show(state)

    def show(self, state: State) -> None:
        self._state, self._at = state, time.monotonic()

    def collect(self) -> Iterator[Family]:
        state, at = self._state, self._at
        info = GaugeMetricFamily(
            PREFIX + "build_info", "The version of clusterctl", labels=["version"]
        )
        info.add_metric([version("clusterctl")], 1.0)
        yield info
        # An exporter that reads nothing more must not look like a cluster where nothing changes.
        age_s = time.monotonic() - at
        yield GaugeMetricFamily(PREFIX + "state_age_seconds", "Since the figures were made", age_s)
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family: Family = kind(metric.full_name, metric.help, labels=metric.labels)
            for labels, value in values(metric, state):
                family.add_metric(labels, value)  # type: ignore[attr-defined]
            yield family


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry without the metrics of other libraries in this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def export(
    settings: Settings,
    output: Output,
    *,
    run_dir: Path | None,
    demo: bool,
    interval: float,
    listen: str,
    once: str | None,
) -> int:
    """Serve metrics until a signal, or write them once; returns the exit code.

    Raises `UsageError` for an address that cannot be listened on and a folder that is not there,
    `CouldNotFindOut` when the file cannot be written.
    """
    host, port = address(listen)
    if once is not None and once != "-" and not Path(once).absolute().parent.is_dir():
        raise UsageError(f"--once: there is no folder {Path(once).parent}")
    with ended_by_signals() as ending:
        feed = sources.live_feed(settings, output, run_dir=run_dir, demo=demo, interval_s=interval)
        state = replace(state_of(feed, interval), alerts=AlertBook(hurry=once is not None))
        collector = StateCollector(state)
        registry = registry_of(collector)
        batches = sources.live_batches(
            feed, interval_s=interval, ending=ending, limits=settings.limits, once=once is not None
        )
        with nullcontext() if once is not None else _served(host, port, registry, output):
            for batch in batches:
                state = fold(state, batch)
                collector.show(state)
        if once is None:
            return ending.exit_code
        if ending.is_set():
            return ending.exit_code or INTERRUPTED
        _write(once, registry, output)
        silent = state.count_silent()
        if silent:
            output.warn(f"{silent} of {len(state.nodes)} nodes give no readings", "warn")
        if state.run is not None and state.run.unread:
            output.warn(f"run {state.run.name} is not known: {state.run.unread}", "warn")
            return 3
        return 3 if silent else 0


@contextmanager
def _served(host: str, port: int, registry: CollectorRegistry, output: Output) -> Iterator[None]:
    """Answer requests in other threads while the block runs."""
    try:
        server = make_server(host, port, registry)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="--listen ADDRESS:PORT takes another one",
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        name = f"[{host}]" if ":" in host else host
        output.note(f"metrics on http://{name}:{server.server_port}/metrics; Ctrl-C ends")
        if not is_loopback(host):
            output.warn(
                "anybody who reaches this port can read the metrics: there is no password", "warn"
            )
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


class Request(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingWSGIServer):
    """A thread for each request: a client that sends nothing keeps no other waiting."""

    request_queue_size = socket.SOMAXCONN  # of 5, a burst of connections waits for seconds each

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing of a client that hangs up or sends nothing; one line of an error of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            print(f"a request failed ({what})", file=sys.stderr, flush=True)


def make_server(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    """A bound server of the metrics that answers to this machine's names. Raises `OSError`."""
    metrics, names = make_wsgi_app(registry), our_names(host)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if is_ours(environ.get("HTTP_HOST", ""), names):
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [FOREIGN.encode()]

    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    kind = type("Server", (Server,), {"address_family": family})
    server: WSGIServer = simple_server(host, port, answer, kind, Request)
    return server


def address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9839`, `[::1]:9839`, `:9839`, `9839`. Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(
            f"--listen: {text!r} is not a valid ADDRESS:PORT", hint="such as 127.0.0.1:9839"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def _write(where: str, registry: CollectorRegistry, output: Output) -> None:
    text = generate_latest(registry).decode("utf-8")
    if where == "-":
        output.lines(text)
        sys.stdout.flush()
        return
    if not where.endswith(".prom"):
        output.warn("node_exporter reads only files that end in .prom", "warn")
    path = Path(where)
    try:
        write_whole(path, text, 0o644)  # node_exporter is another user
    except OSError as error:
        raise CouldNotFindOut(f"{path} cannot be written: {error.strerror or error}") from None
