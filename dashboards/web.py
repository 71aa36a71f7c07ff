"""`clusterctl top --web`: the same screens in a browser, by textual-serve. Every page is a process of its own.

On loopback unless asked otherwise, and read-only. A page elsewhere must not be able to reach it: the
name in the address bar and the origin of the connection are checked.
"""

from __future__ import annotations

import contextlib
import ipaddress
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from aiohttp import web

MOST_PAGES = 4  # each of them watches every node by a connection of its own

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="/static/css/xterm.css">
<style>
@font-face {{
  font-family: "Roboto Mono";
  src: url("/static/fonts/RobotoMono-VariableFont_wght.ttf") format("truetype");
  font-weight: 100 700;
}}
html, body {{ margin: 0; height: 100%; background: #0f131a; overflow: hidden; }}
.textual-terminal {{ width: 100vw; height: 100vh; }}
.note {{ position: absolute; inset: 0; display: flex; align-items: center; justify-content: center;
  font: 16px "Roboto Mono", monospace; color: #d6dde8; z-index: 10; }}
.note button {{ font: inherit; margin-left: 2ch; padding: .4em 1.2em; color: #d6dde8;
  background: #1c2531; border: 1px solid #3f8fb8; }}
body.-first-byte .opening {{ display: none; }}
.closed {{ display: none; background: #0f131aee; }}
body.-closed .closed {{ display: flex; }}
</style>
<script src="/static/js/textual.js"></script>
<script>
addEventListener("load", function focus() {{
  const keys = document.querySelector(".xterm-helper-textarea");
  keys ? keys.focus() : setTimeout(focus, 100);
}});
</script>
</head>
<body>
<div class="note opening">connecting</div>
<div class="note closed">This view has ended.<button onclick="location.reload()">Open it again</button></div>
<div id="terminal" class="textual-terminal" data-session-websocket-url="{socket}" data-font-size="{size}"></div>
</body>
</html>
"""


def serve(arguments: Sequence[str], *, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve `clusterctl top ARGUMENTS` until interrupted. `port` 0 takes a free one.

    Raises `UsageError` without textual-serve or for an address that cannot be had.
    """
    try:
        from aiohttp import web

        from dashboards.web_server import Server
    except ImportError as error:
        raise UsageError(
            f"--web needs textual-serve ({error})", hint="pip install 'clusterctl[web]'"
        ) from None
    listener = listen(host, port)
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    url = f"http://{address}:{port}"
    # exec: the shell that textual-serve starts must not stand between it and the view.
    command = shlex.join([sys.executable, "-m", "clusterctl", "top", *arguments])
    server = Server(f"exec {command}", url, hosts=allowed_hosts(host, port))
    say(f"{url}  (Ctrl-C ends it)")
    if not ipaddress.ip_address(host).is_loopback:
        say("warning: everybody who reaches this port sees the cluster, and nothing is encrypted")
    with contextlib.suppress(KeyboardInterrupt):
        web.run_app(server.make(), sock=listener, print=None, shutdown_timeout=2.0)
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `UsageError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from now on nobody is refused who has read the address
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="--port 0 takes a free one",
        ) from None
    return listener


def allowed_hosts(host: str, port: int) -> frozenset[str] | None:
    """What an address bar may say; None anything, where more than this machine may come."""
    if not ipaddress.ip_address(host).is_loopback:
        return None
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", host))


def is_foreign(host: str, origin: str | None, hosts: frozenset[str] | None) -> bool:
    """Whether a request was sent by a page of another site, or under a name that is not ours."""
    if hosts is not None and host not in hosts:
        return True  # another name for this address: how a site reaches loopback (DNS rebinding)
    return origin is not None and urlsplit(origin).netloc != host


def page(title: str, host: str, font_size: str) -> str:
    """The one page there is; everything it loads comes from this server."""
    size = int(font_size) if font_size.isdigit() and 6 <= int(font_size) <= 48 else 16
    return PAGE.format(title=escape(title), socket=f"ws://{escape(host)}/ws", size=size)


Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


def as_arguments(options: dict[str, Any]) -> list[str]:
    """Options of `clusterctl top` as words; None, False and () are left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False or value == ():
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words
