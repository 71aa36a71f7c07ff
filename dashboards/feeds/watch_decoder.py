"""The lines of the payload `watch` as readings. Pure; unexpected lines raise `TransportError`.

A line has only what changed, so a Decoder belongs to one stream and keeps the rest. What a line
does not name stays the same object in the next reading: 8 of 9 parts of a node do not change.
"""

from __future__ import annotations

from typing import Any

from checks.facts import THROTTLE_REASONS, or_none
from checks.parsers.nvidia_smi import GPU_FIELDS, parse_quantity, plausible, read_rows
from clusterctl.errors import TransportError
from clusterctl.payload.watching.columns import CARD, DISK, GPU, LINK, PROCESS, RATES, XID
from clusterctl.payload.watching.gpus import SMI_QUERY
from clusterctl.remote.messages.verbs import read_line
from dashboards.model.samples import Disk, Gpu, Link, NodeSample, Process, Xid

SMI_COLUMNS = SMI_QUERY.split(",")
_FIELDS = {column: field for field, (_, column, _) in GPU_FIELDS.items()}
MIB = 2**20
GPUS, LINKS, XIDS, ROWS = 64, 64, 50, 256  # more than a node has; the rest is dropped
AGES_S = 10.0  # ages of processes are brought up to date this often
_FAMILIES = frozenset("ghlL")


