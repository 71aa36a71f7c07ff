"""textual-serve's server with our page and our doors. Imported only by `web.serve`: it needs aiohttp."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import textual_serve
from aiohttp import web
from textual_serve.server import Server as TextualServer

from dashboards.web import MOST_PAGES, Handler, is_foreign, page

TITLE = "clusterctl top"
STATIC = Path(textual_serve.__file__).parent / "static"


class Server(TextualServer):
    """Each page starts `command` and talks to it over a websocket."""

    def __init__(self, command: str, url: str, *, hosts: frozenset[str] | None) -> None:
        """`hosts`: names that requests may use for this machine; None any."""
        super().__init__(command, title=TITLE, public_url=url)
        self._hosts = hosts
        self._pages = 0
        logging.getLogger("textual-serve").setLevel(logging.ERROR)

    def make(self) -> web.Application:
        """Our routes instead of theirs: no listing of files, no page that loads from elsewhere."""

        @web.middleware
        async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
            if is_foreign(request.host, request.headers.get("Origin"), self._hosts):
                raise web.HTTPForbidden(text="this page may only be opened from its own address\n")
            return await handler(request)

        app = web.Application(middlewares=[door])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self._socket),
                web.get("/download/{key}", self.handle_download),
                web.static("/static", STATIC),
            ]
        )
        return app

    async def _index(self, request: web.Request) -> web.Response:
        if self._pages >= MOST_PAGES:
            text = f"{self._pages} pages are open, each watches every node: close one\n"
            raise web.HTTPServiceUnavailable(text=text)
        text = page(TITLE, request.host, request.query.get("fontsize", ""))
        return web.Response(text=text, content_type="text/html")

    async def _socket(self, request: web.Request) -> Any:
        if self._pages >= MOST_PAGES:
            raise web.HTTPServiceUnavailable
        self._pages += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._pages -= 1
