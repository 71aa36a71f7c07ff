"""Send a script to a node's python3 on stdin and read its answer.

The remote command is one fixed line, the same for every verb, without any text of the user. It
reads a length line and that many bytes of source from stdin and runs them. One JSON line of
arguments follows; then stdin stays open as the lease of a stream.
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
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.payload.prelude import MARKER
from clusterctl.remote.messages.verbs import name_of, read_line
from clusterctl.transport.base import Connection, Stream
from trainer.runlog.output import printable

_IMPORT = re.compile(r"^ *from clusterctl\.payload\.?([\w.]*) import ([\w, ]*)", re.MULTILINE)

_FOLDER = Path(__file__).parents[1] / "payload"
_building = threading.Lock()

NOISE_LIMIT = 2000  # characters of shell noise kept for the report
FLOOD_BYTES = 1 << 20  # of shell noise: no greeting is that long

# One line and no single quote: csh and fish take it as well as sh does.
_BOOTSTRAP = (
    "import sys;i=sys.stdin.buffer;v=sys.version_info;"
    'v<(3,8)and sys.exit("python3 here is %d.%d, too old"%v[:2]);'
    'exec(compile(i.read(int(i.readline())),"payload","exec"))'
)


_kept: dict[Path, bytes] = {}


def keep() -> None:
    """Read all that can be sent, now: a process that lives for weeks sends one version, whatever is
    installed beside it meanwhile."""
    paths = [*_FOLDER.rglob("*.py"), *filter(None, [_nvml()])]
    _kept.update({path: path.read_bytes() for path in paths})


def _read(path: Path) -> bytes:
    return _kept[path] if path in _kept else path.read_bytes()


def _nvml() -> Path | None:
    spec = importlib.util.find_spec("pynvml")
    return Path(spec.origin) if spec is not None and spec.origin else None


def command_line(sudo: bool = False) -> str:
    """The remote command of all verbs."""
    return f"exec {'sudo -n ' if sudo else ''}python3 -I -S -c '{_BOOTSTRAP}'"


def modules(verb: str) -> dict[str, str]:
    """{name: source} of a verb's module and all that it imports, also inside functions."""
    found: dict[str, str] = {}
    missing = {verb}
    while missing:
        name = missing.pop()
        found[name] = _read(_path(name)).decode()
        missing |= set(_imports(found[name])) - found.keys()
    return {f"clusterctl.payload.{name}": text for name, text in sorted(found.items())}


def _imports(text: str) -> Iterator[str]:
    """Modules of the payload that a text imports, or from which it imports names."""
    for module, names in _IMPORT.findall(text):
        if module and _is_module(module):
            yield module
        else:  # a package
            yield from (f"{module}.{name}".lstrip(".") for name in names.split(", "))


def _is_module(name: str) -> bool:
    path = _path(name)
    return path in _kept if _kept else path.exists()


def _path(module: str) -> Path:
    return _FOLDER / f"{module.replace('.', '/')}.py"


def source(verb: str, nvml: bool = False) -> bytes:
    """The text that is sent for a verb, with `nvml` including the head's own pynvml."""
    with _building:  # 64 threads at once; `cache` alone would pack the library for each: 1.2 s
        return _source(verb, nvml)


