"""torch's flight record of a rank, read on its own node as plain values and cut to what is compared. Part of stacks.

A record is a pickle. Nothing in it can name a function or a class here, and the unpickler is the one
written in Python: the C one takes a memo index from the file and allocates that much.
"""

import io
import json
import os
import pickle
import time

FLIGHT_BYTES = 32 << 20  # of one rank's record
FLIGHT_ENTRIES = 64  # the newest of each process group
FLIGHT_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
KEPT = (
    "collective_seq_id", "profiling_name", "process_group", "input_sizes", "input_dtypes", "state",
    "retired",
)  # fmt: skip


class PlainUnpickler(pickle._Unpickler):
    """Numbers, text, lists, tuples, dicts; anything that would be imported or called is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(
            "it names %s.%s; a flight record holds plain values only" % (module, name)
        )

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it holds a persistent id")


def load_plain(data):
    """Values of a pickle or JSON text. Raises ValueError; never runs anything of it."""
    if len(data) > FLIGHT_BYTES:
        raise ValueError("%d bytes are too many for a flight record" % len(data))
    try:
        if data[:1] == b"{":
            return json.loads(data.decode())
        return PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - odd bytes raise anything; all of it means: not readable
        raise ValueError("no flight record: %s" % error)


def newest(data):
    """The newest entries of each group, with the innermost frame outside of torch."""
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise ValueError("no flight record: no entries")
    groups = {}  # type: dict
    for row in data["entries"]:
        if isinstance(row, dict) and not row.get("is_p2p"):
            groups.setdefault(str(row.get("process_group")), []).append(row)
    kept = []
    for rows in groups.values():
        for row in rows[-FLIGHT_ENTRIES:]:
            short = {name: row.get(name) for name in KEPT}
            frames = [f for f in row.get("frames") or () if isinstance(f, dict)]
            own = [f for f in frames if "/torch/" not in str(f.get("filename"))]
            short["frames"] = own[:1]
            kept.append(short)
    return kept


def flight_dump(one, rank):
    """{path, age_s, entries or error} of a rank's record; None where there is none."""
    for name in FLIGHT_NAMES:
        prefix = variable(one, name)
        if not prefix or rank is None:
            continue
        path = "%s%d" % (prefix, rank)
        try:
            age_s = round(time.time() - os.stat(path).st_mtime, 1)
            with open(path, "rb") as file:
                data = file.read(FLIGHT_BYTES + 1)
        except OSError:
            continue
        try:
            # Through JSON and back: what cannot be sent home is no plain value either.
            entries = json.loads(json.dumps(newest(load_plain(data))))
            return {"path": path, "age_s": age_s, "entries": entries}
        except (ValueError, TypeError) as error:
            return {"path": path, "age_s": age_s, "error": str(error)[:200]}
    return None
