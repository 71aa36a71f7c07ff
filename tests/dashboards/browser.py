"""A headless Chromium that is told what to do over its own websocket; no driver beside it is needed."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
START_S = 60.0
ANSWER_S = 180.0  # on a machine with other work


class Browser:
    """One page of it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requested: list[str] = []  # addresses that the page asked for

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=ANSWER_S)
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def eval(self, expression: str) -> Any:
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def press(self, text: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, text=text if kind == "keyDown" else "", key=text)  # fmt: skip

    async def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.ask("Page.captureScreenshot"))["data"])


@asynccontextmanager
async def browser(folder: Path, width: int, height: int) -> AsyncIterator[Browser]:
    """Started for the block, with a profile in `folder`, and ended behind it."""
    assert PROGRAM is not None
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + START_S
        while not port_file.exists() or "\n" not in port_file.read_text():
            assert time.monotonic() < deadline, "chromium did not start"
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=64 << 20
            ) as socket:
                page = Browser(socket)
                await page.ask("Page.enable")
                await page.ask("Network.enable")
                yield page
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
