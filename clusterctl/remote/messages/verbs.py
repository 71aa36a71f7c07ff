"""The shape of the lines of each payload verb, and how long a line may be.

The files of clusterctl/payload/ say these lines, and say nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.remote.messages.decode import decode
from clusterctl.remote.messages.shape import (
    Shape,
    ascii_text,
    digits,
    either,
    flag,
    has_key,
    items,
    maybe,
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
SHELL_BYTES = 4 * MIB  # of a command's stdout that go home, and a quarter of that of its stderr
PROCESSES = 20_000  # of one job on one node
SECTIONS = 400
RANKS = 1024  # of one node

_pid = whole(1, 1 << 32)
_rank = maybe(whole(0, 1 << 20))
SECONDS = number(0, 1e10)
AGE_S = number(-1e10, 1e10)  # a clock that was set back makes ages negative
NAME = text(256)

_SECTION_FACTS = {
    "state": one_of("ended", "missing", "timeout", "error"),
    "rc": maybe(whole(-256, 1 << 16)),
    "seconds": SECONDS,
}
_SECTION = record(
    {**_SECTION_FACTS, "out": text(6 * MIB, lines=True), "err": text(4 * MIB, lines=True)},
    {"truncated": flag},
)
NODE = {
    "hostname": NAME,
    "boot_id": maybe(NAME),
    "python": text(40),
    "time_s": number(0, 1e12),
    "boottime_s": SECONDS,
    "user": NAME,
}


_SECTIONS = table(text(1024), _SECTION, SECTIONS)


def _envelope(
    verb: str, more: dict[str, Shape] | None = None, sections: Shape = _SECTIONS
) -> Shape:
    head: dict[str, Shape] = {
        "schema": whole(1, 1),
        "verb": one_of(verb),
        "node": record(NODE),
        "sections": sections,
    }
    return record({**head, **(more or {})})


_ONE_BEAT = record({"step": maybe(whole(0)), "phase": maybe(NAME), "age_s": AGE_S})
BEAT = maybe(_ONE_BEAT)
JOB_ROW = {
    "pid": _pid,
    "ppid": whole(0, 1 << 32),
    "start": whole(0),
    "state": text(4),
    "user": NAME,
    "command": NAME,
    "program": text(),
    "role": NAME,
    "index": maybe(whole(0)),
    "rank": _rank,
    "world": maybe(whole(0, 1 << 20)),
    "run": maybe(NAME),
    "node": maybe(NAME),
    "run_dir": maybe(text(8192)),
    "age_s": AGE_S,
}
_LEFT_ROW = {
    "pid": _pid,
    "ppid": whole(0, 1 << 32),
    "state": maybe(text(4)),
    "command": NAME,
    "waits_in": maybe(NAME),
    "rank": _rank,
    "age_s": AGE_S,
}


def rows(needed: dict[str, Shape], **optional: Shape) -> Shape:
    return items(record(needed, optional), PROCESSES)


_OTHERS = rows(JOB_ROW)
_MACHINE = text(1024)

_LOOK = _envelope(
    "kill",
    {
        "rows": rows(JOB_ROW, gpu_bytes=maybe(whole(0))),
        "others": _OTHERS,
        "machine": _MACHINE,
        "login": NAME,
        "notes": items(text(1024), 8),
    },
)
_KILL = _envelope(
    "kill",
    {
        "left": rows({**_LEFT_ROW, "why": text()}),
        "zombies": rows({"pid": _pid, "ppid": whole(0), "command": NAME}),
        "gpu_left": rows({"pid": _pid, "bytes": maybe(whole(0))}),
        "gpu_unknown": text(),
        "asked": whole(0, PROCESSES),
        "missed": whole(0, PROCESSES),
        "swept": whole(0, PROCESSES),
        "forced": whole(0, PROCESSES),
        "seconds": SECONDS,
    },
)
_STOP_LOOK = _envelope(
    "stop", {"rows": rows(JOB_ROW, asks=flag, beat=BEAT), "others": _OTHERS, "machine": _MACHINE}
)
_STOP = _envelope(
    "stop",
    {
        "left": rows({**_LEFT_ROW, "beat": BEAT, "why": text()}),
        "rest": whole(-PROCESSES, PROCESSES),
        "asked": whole(0, PROCESSES),
        "gone": whole(0, PROCESSES),
        "saved": maybe(text(8192)),
        "seconds": SECONDS,
    },
)
_CENSUS = has_key(
    "time_s", record({"time_s": number(0, 1e12)}), _envelope("census", {"cpu_s": SECONDS})
)
_TIMES = {"time_s": number(0, 1e12), "boottime_s": SECONDS}
_CLOCK = has_key(
    "sections",
    record({"node": record(NODE), "sections": _SECTIONS, "cpu_s": SECONDS}),
    has_key("boot_id", record({"boot_id": maybe(NAME)}), record({**_TIMES, "id": maybe(whole(0))})),
)
_SHELL_SECTIONS = record(
    {
        "command": record(
            {
                **_SECTION_FACTS,
                "out": packed_text(SHELL_BYTES),
                "err": packed_text(SHELL_BYTES // 4 + 1024),  # with a line of the payload's own
            },
            {"truncated": flag},
        )
    }
)
_PUSHED = _envelope("push", {"error": maybe(text())})
_PREPARED = has_key(
    "error",
    _envelope("push", {"error": text()}),
    _envelope("push", {"part": text(8192), "dest": text(8192), "there": flag, "same": flag}),
)
_STACKS = either(
    "type",
    {
        "found": record({"type": NAME, "processes": whole(0, PROCESSES), "machine": NAME}),
        "report": record({"type": NAME, "packed": ascii_text(6 * MIB)}),
    },
)
_CLIP_FACTS = {
    "error": text(),
    "num_frames": whole(0),
    "height": whole(0, 1 << 20),
    "width": whole(0, 1 << 20),
    "fps": maybe(number(0, 1e9)),
    "bytes": whole(0),
    "cpu_s": SECONDS,
}
_EXAMINE = has_key(
    "answers",
    record({"answers": items(record({"id": whole(0)}, _CLIP_FACTS), 10_000)}),
    has_key(
        "ready",
        record({"ready": flag, "workers": whole(1, 100_000)}),
        has_key(
            "alive",
            record({"alive": flag}),
            record({"failed": text()}, {"said": text(8192, lines=True)}),
        ),
    ),
)

# One answer of a process of active_rank.py, or why it gave none.
_RANK_SAYS = record(
    {},
    {
        "id": whole(0),
        "error": text(),
        "own": flag,
        "phase": text(),
        "seconds": SECONDS,
        "device": NAME,
        "torch": NAME,
        "model": NAME,
        "tflops": number(0, 1e9),
        "finite": flag,
        "port": whole(0, 65535),
        "latency_s": SECONDS,
        "reduce_s": SECONDS,
        "exchange_s": SECONDS,
    },
)
_ACTIVE = record(
    {"id": whole(0)},
    {
        "error": text(),
        "hung": flag,
        "ranks": items(_RANK_SAYS, RANKS),
        "answers": items(_RANK_SAYS, RANKS),
        "port": maybe(whole(0, 65535)),
        "holder": maybe(text()),
        "addresses": items(NAME, 64),
        "why": items(maybe(text()), 4096),
        "seconds": SECONDS,
        "seen_s": SECONDS,
        "bytes": whole(0),
    },
)

# A rank's last lines: 16 KiB of log, each byte at most four characters.
_TAIL = items(text(70_000), 17_000)
_AGENT = either(
    "type",
    {
        "hello": record(
            {
                "type": NAME,
                "shared": flag,
                "cores": whole(0, 1 << 20),
                "python_found": flag,
                "workdir_found": flag,
                "same_job": items(record({"pid": maybe(_pid), "run": NAME}), PROCESSES),
                "port": maybe(whole(1, 65535)),
                "addresses": items(NAME, 64),
            }
        ),
        "knocked": record({"type": NAME, "errors": table(NAME, maybe(text()), 64)}),
        "failed": record({"type": NAME, "text": text()}),
        "started": record({"type": NAME, "pid": _pid}),
        "rank": record({"type": NAME, "rank": whole(0, 1 << 20), "pid": _pid}),
        "beat": record({"type": NAME, "ranks": table(digits(1 << 20), _ONE_BEAT, RANKS)}),
        "rank_ended": record(
            {
                "type": NAME,
                "rank": whole(0, 1 << 20),
                "code": maybe(whole(-256, 1 << 16)),
                "how": text(),
            },
            {"tail": _TAIL},
        ),
        "telemetry": record({"type": NAME, "text": raw_text(5 * MIB)}),
        "log": record({"type": NAME, "rank": whole(0, 1 << 20), "text": raw_text(5 * MIB)}),
        "ended": record({"type": NAME, "code": maybe(whole(-256, 1 << 16)), "tail": _TAIL}),
        "gone": record({"type": NAME, "left": rows(_LEFT_ROW)}),
    },
)


@dataclass(frozen=True, slots=True)
class Verb:
    """The shape of a verb's lines, and the bytes that one line may have.

    A line costs the head up to eight times its bytes, for a moment: one character beyond the BMP
    makes a whole text four times as wide. So 64 MiB are never passed.
    """

    shape: Shape
    line_bytes: int = 2 * MIB


VERBS = {
    "active": Verb(_ACTIVE),
    "agent": Verb(_AGENT, 6 * MIB),
    "census": Verb(_CENSUS, 6 * MIB),
    "clock": Verb(_CLOCK, 4 * MIB),
    "examine": Verb(_EXAMINE),
    "kill kill": Verb(_KILL, 6 * MIB),
    "kill look": Verb(_LOOK, 6 * MIB),
    "push drop": Verb(_PUSHED),
    "push install": Verb(_PUSHED),
    "push prepare": Verb(_PREPARED),
    "reap": Verb(_envelope("reap", {"found": rows(_LEFT_ROW), "left": rows(_LEFT_ROW)}), 6 * MIB),
    "shell": Verb(_envelope("shell", sections=_SHELL_SECTIONS), 8 * MIB),
    "stacks": Verb(_STACKS, 6 * MIB),
    "stop look": Verb(_STOP_LOOK, 6 * MIB),
    "stop stop": Verb(_STOP, 6 * MIB),
    "watch": Verb(watch, MIB // 4),
}


def name_of(verb: str, args: Mapping[str, Any]) -> str:
    """The key in VERBS: a verb that does several things answers each with a shape of its own."""
    full = f"{verb} {args.get('op') or args.get('step')}"
    return full if full in VERBS else verb


def read_line(name: str, line: bytes) -> dict[str, Any]:
    """A line of the verb `name` (`name_of`). Raises `TransportError` with phase parse."""
    verb = VERBS[name]
    what = f"the answer of {name.split()[0]}"
    if len(line) > verb.line_bytes:
        raise TransportError("parse", f"{what} is longer than {verb.line_bytes >> 10} KiB")
    answer: dict[str, Any] = decode(line, what, verb.shape)
    return answer