class Decoder:
    """Readings of one node out of the lines of one stream."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._reported: dict[str, Any] = {}
        self._complete = False
        self._gpus: dict[int, Gpu | None] = {}
        self._still: dict[int, _Still] = {}
        self._links: dict[int, Link | None] = {}
        self._gpu_tuple: tuple[Gpu, ...] | None = None
        self._link_tuple: tuple[Link, ...] | None = None
        self._csv: tuple[Gpu, ...] | None = None
        self._disks: tuple[Disk, ...] | None = None
        self._processes: tuple[Process, ...] | None = None
        self._processes_s = 0.0  # when their ages were right
        self._reported_s = 0.0  # when they were reported
        self._xids: tuple[Xid, ...] = ()
        self._up: tuple[float, float] | None = None  # (seconds, when)
        self._step_s = 0.0
        self.pong: tuple[int, float] | None = None  # (number of the question, node's wall clock)

    def take(self, line: bytes, at_s: float) -> bool:
        """Read a line that came at `at_s`; whether it was a reading (else it answers a question).

        Raises `TransportError` for what the payload never sends.
        """
        reported = read_line("watch", line)
        if "pong" in reported:
            self.pong = (reported["pong"], reported["t"])
            return False
        if "key" in reported:
            new = reported["key"]
            self._complete = True
            self._reported, self._gpus, self._links, self._still = {}, {}, {}, {}
            self._gpu_tuple = self._link_tuple = None
        elif self._complete:
            new = reported["d"]
        else:
            raise TransportError("parse", "a change of nothing")
        for key, value in new.items():
            self._set(key, value, at_s)
        self._step_s += reported.get("step", 0.0)
        if "x" in reported:
            self._add_xids(reported["x"], at_s)
        return True

    def _set(self, key: str, value: Any, at_s: float) -> None:
        self._reported[key] = value
        family = key[:1]
        if family in _FAMILIES and key[1:].isdigit():
            index = int(key[1:])
            if family in "lL":
                self._links[index] = self._link_tuple = None
            else:
                self._gpus[index] = self._gpu_tuple = None
                if family == "h":
                    self._still.pop(index, None)
        elif key in ("gpus", "links"):
            self._gpu_tuple = self._link_tuple = None
        elif key == "csv":
            self._csv = parse_csv(str(value))
        elif key == "disks":
            self._disks = _disks(value)
        elif key == "procs":
            self._processes, self._reported_s = None, at_s
        elif key == "up":
            up = _number(value)
            self._up = None if up is None else (up, at_s)

    def sample(
        self, at_s: float, offset_s: float | None = None, bound_s: float | None = None
    ) -> NodeSample | None:
        """The node as it is known now; None before its first line. Clock steps come once."""
        if not self._complete:
            return None
        reported = self._reported
        memory = reported.get("mem")
        used, total = memory if type(memory) is list and len(memory) == 2 else (None, None)
        gpus, error = self._all_gpus()
        step, self._step_s = self._step_s, 0.0
        return NodeSample(
            node=self._node,
            at_s=at_s,
            cpu=_number(reported.get("cpu")),
            cpus=_whole(reported.get("cpus")),
            load1=_number(reported.get("load1")),
            memory_used_bytes=_times(used, MIB),
            memory_total_bytes=_times(total, MIB),
            network_bytes_s=_times(reported.get("net"), 1e6),
            gpus=gpus,
            gpu_error=error,
            processes=self._all_processes(at_s),
            links=self._all_links(),
            disks=self._disks,
            clock_offset_s=offset_s,
            clock_bound_s=bound_s,
            clock_step_s=step,
            up_s=None if self._up is None else self._up[0] + at_s - self._up[1],
            driver=reported["driver"] if isinstance(reported.get("driver"), str) else "",
            xids=None if reported.get("xlog") and not self._xids else self._xids,
            log_error=str(reported.get("xlog") or ""),
        )

    def _all_gpus(self) -> tuple[tuple[Gpu, ...] | None, str]:
        reported = self._reported
        count = reported.get("gpus")
        if type(count) is int and count >= 0:
            if self._gpu_tuple is None:
                for index in range(min(count, GPUS)):
                    if self._gpus.get(index) is None:
                        if index not in self._still:
                            self._still[index] = _still(reported.get(f"h{index}"))
                        moving = reported.get(f"g{index}")
                        self._gpus[index] = _gpu(index, moving, self._still[index])
                gpus = map(self._gpus.get, range(min(count, GPUS)))
                self._gpu_tuple = tuple(gpu for gpu in gpus if gpu is not None)
            return self._gpu_tuple, ""
        error = str(reported.get("gpu_error") or "")
        if isinstance(reported.get("csv"), str):
            return self._csv, error if self._csv is not None else "nvidia-smi: no table"
        return None, error or "the node said nothing about GPUs"

    def _all_links(self) -> tuple[Link, ...] | None:
        reported = self._reported
        count = reported.get("links")
        if type(count) is not int:
            return None
        if self._link_tuple is None:
            for index in range(min(count, LINKS)):
                if self._links.get(index) is None:
                    self._links[index] = _link(reported.get(f"L{index}"), reported.get(f"l{index}"))
            links = map(self._links.get, range(min(count, LINKS)))
            self._link_tuple = tuple(link for link in links if link is not None)
        return self._link_tuple

    def _all_processes(self, at_s: float) -> tuple[Process, ...] | None:
        rows = self._reported.get("procs")
        if type(rows) is not list:
            return None
        if self._processes is None or at_s - self._processes_s >= AGES_S:
            passed = at_s - self._reported_s
            found = (_process(row, passed) for row in rows[:ROWS])
            self._processes = tuple(one for one in found if one is not None)
            self._processes_s = at_s
        return self._processes

    def _add_xids(self, rows: Any, at_s: float) -> None:
        by_address = {}
        for key, card in self._reported.items():
            if key[:1] == "h" and type(card) is list and len(card) > 3:
                by_address[_address(card[3])] = int(key[1:])
        for row in rows[:ROWS] if type(rows) is list else ():
            if type(row) is list and len(row) == len(XID) and _whole(row[2]) is not None:
                gpu = by_address.get(_address(row[1]))
                line = Xid(at_s - (_number(row[0]) or 0.0), gpu, int(row[2]), str(row[3])[:300])
                self._xids = (*self._xids, line)[-XIDS:]


def _address(text: Any) -> str:
    """NVML has 00000000:0F:00.0, the kernel's log 0000:0f:00."""
    return str(text).lower().rpartition(".")[0][-10:] or str(text).lower()[-10:]


_Still = tuple[str, float | None, float | None, int | None, tuple[int, int] | None]
_ALL_INTS = {int}


def _still(row: Any) -> _Still:
    """(name, limit, bytes, ECC errors, NVLinks): what a card reports once a minute."""
    if type(row) is not list or len(row) != len(CARD):
        return "", None, None, None, None
    up, links = _whole(row[5]), _whole(row[6])
    nvlinks = None if up is None or links is None else (up, links)
    name = row[0] if isinstance(row[0], str) else ""
    return name, _number(row[1]), _times(row[2], MIB), _whole(row[4]), nvlinks


