"""`clusterctl gallery --web`: the page and its videos over HTTP, nothing else of this machine.

The page is made again for each request, so a reload shows the checkpoints of that moment. A file is
sent only if the index of its folder names it, with byte ranges, which browsers need to seek.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.gallery.contents import document
from dashboards.gallery.page import page, read
from dashboards.web.app import run
from trainer.runlog.run_files import opened_below

if TYPE_CHECKING:
    from aiohttp import web

    from dashboards.web.access import Access

COMMAND = "clusterctl gallery --web"


def serve(run_dirs: Sequence[Path], *, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve the gallery of these runs until interrupted. `port` 0 takes a free one. Raises
    `UsageError` without aiohttp or for an address that cannot be had."""
    return run(
        lambda _url, access: application(run_dirs, access), COMMAND, host=host, port=port, say=say
    )


def application(run_dirs: Sequence[Path], access: Access) -> web.Application:
    """What `serve` runs; for another server of a run that wants a gallery too."""
    from aiohttp import web

    # A folder keeps its number, and a file its place, for pages that are open already.
    numbers: dict[Path, int] = {}
    files: dict[str, Path] = {}
    tops: dict[str, Path] = {}  # the run's folder of each

    def make() -> str:
        runs = read(run_dirs)
        every = [(run.samples_dir.parent, folder) for run in runs for folder in run.folders]
        for top, folder in every:
            number = numbers.setdefault(folder.path, len(numbers))
            for video in folder.samples.videos if folder.samples is not None else ():
                place = f"{number}/{video.file}"
                files[place], tops[place] = folder.path / video.file, top
        return page(runs, document(runs, lambda path: f"videos/{numbers[path]}"), time.time())

    def opened(place: str) -> int | None:
        """A descriptor of the file, if it is one and no part of its path leads out of its run."""
        path, top = files.get(place), tops.get(place)
        if path is None or top is None:
            return None
        try:
            with opened_below(top, str(path.relative_to(top))) as (fd, _):
                return os.dup(fd)
        except OSError:
            return None

    class Opened(web.FileResponse):
        """The file that was looked at, whatever has its name by now; closes the descriptor."""

        def __init__(self, fd: int, headers: dict[str, str]) -> None:
            super().__init__(f"/proc/self/fd/{fd}", headers=headers)
            self._close = weakref.finalize(self, os.close, fd)

        async def prepare(self, request: web.BaseRequest) -> Any:  # sends all of it
            try:
                return await super().prepare(request)
            finally:
                self._close()

    async def index(request: web.Request) -> web.Response:
        access.check(request)
        text = await asyncio.to_thread(make)  # many folders, perhaps on the network
        return web.Response(text=text, content_type="text/html")

    async def video(request: web.Request) -> web.StreamResponse:
        access.check(request)
        place = request.match_info["file"]
        fd = await asyncio.to_thread(opened, place)
        if fd is None:
            raise web.HTTPNotFound(text="the gallery has no such video\n")
        # A checkpoint's videos can be made again under their names: ask each time, send if changed.
        kind = mimetypes.guess_type(place)[0] or "application/octet-stream"
        return Opened(fd, {"Cache-Control": "no-cache", "Content-Type": kind})

    app = web.Application(middlewares=[access.middleware()])
    app.add_routes([web.get("/{word}/", index), web.get("/{word}/videos/{file:.+}", video)])
    return app