@functools.cache
def _source(verb: str, nvml: bool) -> bytes:
    carried: dict[str, str | bytes] = {**modules(verb)}
    if nvml:  # one file, found without importing it, packed: 330 kB become 63
        path = _nvml()
        if path is None:
            raise FileNotFoundError("pynvml (nvidia-ml-py) is not installed beside clusterctl")
        carried["pynvml"] = base64.b85encode(zlib.compress(_read(path), 9))
    loader = _read(_FOLDER / "module_loader.py").decode()
    return f"{loader}\nrun_verb({carried!r}, {verb!r})\n".encode()


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

    With `lease` stdin stays open until the answer has arrived: a payload that holds the lease ends
    when the head goes away. Raises `TransportError`: "start" when python3 is missing, too old or
    does not start, "command" without an answer within `timeout_s`, "parse" for another shape.
    """
    deadline = time.monotonic() + timeout_s
    options = {"nvml": nvml, "sudo": sudo}
    with closing(stream(connection, verb, args, **options, start_timeout_s=timeout_s)) as held:
        if not lease:
            held.channel.close_stdin()
        try:
            answer = held.receive(max(0.0, deadline - time.monotonic()))
        except EOFError:
            reason = _reason(held.channel.wait(2.0), held.stderr_tail())
            message = f"the payload {verb} gave no answer: {reason}"
            raise TransportError("command", message) from None
        if answer is None:
            if not lease:
                held.channel.kill()
            raise TransportError("command", f"no answer in {units.duration(timeout_s)}")
        return {**answer, "noise": held.noise}


def _not_started(rc: int | None, error: str, noise: str) -> TransportError:
    last = _last_line(error)
    if "sudo" in error:
        message, hint = last, "--sudo needs a rule without a password: try ssh NODE sudo -n true"
    elif rc == 127 or (rc == 126 and "python3" in error):
        message = f"no python3 on the node: {last or 'command not found'}"
        hint = "install python3 (3.8 or newer) there, and put it in PATH of non-interactive shells"
    elif "too old" in error:
        message, hint = last, "payloads need python3 3.8 or newer first in PATH"
    else:
        message = f"the remote shell started no python3: {_reason(rc, last or noise)}"
        hint = "try: ssh NODE python3 -V"
    return TransportError("start", message, hint=hint)


def _reason(rc: int | None, output: str) -> str:
    ended = "no exit status" if rc is None else f"signal {-rc}" if rc < 0 else f"exit {rc}"
    last = _last_line(output)
    return f"{ended}: {last}" if last else ended


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return printable(lines[-1].strip()[:300]) if lines else ""


def _noise(data: bytes) -> str:
    text = data[: NOISE_LIMIT * 4].decode("utf-8", "backslashreplace")
    return printable(text.strip()[:NOISE_LIMIT], lines=True)


class PayloadStream:
    """A payload that keeps running: JSON lines both ways. `started_s` is monotonic time.

    Closing the channel's stdin ends its lease: it stops what it runs, and can still answer.
    """

    def __init__(self, channel: Stream, name: str, noise: str, started_s: float) -> None:
        self.channel, self._name = channel, name
        self.noise, self.started_s = noise, started_s

    def send(self, message: dict[str, Any]) -> None:
        """One JSON line to the payload's stdin. Raises `TransportError` without a connection."""
        self.channel.write(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Next line, of the verb's shape (else phase parse); otherwise as `Stream.read_line`."""
        line = self.channel.read_line(timeout_s)
        return None if line is None else read_line(self._name, line)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """As `receive`; raises `TransportError` when nothing comes within `timeout_s`."""
        message = self.receive(max(0.0, timeout_s))
        if message is None:
            raise TransportError("command", f"no answer in {units.duration(timeout_s)}")
        return message

    def close(self) -> None:
        self.channel.close()

    def stderr_tail(self) -> str:
        """The last of what it wrote to stderr, safe to print."""
        return printable(self.channel.stderr_tail(), lines=True)

    def end_reason(self) -> str:
        last = _last_line(self.stderr_tail())
        return f"its payload ended: {last}" if last else "its payload ended"


def stream(
    connection: Connection,
    verb: str,
    args: dict[str, Any],
    *,
    nvml: bool = False,
    sudo: bool = False,
    start_timeout_s: float = 10.0,
) -> PayloadStream:
    """Start a payload; returns once its marker has arrived, else `TransportError("start")`."""
    channel = connection.stream(command_line(sudo), request(verb, args, nvml=nvml))
    noise, size, started_s = b"", 0, time.monotonic()
    deadline = started_s + start_timeout_s
    try:
        while True:
            line = channel.read_line(max(0.0, deadline - time.monotonic()))
            if line is None:
                channel.kill()
                raise TransportError(
                    "start", f"no payload within {units.duration(start_timeout_s)}"
                )
            if line.endswith(MARKER.encode()):
                text = _noise(noise + line[: -len(MARKER)])
                return PayloadStream(channel, name_of(verb, args), text, started_s)
            size += len(line) + 1
            if size > FLOOD_BYTES:
                message = f"the shell prints {units.size(size)} before the payload"
                raise TransportError("start", message)
            if len(noise) < NOISE_LIMIT:
                noise += line + b"\n"
    except EOFError:
        with closing(channel):
            error = _not_started(channel.wait(2.0), channel.stderr_tail(), _noise(noise))
        raise error from None
    except BaseException:
        channel.close()
        raise
