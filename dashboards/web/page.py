"""The one page of `clusterctl top --web`, and who may load it."""

from __future__ import annotations

import re
from collections.abc import Collection
from html import escape
from urllib.parse import urlsplit

from dashboards.web.allowed_hosts import is_ours

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
<div class="note closed">This view has ended.
<button onclick="location.reload()">Open it again</button></div>
<div id="terminal" class="textual-terminal"
 data-session-websocket-url="{socket}" data-font-size="{size}"></div>
</body>
</html>
"""


def is_foreign(host: str, origin: str | None, names: Collection[str]) -> bool:
    """Whether a request was sent by a page of another site, or under a name that is not ours."""
    if not is_ours(host, names):
        return True
    return origin is not None and urlsplit(origin).netloc != host


def page(title: str, host: str, word: str, font_size: str) -> str:
    """The one page there is; everything it loads comes from this server."""
    size = int(font_size) if re.fullmatch("[0-9]{1,2}", font_size) else 0
    size = size if 6 <= size <= 48 else 16
    socket = f"ws://{escape(host)}/{escape(word)}/ws"
    return PAGE.format(title=escape(title), socket=socket, size=size)
