"""The shape and length of the lines of each payload verb; payloads send no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.remote.messages.sample import sample
from clusterctl.remote.messages.shape import (
    Shape,
    address,
    ascii_text,
    by_key,
    decode,
    digits,
    either,
    flag,
    items,
    maybe,
    name_of_node,
    number,
    one_of,
    packed_text,
    raw_text,
    record,
    table,
    text,
    whole,
)
from clusterctl.remote.messages.watch import watch

MIB = 1 << 20
SHELL_BYTES = 4 * MIB  # of a command's stdout that are sent, and a quarter of that of its stderr
PROCESSES = 20_000  # of one job on one node
SECTIONS = 400
RANKS = 1024  # of one node

_pid = whole(1, 1 << 32)
_count = whole(0, PROCESSES)
_rank = whole(0, 1 << 20)
_exit_code = maybe(whole(-256, 1 << 16))
_path = text(8192)
_size = whole(0)
SECONDS = number(0, 1e10)
AGE_S = number(-1e10, 1e10)  # a clock that was set back makes ages negative
NAME = text(256)
MACHINE = text(1024)
_addresses = items(address(), 64)

_STATE = one_of("ended", "missing", "timeout", "error")
_SECTION_FACTS = {"state": _STATE, "rc": _exit_code, "seconds": SECONDS}
_SECTION = record(
    {**_SECTION_FACTS, "out": text(6 * MIB, lines=True), "err": text(4 * MIB, lines=True)},
    {"truncated": flag},
)
_SECTIONS = table(text(1024), _SECTION, SECTIONS)
_BOOT = {"time_s": number(0, 1e12), "boottime_s": SECONDS}
NODE = record({"hostname": NAME, "boot_id": maybe(NAME), "python": text(40), **_BOOT, "user": NAME})


def _envelope(verb: str, sections: Shape = _SECTIONS, **more: Shape) -> Shape:
    head = {"schema": whole(1, 1), "verb": one_of(verb), "node": NODE, "sections": sections}
    return record({**head, **more})


_BEAT = record({"step": maybe(_size), "phase": maybe(NAME), "age_s": AGE_S})
BEAT = maybe(_BEAT)
_PROCESS = {
    "pid": _pid,
    "ppid": whole(0, 1 << 32),
    "command": NAME,
    "rank": maybe(_rank),
    "age_s": AGE_S,
}
JOB_ROW = {
    **_PROCESS,
    "start": _size,
    "state": text(4),
    "program": text(),
    "index": maybe(_size),
    "world": maybe(_rank),
    "run_dir": maybe(_path),
    **dict.fromkeys(("user", "role"), NAME),
    **dict.fromkeys(("run", "node"), maybe(NAME)),
}
_LEFT_ROW = {**_PROCESS, "state": maybe(text(4)), "waits_in": maybe(NAME)}


def rows(needed: Mapping[str, Shape], **optional: Shape) -> Shape:
    return items(record(needed, optional), PROCESSES)


_OTHERS = rows(JOB_ROW)
# Runs between two attempts (payload/launch/waiting.py).
_WAITING_FACTS = {
    **dict.fromkeys(("run", "node", "job"), NAME),
    "run_dir": _path,
    "head": NAME,
    "text": text(),
    "attempt": _rank,
    "since_s": SECONDS,
    "user": NAME,
}
_WAITING = items(record(_WAITING_FACTS), 1000)
_MARK = {"by": one_of("stop", "kill"), "who": NAME}  # of payload/launch/stopped.py

_KILL_LOOK = _envelope(
    "kill",
    rows=rows(JOB_ROW, gpu_bytes=maybe(_size)),
    others=_OTHERS,
    machine=MACHINE,
    waiting=_WAITING,
    login=NAME,
    notes=items(text(1024), 8),
)
_KILL = _envelope(
    "kill",
    left=rows({**_LEFT_ROW, "why": text()}),
    zombies=rows({"pid": _pid, "ppid": _size, "command": NAME}),
    gpu_left=rows({"pid": _pid, "bytes": maybe(_size)}),
    **dict.fromkeys(("gpu_unknown", "unmarked"), text()),
    **dict.fromkeys(("asked", "missed", "swept", "forced"), _count),
    seconds=SECONDS,
)
_STOP_ROWS = rows(JOB_ROW, asks=flag, beat=BEAT)
_STOP_LOOK = _envelope("stop", rows=_STOP_ROWS, others=_OTHERS, machine=MACHINE, waiting=_WAITING)
_STOP = _envelope(
    "stop",
    left=rows({**_LEFT_ROW, "beat": BEAT, "why": text()}),
    rest=whole(-PROCESSES, PROCESSES),
    asked=_count,
    gone=_count,
    unmarked=text(),
    saved=maybe(_path),
    seconds=SECONDS,
)
_TIME = record({"time_s": number(0, 1e12)})
_CENSUS = by_key({"time_s": _TIME}, _envelope("census", cpu_s=SECONDS))
_CLOCK = by_key(
    {
        "sections": record({"node": NODE, "sections": _SECTIONS, "cpu_s": SECONDS}),
        "boot_id": record({"boot_id": maybe(NAME)}),
    },
    record({**_BOOT, "id": maybe(_size)}),
)
_SHELL_SECTION = {
    **_SECTION_FACTS,
    "out": packed_text(SHELL_BYTES),
    "err": packed_text(SHELL_BYTES // 4 + 1024),  # with a line of the payload's own
}
_COMMAND = record(_SHELL_SECTION, {"truncated": flag})
_SHELL = _envelope("shell", sections=record({"command": _COMMAND}))
_PUSHED = _envelope("push", error=maybe(text()))
_PREPARED = by_key(
    {"error": _envelope("push", error=text())},
    _envelope("push", part=_path, dest=_path, there=flag, same=flag),
)
_REAP = _envelope("reap", found=rows(_LEFT_ROW), left=rows(_LEFT_ROW), supervised=maybe(NAME))
_RUNNING_AGENT = record(
    {
        **dict.fromkeys(("run", "job"), NAME),
        "node": name_of_node(),
        "run_dir": _path,
        **dict.fromkeys(("attempt", "first_rank", "slots"), _rank),
        **dict.fromkeys(("lease_s", "since_s"), SECONDS),
        "state": one_of("waiting", "running", "ended"),
        "head": NAME,
        "alone_since_s": maybe(SECONDS),
        "step": maybe(_size),
        "phase": maybe(NAME),
    }
)
_AGENTS = _envelope(
    "launch.agents",
    agents=items(_RUNNING_AGENT, 1000),
    unread=items(text(1024), 1000),
    waiting=_WAITING,
)
_CHECKPOINTS = _envelope(
    "launch.checkpoints",
    complete=items(NAME, 100_000),
    need=maybe(_size),
    room=maybe(_size),
    error=maybe(text()),
    stopped=maybe(record(_MARK)),
)
_WARM = _envelope("launch.warm", error=maybe(text()))
_STACKS = either(
    "type",
    {"found": {"processes": _count, "machine": NAME}, "report": {"packed": ascii_text(6 * MIB)}},
)
_CLIP_FACTS = {
    **dict.fromkeys(("error", "gone"), text()),
    **dict.fromkeys(("storage_fails", "again"), flag),
    **dict.fromkeys(("num_frames", "bytes", "memory_bytes", "video_streams"), _size),
    **dict.fromkeys(("height", "width"), whole(0, 1 << 20)),
    "fps": maybe(number(0, 1e9)),
    "cpu_s": SECONDS,
}
_EXAMINE = by_key(
    {
        "answers": record({"answers": items(record({"id": _size}, _CLIP_FACTS), 10_000)}),
        "ready": record({"ready": flag, "workers": whole(1, 100_000)}),
        "alive": record({"alive": flag}),
    },
    record({"failed": text()}, {"said": text(8192, lines=True)}),
)

_DIFFERENCE = {"values": _size, "bits": _size, "at": _size}
_PRODUCT = record(
    {"kind": NAME, "count": _size, "others": _size, "sum": ascii_text(16)},
    {"differs": record({"values": _size}, _DIFFERENCE)},
)
_COPY = record({"step": NAME, "values": _size}, _DIFFERENCE)
# One answer of a process of torch_tests/rank.py, or why it gave none.
_RANK_ANSWER = record(
    {},
    {
        "id": _size,
        **dict.fromkeys(("error", "phase"), text()),
        **dict.fromkeys(("own", "finite"), flag),
        **dict.fromkeys(("device", "torch", "model"), NAME),
        **dict.fromkeys(("seconds", "latency_s", "reduce_s", "exchange_s"), SECONDS),
        "tflops": number(0, 1e9),
        "port": whole(0, 65535),
        "kin": text(300),
        "products": items(_PRODUCT, 8),
        **dict.fromkeys(("side", "memory_bytes", "steps", "bytes"), _size),
        "wrong": items(_COPY, 64),
        "sum": ascii_text(16),
        **dict.fromkeys(("rows", "columns"), ascii_text(1 << 17)),
        "found": items(whole(), 4096),
    },
)
_ACTIVE = record(
    {"id": _size},
    {
        "error": text(),
        "hung": flag,
        **dict.fromkeys(("ranks", "answers"), items(_RANK_ANSWER, RANKS)),
        "port": maybe(whole(0, 65535)),
        "holder": maybe(text()),
        "addresses": _addresses,
        "why": items(maybe(text()), 4096),
        **dict.fromkeys(("seconds", "seen_s"), SECONDS),
        "bytes": _size,
    },
)

# A rank's last lines: 16 KiB of log, each byte at most four characters.
_TAIL = items(text(70_000), 17_000)
_AGENT = either(
    "type",
    {
        "hello": {
            **dict.fromkeys(("shared", "python_found", "workdir_found"), flag),
            "cores": whole(0, 1 << 20),
            "same_job": items(record({"pid": maybe(_pid), "run": NAME}), PROCESSES),
            "port": maybe(whole(1, 65535)),
            "addresses": _addresses,
            "ends_at_logout": maybe(text()),
        },
        "probed": {"errors": table(NAME, maybe(text()), 64)},
        "failed": {"text": text()},
        "started": {"pid": _pid},
        "rank": {"rank": _rank, "pid": _pid},
        "beat": {"ranks": table(digits(1 << 20), _BEAT, RANKS)},
        "rank_ended": {"rank": _rank, "code": _exit_code, "how": text()},
        "fact": {"kind": one_of("oom-kernel", "xid"), "text": text(), "age_s": AGE_S},
        "telemetry": {"text": raw_text(5 * MIB), "at": _size, "end": _size},
        "log": {"rank": _rank, "text": raw_text(5 * MIB), "at": _size, "end": _size},
        "ended": {"code": _exit_code, "tail": _TAIL},
        "gone": {"left": rows(_LEFT_ROW)},
        "resumed": {},
        "stopped": _MARK,
        "leaving": {"text": text()},
        "supervised": {"head": NAME},
    },
    {"rank_ended": {"tail": _TAIL}, "fact": {"rank": _rank, "detail": digits(10_000)}},
)


# The shape of a verb's lines, and the bytes that one line may have. The head needs up to eight
# times that, at most 64 MiB: one character beyond the BMP makes a whole text four times as wide.
VERBS: dict[str, tuple[Shape, int]] = {
    "active": (_ACTIVE, 2 * MIB),
    "agent": (_AGENT, 6 * MIB),
    "launch.agents": (_AGENTS, 6 * MIB),
    "launch.checkpoints": (_CHECKPOINTS, 6 * MIB),
    "launch.warm": (_WARM, MIB),
    "census": (_CENSUS, 6 * MIB),
    "clock": (_CLOCK, 4 * MIB),
    "examine": (_EXAMINE, 2 * MIB),
    "kill kill": (_KILL, 6 * MIB),
    "kill look": (_KILL_LOOK, 6 * MIB),
    "push drop": (_PUSHED, 2 * MIB),
    "push install": (_PUSHED, 2 * MIB),
    "push prepare": (_PREPARED, 2 * MIB),
    "reap": (_REAP, 6 * MIB),
    "sample": (sample, 4 * MIB),
    "shell": (_SHELL, 8 * MIB),
    "stacks": (_STACKS, 6 * MIB),
    "stop look": (_STOP_LOOK, 6 * MIB),
    "stop stop": (_STOP, 6 * MIB),
    "watch": (watch, MIB // 4),
}


def name_of(verb: str, args: Mapping[str, Any]) -> str:
    """The key in VERBS: a verb with several operations has a shape for each."""
    full = f"{verb} {args.get('op') or args.get('step')}"
    return full if full in VERBS else verb


def read_line(name: str, line: bytes) -> dict[str, Any]:
    """A line of the verb `name` (`name_of`). Raises `TransportError` with phase parse."""
    shape, line_bytes = VERBS[name]
    what = f"the answer of {name.split()[0]}"
    if len(line) > line_bytes:
        raise TransportError("parse", f"{what} is longer than {units.size(line_bytes)}")
    answer: dict[str, Any] = decode(line, what, shape)
    return answer
