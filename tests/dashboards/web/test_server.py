"""The same screens in a browser: who may open them, what they load, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dashboards.commands.top import command
from dashboards.web.allowed_hosts import is_foreign, our_names
from dashboards.web.app import page_arguments
from trainer.runlog.own_modules import module_command

PATIENCE_S = 90.0


class Served:
    """`clusterctl top --demo --web` on a free port."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = module_command(
            "clusterctl", "top", "--demo", "--web", "--port", "0", "-q", *options
        )
        self.process = subprocess.Popen(
            command, cwd=directory, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.match(r"(http://([\d.]+):(\d+))/([\w-]{20,})/ ", line)
        assert found, line
        self.root, self.port, self.word = found[1], int(found[3]), found[4]
        self.url = f"{self.root}/{self.word}"

    def views(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("textual_serve")
    one = Served(tmp_path_factory.mktemp("web"))
    yield one
    one.close()


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive


async def seen(url: str, words: bytes) -> None:
    """Open the socket as the page does, until these bytes have come."""
    import aiohttp

    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/ws?width=100&height=30", max_msg_size=0) as socket,
    ):
        data, deadline = b"", time.monotonic() + PATIENCE_S
        while words not in data:
            message = await socket.receive(timeout=max(0.1, deadline - time.monotonic()))
            assert message.type is aiohttp.WSMsgType.BINARY, message
            data += message.data


@pytest.mark.long
def test_screens_come_over_the_socket_and_end_with_it(served: Served) -> None:
    async def story() -> None:
        opened = asyncio.create_task(seen(served.url, b"ml-64-node-"))
        views: list[psutil.Process] = []
        while not opened.done():
            views = served.views() or views
            await asyncio.sleep(0.05)
        await opened
        assert len(views) == 1
        assert "--readonly" in views[0].cmdline()
        assert await asyncio.to_thread(all_gone, views)

    asyncio.run(story())


async def status(url: str, **headers: str) -> int:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status


def test_other_sites_and_other_names_are_refused(served: Served) -> None:
    async def story() -> None:
        assert await status(f"{served.url}/") == 200
        assert await status(f"{served.url}/", Host="evil.example") == 403
        assert await status(f"{served.url}/", Host=f"localhost:{served.port}") == 200
        assert await status(f"{served.url}/ws", Origin="http://evil.example") == 403
        assert await status(f"{served.root}/static/js/textual.js") == 200
        assert not served.views()

    asyncio.run(story())


def test_other_users_of_the_machine_lack_a_word_of_the_address(served: Served) -> None:
    async def story() -> None:
        wrong = served.word[:-1] + ("a" if served.word[-1] != "a" else "b")
        for path in ("/", "/ws", f"/{wrong}/", f"/{wrong}/ws", "/static/", "/static/ws", "/download/", "//", "/%2e/ws"):  # fmt: skip
            assert await status(served.root + path) in (403, 404), path
        assert await status(f"{served.root}/{served.word}/ws/more") == 404
        assert not served.views()

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/static/..%2f..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd"])  # fmt: skip
def test_nothing_but_the_packages_files_is_served(served: Served, path: str) -> None:
    async def story() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(ask.encode())
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        assert answer.split()[1] in (b"403", b"404"), answer

    asyncio.run(story())


def test_page_loads_nothing_from_elsewhere() -> None:
    page = pytest.importorskip("dashboards.web.server").page
    text = page('127.0.0.1:8000"', "word", "x")
    assert 'data-font-size="16"' in text
    (address,) = re.findall(r"(?:https?|wss?)://[^\"']+", text)
    assert address == "ws://127.0.0.1:8000&quot;/word/ws"
    assert 'data-font-size="20"' in page("", "", "20")
    assert 'data-font-size="16"' in page("", "", 5000 * "1")


def test_names_of_this_machine_and_addresses_are_ours_and_no_others() -> None:
    """Beyond loopback too: a page of another site may point its name to any address."""
    local, anywhere = our_names("127.0.0.1"), our_names("0.0.0.0")
    for names in (local, anywhere, our_names("head.example")):
        for host in ("localhost:8000", "LOCALHOST", "127.0.0.1:9", "[::1]:8000", "10.0.0.5:80"):
            assert not is_foreign(host, None, names), host
        for host in ("", "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", "a@b@c", "localhost.evil"):  # fmt: skip
            assert is_foreign(host, None, names), host
    assert not is_foreign(f"{socket.gethostname()}:8000", None, anywhere)
    assert not is_foreign("head.example:8000", None, our_names("head.example"))
    assert is_foreign("localhost:8000", "http://[::", local)  # no address at all
    assert is_foreign("head.example:8000", None, local)
    assert not is_foreign("localhost:8000", "http://localhost:8000", local)
    assert is_foreign("10.0.0.5:8000", "http://10.0.0.6:8000", anywhere)
    assert is_foreign("localhost:8000", "http://localhost:8001", local)


@pytest.mark.long
def test_beyond_loopback_names_are_checked_too(tmp_path: Path) -> None:
    pytest.importorskip("textual_serve")
    one = Served(tmp_path, "--host", "0.0.0.0")
    try:

        async def story() -> None:
            url = f"http://127.0.0.1:{one.port}/{one.word}/"
            assert await status(url) == 200
            assert await status(url, Host="evil.example") == 403

        asyncio.run(story())
    finally:
        one.close()


@pytest.mark.long
def test_page_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Whoever may write there could else run a program as the user who opens a page."""
    pytest.importorskip("textual_serve")
    one = Served(tmp_path)
    try:
        for name in ("click", "runpy", "textual", "clusterctl"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
        asyncio.run(seen(one.url, b"ml-64-node-"))
    finally:
        one.close()
    assert not (tmp_path / "ran").exists()


def test_options_go_on_to_each_page() -> None:
    typed = "n.txt --web --port 0 -w a[1-3] --connect-timeout 0.5 --no-readonly --accept-new -vv"
    context = command.make_context("top", typed.split())
    words = "--no-readonly --hostfile n.txt -w a[1-3] --connect-timeout 0.5 --accept-new -v -v"
    assert page_arguments(context) == words.split()


@pytest.mark.long
def test_web_excludes_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterctl", "top", "--demo", "--web", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert "--once" in done.stderr


@pytest.mark.slow
def test_headless_chromium_shows_the_cluster_and_answers_keys(
    served: Served, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    from tests.dashboards.browser import PROGRAM, browser

    if PROGRAM is None:
        pytest.skip("no chromium here: apt-get install chromium")

    async def story() -> None:
        async with browser(tmp_path, 1280, 800) as view:
            await view.ask("Page.navigate", url=f"{served.url}/")
            deadline = time.monotonic() + PATIENCE_S
            while "-first-byte" not in str(await view.eval("document.body.className")):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)
            # Of one colour until the screens are there; those have hundreds.
            while len(cluster := await view.picture()) < 60_000:
                assert time.monotonic() < deadline, len(cluster)
                await asyncio.sleep(0.5)
            (tmp_path / "cluster.png").write_bytes(cluster)
            await view.press("4")
            while len(alerts := await view.picture()) > 0.8 * len(cluster):
                assert time.monotonic() < deadline, len(alerts)
                await asyncio.sleep(0.5)
            assert all(address.startswith(served.root) for address in view.requested)

    asyncio.run(story())


@pytest.mark.slow
def test_a_killed_server_leaves_no_view(served: Served) -> None:
    """The last test of this file: it ends the server that all of them share."""
    import aiohttp

    async def story() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{served.url}/ws") as socket,
        ):
            await socket.receive(timeout=PATIENCE_S)
            views = served.views()
            assert views
            os.kill(served.process.pid, signal.SIGKILL)
            assert await asyncio.to_thread(all_gone, views)

    asyncio.run(story())
