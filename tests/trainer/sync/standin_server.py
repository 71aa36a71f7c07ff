"""As much of a W&B server as `wandb sync` asks for: it keeps the lines of one run's history."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ME = {"id": "E", "name": "me"}


class StandIn(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = 0  # requests
        self.lines: dict[int, dict[str, Any]] = {}  # of the history, by place
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self) -> dict[str, Any]:
        """Everything that is asked by GraphQL, in one."""
        viewer = {
            "id": "1",
            "entity": "me",
            "username": "me",
            "flags": "{}",
            "teams": {"edges": []},
        }
        bucket = {"id": "B", "name": "r", "displayName": "r", "sweepName": None, "config": "{}"}
        counts = dict.fromkeys(("logLineCount", "eventsLineCount"), 0)
        tail = json.dumps([json.dumps(self.lines[max(self.lines)])]) if self.lines else "[]"
        known = {**bucket, **counts, "historyLineCount": len(self.lines), "historyTail": tail}
        known |= {"eventsTail": "[]", "summaryMetrics": "{}", "tags": [], "wandbConfig": '{"t":1}'}
        model = {"id": "P", "name": "clusterctl", "entity": ME, "bucket": known}
        project = {"id": "P", "internalId": "1", "name": "clusterctl", "entity": ME}
        made = {**bucket, "historyLineCount": len(self.lines), "project": project}
        return {
            "viewer": viewer,
            "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []},
            "model": model if self.lines else {"bucket": None},
            "upsertBucket": {"bucket": made, "inserted": not self.lines},
            "createRunFiles": {"runID": "B", "uploadHeaders": [], "files": []},
        }

    def take(self, files: dict[str, Any]) -> None:
        for name, part in files.items():
            if "history" in name:
                for place, line in enumerate(part["content"], part["offset"]):
                    self.lines[place] = json.loads(line)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_GET(self) -> None:
        self._say({})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        if self.path.endswith("/graphql"):
            self._say({"data": self.server.answer()})
            return
        if self.path.endswith("/file_stream"):
            self.server.take(json.loads(raw).get("files", {}))
        self._say({"exitcode": None, "limits": {}})

    def _say(self, answer: dict[str, Any]) -> None:
        self.server.asked += 1
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[StandIn]:
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
