"""Downloads from the hub: what is fetched and how far it is, to people and to waiting ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from trainer.components import fetch, hub_parts
from trainer.config.load import load
from trainer.errors import CheckpointError
from trainer.runlog import progress
from trainer.weights import hub

COMMIT, PART = "a" * 40, 50_000
FILES = {"config.json": b"{}", "model.safetensors": b"x" * 20 * PART, "notes.txt": b"not asked for"}


def entry(name: str) -> dict[str, object]:
    """Of a file, as the hub's list of a repository has it."""
    data = FILES[name]
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": oid}


class Hub(BaseHTTPRequestHandler):
    """Speaks as the hub does. It sends the second half of a large file when it is told to."""

    go_on = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(with_body=False)

    def do_GET(self, with_body: bool = True) -> None:
        path = self.path.partition("?")[0]
        headers = {"X-Repo-Commit": COMMIT}
        if "/tree/" in path:
            data = json.dumps([entry(name) for name in FILES]).encode()
        elif "/api/models/" in path:
            names = [{"rfilename": name} for name in FILES]
            data = json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": names}).encode()
        elif (name := path.rpartition("/")[2]) in FILES:
            data = FILES[name]
            headers["ETag"] = f'"{entry(name)["oid"]}"'
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            half = len(data) // 2 if len(data) > PART else len(data)
            self.wfile.write(data[:half])
            self.wfile.flush()
            if half < len(data):
                assert self.go_on.wait(60)
            self.wfile.write(data[half:])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a hub."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, known = f"http://127.0.0.1:{server.server_port}", huggingface_hub.constants
        monkeypatch.setattr(known, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(known, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(known, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(known, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(known, "DOWNLOAD_CHUNK_SIZE", PART)
        monkeypatch.setattr(hub, "LOOK_S", 0.05)
        monkeypatch.setattr(hub.LOG, "propagate", True)  # a command of another test has set it up
        monkeypatch.setattr(progress, "_IN_LOG_S", 0.0)
        yield tmp_path
        server.shutdown()


def test_download_says_what_it_fetches_and_how_far_it_is(
    cache: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ranks that wait end after a while in which nothing comes; T5-XXL takes longer than that."""
    caplog.set_level(logging.INFO, "trainer")
    Hub.go_on.clear()
    counted: list[int] = []

    def lives() -> None:
        blobs = cache / "models--owner--name" / "blobs"
        counted.append(sum(path.stat().st_size for path in blobs.iterdir()))
        if counted[-1] >= 8 * PART:  # what has arrived is seen before the file is whole
            Hub.go_on.set()

    options = {"allow_patterns": ["*.json", "*.safetensors"]}
    folder = hub.download("owner/name", lives=lives, **options)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not (folder / "notes.txt").exists()
    assert counted == sorted(counted)
    said = "fetching owner/name from the hub: 977 KiB, into "
    assert any(said in record.getMessage() for record in caplog.records)
    shown = capfd.readouterr().err
    assert re.search(r"fetching owner/name: [\d.]+ [KM]?i?B of 977 KiB, ", shown)
    assert "it/s" not in shown  # no bars of the hub's own
    caplog.clear()
    assert hub.download("owner/name", lives=lives, **options) == folder
    assert "fetching" not in caplog.text + capfd.readouterr().err


def test_whole_cache_is_enough_without_the_hub(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub.go_on.set()
    folder = hub.download("owner/name")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert hub.download("owner/name") == folder


def test_download_that_fails_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, dry_run: bool = False, **__: object) -> list[object]:
        if not dry_run:
            raise ConnectionResetError("peer")
        return [type("File", (), {"file_size": 5, "will_download": True})]

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(CheckpointError, match="the hub failed: ConnectionResetError") as caught:
        hub.download("owner/name")
    assert "hf download owner/name --local-dir DIR" in str(caught.value.hint)


@pytest.mark.parametrize("features", [False, True])
def test_run_fetches_only_what_it_names_on_the_hub(
    cache: Path, tmp_path: Path, features: bool
) -> None:
    Hub.go_on.set()
    words = ["--vae.type", "OpenSoraVAE_V1_2", "--vae.from-pretrained", "owner/name"]
    words += ["--text-encoder.type", "t5", "--text-encoder.from-pretrained", str(tmp_path)]
    words += ["--dataset.features", str(tmp_path)] if features else []
    parts = hub_parts(load("demo", words))
    assert [repository for repository, _ in parts] == ([] if features else ["owner/name"])
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    fetch(parts, nothing)
    assert (cache / "models--owner--name").is_dir() is not features
