"""Send a script to a node's python3 on stdin and read its answer.

The remote command is one fixed line, the same for every verb; nothing of the user's stands in it.
Its few words read a length line and that many bytes of source from stdin and run them. stdin stays
open behind the source: first comes one JSON line of arguments, then it is the lease of a stream.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.payload.prelude import MARKER
from clusterctl.printable import printable
from clusterctl.remote.messages.verbs import VERBS, name_of, read_line
from clusterctl.transport.base import Completed, Connection, Stream

_IMPORT = re.compile(r"^ *from clusterctl\.payload\.([\w.]+) import", re.MULTILINE)

_FOLDER = Path(__file__).parents[1] / "payload"

NOISE_LIMIT = 2000  # characters of shell noise kept for the report
FLOOD_BYTES = 1 << 20  # of shell noise: no greeting is that long

# One line and no single quote: csh and fish take it as well as sh does.
_BOOTSTRAP = (
    "import sys;i=sys.stdin.buffer;v=sys.version_info;"
    'v<(3,8)and sys.exit("python3 here is %d.%d, too old"%v[:2]);'
    'exec(compile(i.read(int(i.readline())),"payload","exec"))'
)


def command_line(sudo: bool = False) -> str:
    """The one remote command of all verbs; with `sudo` as root, never asking for a password."""
    return f"exec {'sudo -n ' if sudo else ''}python3 -I -S -c '{_BOOTSTRAP}'"


def modules(verb: str) -> dict[str, str]:
    """{name: source} of a verb's module and those it imports, at its head or in a function."""
    found: dict[str, str] = {}
    missing = {verb}
    while missing:
        name = missing.pop()
        text = (_FOLDER / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        found[name] = text
        missing.update(set(_IMPORT.findall(text)) - found.keys())
    return {f"clusterctl.payload.{name}": text for name, text in sorted(found.items())}


_building = threading.Lock()


def source(verb: str, nvml: bool = False) -> bytes:
    """The text that is sent for a verb. With `nvml` it holds the head's own pynvml as a module."""
    with _building:  # 64 nodes ask at once; `cache` alone would pack the library for each: 1.2 s
        return _source(verb, nvml)


@functools.cache
def _source(verb: str, nvml: bool) -> bytes:
    carried: dict[str, str | bytes] = {**modules(verb)}
    if nvml:
        carried["pynvml"] = _pynvml()
    loader = (_FOLDER / "loader.py").read_text(encoding="utf-8")
    return f"{loader}\nplay({carried!r}, {verb!r})\n".encode()


def _pynvml() -> bytes:
    """Source of nvidia-ml-py's single file, packed (330 kB become 63), found without importing."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pynvml (nvidia-ml-py) is not installed beside clusterctl")
    return base64.b85encode(zlib.compress(Path(spec.origin).read_bytes(), 9))


def request(verb: str, args: dict[str, Any], *, nvml: bool = False) -> bytes:
    """All bytes for stdin: length line, source, one JSON line of arguments."""
    text = source(verb, nvml)
    line = json.dumps({"verb": verb, "args": args}).encode()
    return b"%d\n" % len(text) + text + line + b"\n"


def probe(
    connection: Connection,
    verb: str,
    args: dict[str, Any],
    timeout_s: float,
    *,
    nvml: bool = False,
    lease: bool = False,
    sudo: bool = False,
) -> dict[str, Any]:
    """Run a one-shot payload and return its envelope, with the shell's noise as `noise`.

    With `lease` stdin stays open until the answer is here, so that a payload which holds the lease
    ends early when the head goes away; without, it sees the end of stdin behind its arguments.

    Raises `TransportError`: "start" when python3 is missing, too old or never began, "command"
    when the payload ended without an answer or gave none within `timeout_s`, "parse" when the
    answer is not one line of the verb's shape (messages/verbs.py).
    """
    if lease:
        with stream(
            connection, verb, args, nvml=nvml, sudo=sudo, start_timeout_s=timeout_s
        ) as held:
            try:
                return {**held.answer(timeout_s), "noise": held.noise}
            except EOFError:
                reason = _reason(held.wait(2.0), held.stderr_tail())
                raise TransportError(
                    "command", f"the payload {verb} gave no answer: {reason}"
                ) from None
    name = name_of(verb, args)
    most = VERBS[name].line_bytes + FLOOD_BYTES
    done = connection.run(command_line(sudo), request(verb, args, nvml=nvml), timeout_s, most)
    before, marker, after = done.out.partition(MARKER.encode() + b"\n")
    noise = _noise(before)
    if not marker:
        raise _not_started(done, noise)
    line, newline, _ = after.partition(b"\n")
    if not newline:
        if done.truncated:
            raise TransportError("parse", f"the answer is longer than {len(done.out)} bytes")
        raise TransportError(
            "command", f"the payload {verb} gave no answer: {_reason(done.rc, _text(done.err))}"
        )
    return {**read_line(name, line), "noise": noise}


def _not_started(done: Completed, noise: str) -> TransportError:
    error = _text(done.err)
    if "sudo" in error:
        return TransportError(
            "start",
            _last_line(error),
            hint="--sudo needs a rule without a password: try ssh NODE sudo -n true",
        )
    if done.rc == 127 or (done.rc == 126 and "python3" in error):
        return TransportError(
            "start",
            f"no python3 on the node: {_last_line(error) or 'command not found'}",
            hint="install python3 (3.8 or newer) there, "
            "or see that non-interactive shells have it in PATH",
        )
    if "too old" in error:
        return TransportError(
            "start", _last_line(error), hint="payloads need python3 3.8 or newer first in PATH"
        )
    said = _last_line(error) or _last_line(noise)
    return TransportError(
        "start",
        f"the remote shell started no python3: {_reason(done.rc, said)}",
        hint="try: ssh NODE python3 -V",
    )


def _reason(rc: int | None, said: str) -> str:
    ended = "no exit status" if rc is None else f"signal {-rc}" if rc < 0 else f"exit {rc}"
    last = _last_line(said)
    return f"{ended}: {last}" if last else ended


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1][:300]) if lines else ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _noise(data: bytes) -> str:
    return printable(_text(data[: NOISE_LIMIT * 4]).strip()[:NOISE_LIMIT], lines=True)


class PayloadStream:
    """A payload that keeps running: JSON lines both ways. Closing it ends the payload."""

    def __init__(self, channel: Stream, name: str, noise: str, started_s: float) -> None:
        """`started_s`: monotonic time when it was started."""
        self._channel, self._name = channel, name
        self.noise, self.started_s = noise, started_s

    def send(self, message: dict[str, Any]) -> None:
        """One JSON line to the payload's stdin. Raises `TransportError` when the line is gone."""
        self._channel.write(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Next line, of the verb's shape; None after `timeout_s` without one.

        Raises `EOFError` when the payload has ended, `TransportError` when the connection is gone
        or, with phase parse, when the payload never says such a line.
        """
        line = self._channel.read_line(timeout_s)
        return None if line is None else read_line(self._name, line)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """As `receive`; raises `TransportError` when nothing comes within `timeout_s`."""
        message = self.receive(max(0.0, timeout_s))
        if message is None:
            raise TransportError("command", f"no answer in {timeout_s:g} s")
        return message

    def read_some(self, limit: int) -> bytes:
        """What has come, at most `limit` bytes, not line by line; b"" for nothing. Never waits.

        Raises `EOFError` when the payload has ended, `TransportError` when the connection is gone.
        """
        return self._channel.read_some(limit)

    def descriptor(self) -> int | None:
        """What the kernel can wait for, where the transport has such a thing: a pipe."""
        fileno = getattr(self._channel, "fileno", None)
        return None if fileno is None else int(fileno())

    def on_readable(self, call: Callable[[], None]) -> None:
        """Call `call` from any thread whenever `read_some` may have something new to say."""
        self._channel.on_readable(call)

    def wait(self, timeout_s: float) -> int | None:
        """Exit status (negative for a signal); None when it is still running."""
        return self._channel.wait(timeout_s)

    def stderr_tail(self) -> str:
        """The last of what it wrote to stderr, safe to print."""
        return printable(self._channel.stderr_tail(), lines=True)

    def end_reason(self) -> str:
        """Why the payload ended, once it has."""
        last = _last_line(self.stderr_tail())
        return f"its payload ended: {last}" if last else "its payload ended"

    def end_lease(self) -> None:
        """Close the payload's stdin: it stops what it runs and ends; its last words can be read."""
        self._channel.close_stdin()

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> PayloadStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stream(
    connection: Connection,
    verb: str,
    args: dict[str, Any],
    *,
    nvml: bool = False,
    sudo: bool = False,
    start_timeout_s: float = 10.0,
) -> PayloadStream:
    """Start a payload that talks over time; returns once its marker has been seen.

    Raises `TransportError` with phase "start" when that does not happen within `start_timeout_s`.
    """
    channel = connection.stream(command_line(sudo), request(verb, args, nvml=nvml))
    noise: list[bytes] = []
    heard = 0
    started_s = time.monotonic()
    deadline = started_s + start_timeout_s
    try:
        while True:
            line = channel.read_line(max(0.0, deadline - time.monotonic()))
            if line is None:
                raise TransportError("start", f"no payload within {start_timeout_s:g} s")
            if line.endswith(MARKER.encode()):
                noise.append(line[: -len(MARKER)])
                text = _noise(b"\n".join(noise))
                return PayloadStream(channel, name_of(verb, args), text, started_s)
            heard += len(line) + 1
            if heard > FLOOD_BYTES:
                raise TransportError("start", f"the shell says {heard >> 10} kB before the payload")
            if sum(map(len, noise)) < NOISE_LIMIT:
                noise.append(line)
    except EOFError:
        rc = channel.wait(2.0)
        error = channel.stderr_tail().encode()
        channel.close()
        done = Completed(1 if rc is None else rc, b"", error, 0.0)
        raise _not_started(done, _noise(b"\n".join(noise))) from None
    except BaseException:
        channel.close()
        raise