def _gpu(index: int, moving: Any, still: _Still) -> Gpu | None:
    name, limit, total, ecc, links = still
    if isinstance(moving, str):
        return Gpu(index, name, error=moving or "lost")
    if type(moving) is not list or len(moving) != len(GPU):
        return None
    power, util, used, degrees, mhz, bits, joules = moving
    if {*map(type, moving)} != _ALL_INTS or max(moving) > 2**53 or min(moving) < -(2**53):
        # A card that has no answer for something, or a value that is not a number.
        power, util, used, degrees, mhz = map(_number, moving[:5])
        joules = _number(joules)
    util = None if util is None else util / 100
    used = None if used is None else used * MIB
    why = "" if bits == 0 else _reasons(bits)
    # By position: eight of these a node and second, and names cost half as much again.
    return Gpu(
        index, name, power, limit, util, used, total, degrees, mhz, "", why, ecc, links, joules
    )


def _reasons(bits: Any) -> str | None:
    if type(bits) is not int:
        return None
    return ", ".join(word for bit, word in THROTTLE_REASONS.items() if bits & bit)


def _link(still: Any, moving: Any) -> Link | None:
    if type(still) is not list or len(still) != len(LINK):
        return None
    if type(moving) is not list or len(moving) != len(RATES):
        moving = (None, None, None)
    name, kind, state, rate_gbps, downs = still
    kind = "ib" if kind == "ib" else "eth"
    rx, tx, errors = _times(moving[0], 1e6), _times(moving[1], 1e6), _number(moving[2])
    return Link(str(name), kind, str(state), _number(rate_gbps), rx, tx, errors, _whole(downs))


def _process(row: Any, passed_s: float) -> Process | None:
    if type(row) is not list or len(row) != len(PROCESS) or _whole(row[0]) is None:
        return None
    pid, user, name, gpu, memory, run, rank, age = row
    age_s = _number(age)
    age_s = None if age_s is None else age_s + passed_s
    used, tag = _times(memory, MIB), str(run or "")
    return Process(int(pid), str(user), str(name), _whole(gpu), used, tag, _whole(rank), age_s)


def _disks(disks: Any) -> tuple[Disk, ...] | None:
    if type(disks) is not list:
        return None
    return tuple(
        Disk(str(row[0]), _times(row[1], MIB), _times(row[2], MIB), str(row[3]))
        for row in disks[:ROWS]
        if type(row) is list and len(row) == len(DISK)
    )


def parse_csv(text: str) -> tuple[Gpu, ...] | None:
    """`nvidia-smi --query-gpu=SMI_QUERY --format=csv,noheader`; None when no line is one."""
    gpus = []
    for cells in read_rows(text, SMI_COLUMNS):
        if not cells["index"].isdigit():
            continue
        values = [
            or_none(plausible(_FIELDS.get(name, name), parse_quantity(cells[name])))
            for name in SMI_COLUMNS[2:]
        ]
        power_w, limit_w, util, used, total, degrees, mhz = values
        is_lost = all(value is None for value in (power_w, util, used, degrees))
        util = None if util is None else util / 100
        # A lost card answers every question with an error text in brackets.
        error = cells["power.draw"].strip("[]") if is_lost else ""
        index, name = int(cells["index"]), cells["name"]
        gpus.append(Gpu(index, name, power_w, limit_w, util, used, total, degrees, mhz, error))
    if len({gpu.index for gpu in gpus}) < len(gpus):
        return None  # which is which is not known
    return tuple(gpus) or None


def _number(value: Any) -> float | None:
    """A finite number, also as text; `[N/A]`, booleans and the rest are None."""
    kind = type(value)
    if kind is float or kind is int:
        return value if -1e300 < value < 1e300 else None
    if kind is not str:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None


def _times(value: Any, factor: float) -> float | None:
    """A finite number in our unit."""
    number = value if type(value) is float and -1e290 < value < 1e290 else _number(value)
    return None if number is None else number * factor


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value if -(2**53) < value < 2**53 else None
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None
