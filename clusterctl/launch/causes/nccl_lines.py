"""Lines of NCCL and of torch's threads that end a log without an error of the program. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from clusterctl.launch.causes import signatures


class Warned(NamedTuple):
    """A warning of NCCL; `result` is what the call returned, "" where it does not say."""

    text: str
    result: str


# host:pid:thread [2] transport/nvls.cc:254 NCCL WARN …, and NCCL INFO init.cc:1157 -> 1 below it.
_NCCL_LINE = re.compile(
    r"\S \[\d{1,3}\] (?:(?P<at>[\w./-]{1,80}:\d{1,6}) )?NCCL (?:WARN (?P<warned>.+)|"
    r"INFO [\w./-]{1,80}:\d{1,6} -> (?P<code>\d{1,2})\b)"
)
_GIVEN_UP = re.compile(
    r"NCCL INFO (?:init|group|enqueue|collectives|bootstrap|channel|proxy|"
    r"transport/net\w{0,9})\.cc:\d{1,6} -> \d|"
    r"NCCL WARN \[Proxy Service \d{1,6}\] Failed to execute operation"
)
_RESULTS = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
}
_STORE = re.compile(
    r'Failed to check the "should dump" flag on TCPStore.{0,400}|'
    r"\[c10d\] (?:sendBytes|recvValue|recvVector|recvBytes) failed on SocketImpl.{0,400}"
)


def given_up(lines: Sequence[str]) -> Warned | None:
    """The first warning of those that end a log, where NCCL then gave up the call.

    In a log of several processes the first one that is no word about a peer.
    """
    warned, codes = list[str](), list[int]()
    for line in reversed(lines):
        said = _NCCL_LINE.search(line)
        if said is None and line.strip():
            break
        if said is not None and said["warned"]:
            warned.insert(0, f"{said['at'] or ''} NCCL WARN {said['warned']}".strip())
        elif said is not None:
            codes.append(int(said["code"]))
    if not warned or not any(map(_GIVEN_UP.search, lines)):
        return None
    known = [(signatures.find(text), text) for text in warned]
    own = (text for one, text in known if one is not None and not one.kind.is_consequence)
    return Warned(next(own, warned[0]), _RESULTS.get(codes[0], "") if codes else "")


def store_gone(lines: Sequence[str]) -> str:
    """That the store of rank 0 has gone, which a rank's own threads tell; "" without."""
    told = next(filter(None, map(_STORE.search, reversed(lines))), None)
    return told[0] if told else ""
