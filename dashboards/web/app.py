"""`clusterctl top --web`: the same screens in a browser, by textual-serve, a process a page.

On loopback by default, and read-only. A random word in the address keeps out other users of this
machine, whom loopback does not. The name in the address bar and the origin of the connection are
checked, so that a page of another site cannot reach it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shlex
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from clusterctl.errors import UsageError
from dashboards.web.allowed_hosts import is_loopback, our_names
from trainer.runlog.own_modules import environment, module_command

if TYPE_CHECKING:
    from aiohttp import web

    from dashboards.web.access import Access

WORD_BYTES = 16  # of the random word in the address


def serve(arguments: Sequence[str], *, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve `clusterctl top ARGUMENTS` until interrupted. Raises `UsageError`."""

    def make(url: str, access: Access) -> web.Application:
        from dashboards.web.server import Server

        # exec: the shell that textual-serve starts must not be between it and the view. It has the
        # environment of this process, whose PYTHONPATH may have an empty part: the current folder.
        path = f"PYTHONPATH={environment()['PYTHONPATH']}"
        command = shlex.join(["env", path, *module_command("clusterctl", "top", *arguments)])
        return Server(f"exec {command}", url, access).make()

    return run(make, "clusterctl top --web", host=host, port=port, say=say)


def run(
    make: Callable[[str, Access], web.Application],
    command: str,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
) -> int:
    """Serve the application that `make` makes for an address, until interrupted. `port` 0 takes a
    free one. Raises `UsageError` without textual-serve or for an address that cannot be had."""
    try:
        from aiohttp import web

        from dashboards.web.access import Access

        names, word = our_names(host), secrets.token_urlsafe(WORD_BYTES)
        listener = listen(host, port)
        host, port = listener.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{port}/{word}/"
        app = make(url, Access(names, word, command))
    except ImportError as error:
        raise UsageError(
            f"--web needs textual-serve ({error})", hint="pip install '.[web]'"
        ) from None
    say(f"{url}  (Ctrl-C ends it; anyone with this address can open it)")
    if not is_loopback(host):
        say("warning: nothing is encrypted: who can listen on the network learns this address")
    logging.getLogger("aiohttp.server").addFilter(_said)
    with contextlib.suppress(KeyboardInterrupt):
        web.run_app(app, sock=listener, print=None, shutdown_timeout=2.0, access_log=None)
    return 0


def _said(record: logging.LogRecord) -> bool:
    """Nothing of a request that is none, which got its answer; one line of an error of ours."""
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        record.msg, record.args, record.exc_info = "a request failed (%s)", (what,), None
    return not isinstance(error, HttpProcessingError | OSError)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `UsageError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from now on nobody who has read the address is refused
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="--port 0 takes a free one",
        ) from None
    return listener


def page_arguments(context: click.Context) -> list[str]:
    """The options of `clusterctl top` as they were typed, without those of the server."""
    words: list[str] = []
    for param in context.command.params:
        name, value = param.name or "", context.params.get(param.name or "")
        source = context.get_parameter_source(name)
        if source is not ParameterSource.COMMANDLINE or name in ("web", "host", "port"):
            continue
        if isinstance(value, bool):
            words.append(param.opts[0] if value else param.secondary_opts[0])
        elif isinstance(param, click.Option) and param.count:
            words += [param.opts[0]] * context.params[name]
        else:
            words += ["--hostfile" if name == "hostfile" else param.opts[0], str(value)]
    return words
