"""textual-serve's server with our page and access checks. Only `web.app` imports it (aiohttp)."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import textual_serve
from aiohttp import web
from textual_serve.server import Server as TextualServer

from dashboards.web.allowed_hosts import is_foreign

MOST_PAGES = 4  # each watches every node over its own connection
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TITLE = "clusterctl top"
FOREIGN = "this page may only be opened by an address or a name of its machine, and from itself\n"
NO_WORD = "open the whole address that clusterctl top --web printed: a word of it is missing\n"
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

    def __init__(self, command: str, url: str, *, names: Collection[str], word: str) -> None:
        """`names` are those that requests may use for this machine, `word` what opens the page."""
        super().__init__(command, title=TITLE, public_url=url)
        self._names, self._word = names, word
        self._pages = 0
        logging.getLogger("textual-serve").setLevel(logging.ERROR)

    def make(self) -> web.Application:
        """Our routes instead of theirs: no listing of files, no page that loads from elsewhere."""

        @web.middleware
        async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
            if is_foreign(request.host, request.headers.get("Origin"), self._names):
                raise web.HTTPForbidden(text=FOREIGN)
            answer = await handler(request)
            if not answer.prepared:
                answer.headers["Referrer-Policy"] = "no-referrer"
            return answer

        app = web.Application(middlewares=[check_origin])
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
        word = request.match_info.get("word", "")
        if not hmac.compare_digest(word.encode("utf-8", "replace"), self._word.encode()):
            raise web.HTTPForbidden(text=NO_WORD)
        if self._pages >= MOST_PAGES:
            text = f"{self._pages} pages are open, each watches every node: close one\n"
            raise web.HTTPServiceUnavailable(text=text)

    async def _index(self, request: web.Request) -> web.Response:
        self._check(request)
        text = page(request.host, self._word, request.query.get("fontsize", ""))
        return web.Response(text=text, content_type="text/html")

    async def _socket(self, request: web.Request) -> Any:
        self._check(request)
        self._pages += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._pages -= 1
