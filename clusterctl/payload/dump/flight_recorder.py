"""torch's flight record of a rank, read on its node as plain values and cut to what is compared.

A record is a pickle that the rank's user can write. Only opcodes of plain values are read, by the
unpickler in Python: the C one allocates what a memo index in the file asks for. A value that is
in the pickle once can appear a million times, so values are counted where they are copied.
"""

import io
import json
import math
import os
import pickle
import time

from clusterctl.payload.dump.proc_tasks import read_file
from clusterctl.payload.jobs.processes import variable

FLIGHT_BYTES = 16 << 20  # of one rank's record
FLIGHT_CONTAINERS = 1 << 20  # lists, tuples and dicts in it
FLIGHT_ENTRIES = (64, 16, 4)  # the newest of each process group: the most that fits
FLIGHT_TEXT = 128 << 10  # characters of a rank's entries that go home
FLIGHT_WORD = 300  # of one text: a function, a file
FLIGHT_DEPTH = 6
FLIGHT_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
KEPT = """collective_seq_id profiling_name process_group input_sizes input_dtypes state
retired""".split()
# GLOBAL and STACK_GLOBAL: find_class refuses what they name, with its name.
PLAIN = """PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
BINUNICODE SHORT_BINUNICODE BINUNICODE8 APPEND APPENDS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
GLOBAL STACK_GLOBAL""".split()
CONTAINERS = "EMPTY_LIST LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT".split()
KEYED = {"SETITEM": -2, "SETITEMS": 0}  # where its keys begin on the stack


class Opcodes(dict):
    """What the unpickler does for each opcode; others are refused."""

    def __missing__(self, code):
        raise pickle.UnpicklingError("opcode %r is of no plain value" % chr(code))


class PlainUnpickler(pickle._Unpickler):
    """Numbers, texts, lists, tuples, and dicts whose keys are texts; anything else is refused."""

    containers = 0
    dispatch = Opcodes()

    def find_class(self, module, name):
        why = "it names %s.%s; a flight record holds plain values only"
        raise pickle.UnpicklingError(why % (module, name))


def checked(name, load):
    """`load` of an opcode that makes a container or fills a dict, after a check."""
    is_container, first_key = name in CONTAINERS, KEYED.get(name)

    def load_checked(self):
        self.containers += is_container
        if self.containers > FLIGHT_CONTAINERS:
            raise pickle.UnpicklingError("more than %d lists" % FLIGHT_CONTAINERS)
        keys = () if first_key is None else self.stack[first_key::2]
        # A tuple of tuples of tuples never ends being hashed, and holds the interpreter.
        if not all(isinstance(key, str) for key in keys):
            raise pickle.UnpicklingError("a key that is no text")
        load(self)

    return load_checked


for _name in [*PLAIN, *CONTAINERS, *KEYED]:
    _code = ord(getattr(pickle, _name))
    _load = pickle._Unpickler.dispatch[_code]
    PlainUnpickler.dispatch[_code] = _load if _name in PLAIN else checked(_name, _load)


def load_plain(data):
    """Values of a pickle or JSON text. Raises ValueError; never runs anything of it."""
    if len(data) > FLIGHT_BYTES:
        raise ValueError("%d bytes are too many for a flight record" % len(data))
    try:
        if data[:1] == b"{":
            # Older interpreters take minutes for a million digits.
            return json.loads(data.decode(), parse_int=lambda digits: int(digits[:20]))
        return PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - odd bytes raise anything
        raise ValueError("not a flight record: %s" % error)


def newest(data):
    """The newest entries of each group, with the innermost frame outside of torch."""
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise ValueError("not a flight record: no entries")
    groups = {}  # type: dict
    for row in data["entries"]:
        if isinstance(row, dict) and not row.get("is_p2p"):
            groups.setdefault(json.dumps(plain(row.get("process_group"), [1000])), []).append(row)
    for count in FLIGHT_ENTRIES:
        left = [FLIGHT_TEXT]
        try:
            return [shortened(row, left) for rows in groups.values() for row in rows[-count:]]
        except ValueError as error:
            why = error
    raise ValueError("not a flight record: %s" % why)


def shortened(row, left):
    short = {name: plain(row.get(name), left) for name in KEPT}
    frames = row.get("frames")
    for frame in frames if isinstance(frames, (list, tuple)) else ():
        if isinstance(frame, dict):
            kept = {name: plain(frame.get(name), left) for name in ("name", "filename", "line")}
            if "/torch/" not in str(kept["filename"]):
                return dict(short, frames=[kept])
    return dict(short, frames=[])


def plain(value, left, depth=0):
    """A copy of what JSON can hold; takes its length from left[0]. Raises ValueError below 0."""
    if isinstance(value, str):
        value = value[:FLIGHT_WORD]
    left[0] -= len(value) + 4 if isinstance(value, str) else 4
    if left[0] < 0 or depth > FLIGHT_DEPTH:
        raise ValueError("its entries are too long, or too deep")
    if isinstance(value, (list, tuple)):
        return [plain(one, left, depth + 1) for one in value]
    if isinstance(value, dict):
        return {plain(str(key), left): plain(one, left, depth + 1) for key, one in value.items()}
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return None if is_odd or isinstance(value, int) and abs(value) >= 1 << 63 else value


def flight_dump(one, rank):
    """{path, age_s, entries or error} of a rank's record; None where there is none."""
    prefixes = [variable(one, name) for name in FLIGHT_NAMES if rank is not None]
    for prefix in filter(None, prefixes):
        path = "%s%d" % (prefix, rank)
        try:
            age_s = round(time.time() - os.stat(path).st_mtime, 1)
            data = read_file(path, FLIGHT_BYTES + 1)
        except OSError:
            continue
        try:
            return {"path": path, "age_s": age_s, "entries": newest(load_plain(data))}
        except (ValueError, TypeError) as error:
            return {"path": path, "age_s": age_s, "error": str(error)[:200]}
    return None
