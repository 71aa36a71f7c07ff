"""Who may use a server of ours: requests under our names, from our pages, with the random word."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from dashboards.web.allowed_hosts import is_foreign

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FOREIGN = "this page may only be opened by an address or a name of its machine, and from itself\n"


@dataclass(frozen=True)
class Access:
    """`names` are those that requests may use for this machine, `word` what opens a page."""

    names: Collection[str]
    word: str
    command: str  # that printed the address, for people

    def middleware(self) -> Any:
        """For an application: refuses names and origins that are not ours."""

        @web.middleware
        async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
            if is_foreign(request.host, request.headers.get("Origin"), self.names):
                raise web.HTTPForbidden(text=FOREIGN)
            answer = await handler(request)
            if not answer.prepared:
                answer.headers["Referrer-Policy"] = "no-referrer"
            return answer

        return check_origin

    def check(self, request: web.Request) -> None:
        """Raises HTTPForbidden for one who does not know the word."""
        word = request.match_info.get("word", "")
        if not hmac.compare_digest(word.encode("utf-8", "replace"), self.word.encode()):
            address = f"the whole address that {self.command} printed"
            raise web.HTTPForbidden(text=f"access token missing: open {address}\n")
