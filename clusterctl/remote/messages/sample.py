"""The shape of the lines of the verb sample: what warm samplers answer."""

from __future__ import annotations

from clusterctl.remote.messages.shape import (
    by_key,
    either,
    file_name,
    flag,
    items,
    maybe,
    record,
    text,
    whole,
)

VIDEOS = 20_000  # of one checkpoint and preset
SLOTS = 64  # samplers of one node

_size = whole(0)
_name = text(256)
_file = file_name()
_slot = whole(0, SLOTS)
_JOB = record({"file": _file, "index": _size, "finished": flag})
_LOOK = record({"batch_size": whole(1), "jobs": items(_JOB, VIDEOS)})
_id = {"id": _size}
_ANSWER = by_key(
    {
        "ready": record({"ready": _name}),
        "error": record({**_id, "error": text(), "hint": maybe(text()), "kind": _name}),
        "warm": record({**_id, "warm": flag}),
        "look": record({**_id, "look": _LOOK}),
        "begun": record({**_id, "begun": flag}),
        "made": record({**_id, "made": items(_file, VIDEOS)}),
    },
    record({**_id, "sheet": flag}),
)
sample = either(
    "type",
    {
        "hello": {"slots": whole(1, SLOTS), "shared": items(flag, 1000), "cache": text(8192)},
        "alive": {},
        "answer": {"slot": _slot, "answer": _ANSWER},
        "ended": {"slot": _slot, "why": text()},
        "failed": {"why": text()},
    },
)
