"""textual-serve's server with our page and access checks. Only `web.app` imports it (aiohttp)."""

from __future__ import annotations

import logging
import re
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import textual_serve
from aiohttp import web
from textual_serve.server import Server as TextualServer

from dashboards.web.access import Access

MOST_PAGES = 4  # each watches every node over its own connection
TITLE = "clusterctl top"
STATIC = Path(textual_serve.__file__).parent / "static"
PAGE = Path(__file__).parent / "page.html"


def page(host: str, word: str, font_size: str) -> str:
    """The one page there is; everything it loads comes from this server."""
    size = int(font_size) if re.fullmatch("[0-9]{1,2}", font_size) else 0
    size = size if 6 <= size <= 48 else 16
    template = Template(PAGE.read_text(encoding="utf-8"))
    return template.substitute(host=escape(host), word=escape(word), size=size)


class Server(TextualServer):
    """Each page starts `command` and talks to it over a websocket."""

    def __init__(self, command: str, url: str, access: Access) -> None:
        super().__init__(command, title=TITLE, public_url=url)
        self._access = access
        self._pages = 0
        logging.getLogger("textual-serve").setLevel(logging.ERROR)

    def make(self) -> web.Application:
        """Our routes instead of theirs: no listing of files, no page that loads from elsewhere."""
        app = web.Application(middlewares=[self._access.middleware()])
        # Files of the package are no secret, and a download has its own random word.
        app.add_routes(
            [
                web.get("/download/{key}", self.handle_download),
                web.static("/static", STATIC),
                web.get("/", self._index),
                web.get("/{word}/", self._index),
                web.get("/{word}/ws", self._socket),
            ]
        )
        return app

    def _check(self, request: web.Request) -> None:
        """Whether one more page may be opened, by one who knows the word."""
        self._access.check(request)
        if self._pages >= MOST_PAGES:
            text = f"{self._pages} pages are open, each watches every node: close one\n"
            raise web.HTTPServiceUnavailable(text=text)

    async def _index(self, request: web.Request) -> web.Response:
        self._check(request)
        text = page(request.host, self._access.word, request.query.get("fontsize", ""))
        return web.Response(text=text, content_type="text/html")

    async def _socket(self, request: web.Request) -> Any:
        self._check(request)
        self._pages += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._pages -= 1
