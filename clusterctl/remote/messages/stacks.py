"""The shape of the packed report of stacks of a node (payload/stacks.py)."""

from __future__ import annotations

from typing import Any

from clusterctl.dataclass_json import Misshapen
from clusterctl.remote.messages import verbs
from clusterctl.remote.messages.shape import (
    ascii_text,
    by_key,
    decode,
    digits,
    flag,
    items,
    maybe,
    one_of,
    record,
    row,
    table,
    text,
    whole,
)

THREADS = 4096  # of one process
STACKS = 100_000  # of one node
SAMPLES = 100
MOST_FRAMES = 300_000  # of all threads in one sample: 136 processes of ten threads have 40,000

_pid = digits(1 << 32)


_TASK = row(text(4), whole(0), whole(0), *[maybe(verbs.NAME)] * 2)
_PROCESS = record(
    {"state": maybe(text(4))},
    {
        "tasks": table(_pid, _TASK, THREADS),
        "wchan": maybe(verbs.NAME),
        "syscall": maybe(text()),
        "stack": maybe(text(65536, lines=True)),
        "frozen": flag,
        "at_s": verbs.SECONDS,
        "how": one_of("kernel", "py-spy", "faulthandler"),
        "error": text(),
        "repaired": flag,
        "dump_s": verbs.SECONDS,
        "beat": verbs.BEAT,
        "clip": maybe(record({"path": text(8192), "age_s": verbs.AGE_S})),
        "threads": items(row(whole(0), maybe(verbs.NAME), whole(0, STACKS), flag, flag), THREADS),
        "text": text(1 << 18, lines=True),
    },
)
_TIMES = dict.fromkeys(("at_s", "seconds"), verbs.SECONDS)
_SAMPLE = record({**_TIMES, "processes": table(_pid, _PROCESS, verbs.PROCESSES)})
_FLIGHT = record(
    {"path": text(8192), "age_s": verbs.AGE_S},
    # Entries of any shape: stacks/clues.py checks each value, and the line is bounded.
    {"error": text(), "entries": items(lambda value: value, STACKS)},
)
_RAS = record(
    {"seconds": verbs.SECONDS}, {"error": text(), "text": ascii_text(8 << 20), "cut": flag}
)
_CHILD = record(
    {"state": text(40), "rc": maybe(whole()), "out": text(1 << 18), "err": text(4096, lines=True)},
    {"seconds": verbs.SECONDS, "truncated": flag},
)
_COUNTERS = record(
    {
        "ras": items(_RAS, 2),
        "addresses": items(text(64), 256),
        "inner": table(_pid, whole(0), verbs.PROCESSES),
        "gpus": maybe(_CHILD),
    }
)
_PARTS = record(
    {
        "rows": verbs.rows(verbs.JOB_ROW),
        "others": whole(0, verbs.PROCESSES),
        "machine": verbs.MACHINE,
        "node": verbs.NODE,
        "py_spy": maybe(text(8192)),
        "rights": record({"uid": whole(0), "scope": maybe(whole()), "capable": flag}),
        "samples": items(_SAMPLE, SAMPLES),
        "frames": items(row(text(), text(), text(), whole()), STACKS),
        "stacks": items(items(whole(0, STACKS), 2000), STACKS),
        "logs": table(_pid, items(text(), 100), verbs.PROCESSES),
        "flight": table(digits(1 << 20), _FLIGHT, verbs.RANKS),
        "kernel": items(row(verbs.AGE_S, text()), 100),
        "kernel_cut_s": maybe(verbs.SECONDS),
        "open": table(_pid, items(text(8192), 100), verbs.PROCESSES),
        "source": table(text(8192), text(), 1000),
        "late": items(verbs.NAME, 100),
        "counters": _COUNTERS,
        "seconds": verbs.SECONDS,
    }
)
_FRAME = record({"name": text(), "where": text(), "line": whole()})
_THREAD = record({"tid": maybe(whole(0)), "name": text(), "frames": items(_FRAME, 2000)})
_NATIVE = record(
    {"native": table(_pid, row(maybe(items(_THREAD, THREADS)), text(), flag), verbs.PROCESSES)}
)


def _report(value: Any) -> Any:
    """Numbers of frames and stacks are indexes into the lists beside them; unfolding is bounded."""
    report = _PARTS(value)
    frames, stacks = len(report["frames"]), len(report["stacks"])
    for index, stack in enumerate(report["stacks"]):
        if stack and max(stack) >= frames:
            raise Misshapen(f"of {frames} frames", max(stack), f".stacks[{index}]")
    for sample in report["samples"]:
        total = 0
        for pid, process in sample["processes"].items():
            for thread in process.get("threads", ()):
                if thread[2] >= stacks:
                    raise Misshapen(f"of {stacks} stacks", thread[2], f".{pid}.threads")
                total += len(report["stacks"][thread[2]])
        if total > MOST_FRAMES:
            raise Misshapen(f"of at most {MOST_FRAMES} frames", total, ".samples")
    return report


REPORT = by_key({"native": _NATIVE}, _report)


def read_report(line: bytes) -> dict[str, Any]:
    report: dict[str, Any] = decode(line, "the report of stacks", REPORT)
    return report
