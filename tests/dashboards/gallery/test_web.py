"""The gallery over HTTP: its page, its videos in ranges of bytes, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.gallery.web import application
from dashboards.web.access import Access
from tests.dashboards.gallery.test_page import put, two
from trainer.runlog.own_modules import module_command

PATIENCE_S = 90.0


class Served:
    """`clusterctl gallery RUN --web` on a free port."""

    def __init__(self, run: Path) -> None:
        command = module_command("clusterctl", "gallery", run, "--web", "--port", "0", "-q")
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.match(r"http://127.0.0.1:(\d+)/([\w-]{20,})/ ", line)
        assert found, line
        self.port, self.word = int(found[1]), found[2]

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": "localhost", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    pytest.importorskip("aiohttp")
    put(tmp_path / "run", "a", 1, two("a cat", "a dog"))
    (tmp_path / "run" / "telemetry.jsonl").write_text("")
    put(tmp_path / "other", "private", 2, two("a passport", "a letter"))  # not of this run
    (tmp_path / "run/samples/0linked").symlink_to(tmp_path / "other/samples/private")
    one = Served(tmp_path / "run")
    yield one
    one.close()


@pytest.mark.long
def test_page_and_videos_are_served_and_nothing_else(served: Served, tmp_path: Path) -> None:
    home = f"/{served.word}/"
    folder = tmp_path / "run" / "samples" / "a"
    (folder / "secret.mp4").write_bytes(b"not of the gallery")
    (folder / "sample_0001.mp4").unlink()
    (folder / "sample_0001.mp4").symlink_to("/etc/passwd")
    status, text = served.get(home)
    assert (status, b'"at":"videos/0"' in text) == (200, True)
    assert b"passport" not in text
    assert served.get(f"{home}videos/0/sample_0000.mp4") == (200, b"video")
    assert served.get(f"{home}videos/0/sample_0000.mp4", Range="bytes=1-3") == (206, b"ide")
    for path in ("0/secret.mp4", "0/sample_0001.mp4", "0/index.json", "1/sample_0000.mp4", "0/../a/sample_0000.mp4", "0/%2e%2e/a/sample_0000.mp4", ""):  # fmt: skip
        assert served.get(f"{home}videos/{path}")[0] == 404, path
    assert served.get("/")[0] == 404

    # What is made meanwhile is on the next page; the places of an open page stay.
    put(tmp_path / "run", "0", 0, two("a cat", "a dog"))
    assert b'"at":"videos/1"' in served.get(home)[1]
    assert served.get(f"{home}videos/0/sample_0000.mp4")[0] == 200
    assert served.get(f"{home}videos/1/sample_0001.mp4")[0] == 200

    # Of other sites, other names and other users.
    assert served.get(home, Host="evil.example")[0] == 403
    assert served.get(f"{home}videos/0/sample_0000.mp4", Origin="http://evil.example")[0] == 403
    wrong = served.word[:-1] + ("a" if served.word[-1] != "a" else "b")
    for path in (f"/{wrong}/", f"/{wrong}/videos/0/sample_0000.mp4"):
        status, said = served.get(path)
        assert status == 403
        assert b"clusterctl gallery --web" in said


@pytest.mark.parametrize("other", ["link", "pipe", "file"])
def test_the_file_that_was_looked_at_is_sent_whatever_has_its_name_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Somebody who writes in the run changes a file after it was checked, before it is sent."""
    aiohttp_web = pytest.importorskip("aiohttp.web")
    put(tmp_path / "run", "a", 1, two("a cat", "a dog"))
    (tmp_path / "secret").write_bytes(b"secret")
    video = tmp_path / "run/samples/a/sample_0000.mp4"
    prepare = aiohttp_web.FileResponse.prepare

    async def late(self: Any, request: Any) -> Any:
        video.unlink()
        if other == "link":
            video.symlink_to(tmp_path / "secret")
        elif other == "pipe":
            os.mkfifo(video)
        else:
            video.write_bytes(b"another")
        return await prepare(self, request)

    monkeypatch.setattr(aiohttp_web.FileResponse, "prepare", late)
    found = asyncio.run(asked(tmp_path / "run", "videos/0/sample_0000.mp4"))
    assert found == (200, b"video", "video/mp4", 0)


async def asked(run: Path, place: str) -> tuple[int, bytes, str, int]:
    """(status, body, type, descriptors of videos left open) of a request behind the page's."""
    from aiohttp.test_utils import TestClient, TestServer

    access = Access(("localhost",), "word", "clusterctl gallery --web")
    async with TestClient(TestServer(application([run], access))) as client:
        await (await client.get(f"/{access.word}/", headers={"Host": "localhost"})).read()
        async with client.get(f"/{access.word}/{place}", headers={"Host": "localhost"}) as answer:
            body = await answer.read()
            kind = answer.headers["Content-Type"]
            status = answer.status
    give_up_s = time.monotonic() + PATIENCE_S
    while (left := descriptors_of_videos()) and time.monotonic() < give_up_s:
        await asyncio.sleep(0.01)  # a thread of the server closes what was sent
    return status, body, kind, left


def descriptors_of_videos() -> int:
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this list
            links.append(str(one.readlink()))
    return sum(".mp4" in link for link in links)


def test_what_is_no_request_gets_an_answer_and_no_traceback(served: Served) -> None:
    for line in (b"GET /%s/\xff HTTP/1.1", b"\0\xff", b"GET / HTTP/1.1\r\nA\0: b"):
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as client:
            client.sendall(line.replace(b"%s", served.word.encode()) + b"\r\n\r\n")
            assert b" 400 " in client.recv(100)
    served.process.terminate()
    assert served.process.stderr is not None
    assert served.process.stderr.read() == ""
