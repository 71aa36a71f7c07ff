"""NVIDIA's Xid numbers: what each means for a node that is about to train. Data.

Numbers, names and recovery actions are those of NVIDIA's Xid catalogue (to 172) and of nverror.h of
driver 595 (to 176); where the catalogue names a workflow, the grades of four peers count. A number
that is in none of them is a warning, because a new driver brings new ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from checks.finding import Action, Verdict
from checks.reference import xid_nvlink5


@dataclass(frozen=True, slots=True)
class Grade:
    """How bad an Xid is, and what the machine needs; `fix` where that is not all to say."""

    verdict: Verdict
    action: Action
    meaning: str
    fix: str = ""


def _reset(meaning: str, fix: str = "") -> Grade:
    return Grade(Verdict.FAIL, Action.RESET_GPU, meaning, fix)


def _reboot(meaning: str, fix: str = "") -> Grade:
    return Grade(Verdict.FAIL, Action.REBOOT, meaning, fix)


def _service(meaning: str) -> Grade:
    return Grade(Verdict.FAIL, Action.SERVICE, meaning)


def _app(meaning: str) -> Grade:
    return Grade(Verdict.WARN, Action.RESTART_APP, meaning)


def _look(meaning: str) -> Grade:
    return Grade(Verdict.WARN, Action.NONE, meaning)


def _note(meaning: str) -> Grade:
    return Grade(Verdict.PASS, Action.NONE, meaning)


_COPY = _app("copy engine error")
_VIDEO = _app("error of a video decoder or encoder")
_JPEG = _app("error of a JPEG decoder")
_UNUSED = _look("a number that current drivers do not use")
_NVLINK5 = _look("NVLink 5 error")

GRADES: dict[int, Grade] = {
    **dict.fromkeys(range(1, 177), _UNUSED),
    8: _app("GPU stopped processing"),
    11: _app("broken command stream, usually the program or CUDA"),
    13: _app("graphics engine exception, usually user code"),
    14: _note("test of the driver"),
    25: _app("broken command stream, usually the program or CUDA"),
    31: _app("GPU memory page fault, usually user code"),
    32: _app("broken command stream, usually the program or CUDA"),
    37: _look("driver firmware error"),
    38: _look("driver firmware error"),
    **dict.fromkeys((39, 40, 41, *range(70, 73), *range(75, 78), 85, *range(126, 136)), _COPY),
    43: _note("a program was stopped"),
    44: _look("fault during a context switch"),
    45: _note("preemptive clean-up, follows another error"),
    46: _reset("GPU stopped processing"),
    48: _reset("double-bit ECC error"),
    54: _service("auxiliary power is not connected"),
    60: _app("video processor exception"),
    62: _reset("internal micro-controller halted"),
    63: Grade(Verdict.WARN, Action.RESET_GPU, "a memory row is marked for remapping"),
    64: _service("a memory row could not be remapped"),
    66: _look("illegal access by the driver"),
    67: _look("illegal access by the driver"),
    **dict.fromkeys((68, 83, 84, 88, 89, *range(96, 99), 142), _VIDEO),
    69: _app("graphics engine class error, usually user code"),
    74: _reset("NVLink error"),
    78: _look("a virtual GPU did not start: driver of host and guest have to fit"),
    79: _reboot("GPU has fallen off the bus"),
    80: _app("corrupted data was sent to the GPU"),
    81: _look("VGA subsystem error"),
    **dict.fromkeys((82, *range(99, 106)), _JPEG),
    86: _app("optical flow engine exception"),
    92: _look("high rate of single-bit errors"),
    93: _look("the InfoROM is written too often"),
    94: _app("contained memory error"),
    95: _reset("uncontained memory error"),
    106: _note("test message of the management bus"),
    107: _note("test message of the management bus"),
    108: _look("NVLink remote translation error, as Xid 137"),
    109: _reset("context switch timed out"),
    110: _reset("security fault"),
    119: _reset("the GPU's system processor did not answer"),
    120: _reset("error of the GPU's system processor"),
    121: _look("error of the link between CPU and GPU"),
    136: _reset("link training failed"),
    137: _look("NVLink: a peer's memory was used that is not mapped"),
    139: _app("optical flow engine exception"),
    140: _reset("unrecovered ECC error"),
    141: _look("CUDA fast path error"),
    143: _reset("the GPU did not initialise"),
    **dict.fromkeys(range(144, 151), _NVLINK5),
    151: _reboot("keys of confidential computing were not replaced", "restart the virtual machine"),
    152: _look("deep learning accelerator: memory fault"),
    153: _look("deep learning accelerator timed out"),
    154: _look("the recommended recovery has changed"),
    155: _reset("NVLink error that software has defined"),
    156: _reset("a part of the GPU waits to be retired"),
    157: Grade(Verdict.WARN, Action.SERVICE, "a part of the GPU could not be retired"),
    158: _reset("fatal time-out of the GPU"),
    159: _app("error on the coherent link, as of managed memory"),
    160: _look("a memory channel is marked to be retired"),
    161: Grade(Verdict.WARN, Action.SERVICE, "a memory channel could not be retired"),
    162: _note("power smoothing works again"),
    163: _look("power smoothing is off"),
    164: _look("power smoothing nears the end of its life"),
    165: _look("power smoothing has reached the end of its life"),
    166: _look("NVLink carried traffic before its encryption was set up"),
    167: _reset("fatal PCIe time-out"),
    168: _reboot("errors in the protected region of memory: the GPU has less memory"),
    169: _reset("security micro-controller halted"),
    170: _look("NVLink interrupt with confidential computing"),
    171: _reset("uncorrectable DRAM error, more about an Xid 48"),
    172: _reset("uncorrectable SRAM error, more about an Xid 48"),
    173: _reboot("the link between CPU and GPU has failed"),
    174: _note("a program was ended by the driver"),
    175: _reset("memory subsystem error"),
    176: _look("many corrected PCIe errors"),
}

# What Xid 154 names, by the number behind "to"; the words differ between drivers.
RECOVERIES: dict[int, Grade] = {
    0: _note("no recovery is needed any more"),
    1: _reset("the driver asks for a GPU reset"),
    2: _reboot("the driver asks for a reboot"),
    3: Grade(
        Verdict.FAIL,
        Action.RESTART_APP,
        "the driver asks to end all programs that use peer-to-peer access (drain P2P)",
        "clusterctl kill, or end what runs on the GPUs of the node; it needs no reset",
    ),
    4: _reset("the driver asks for a drain and reset", "end what runs on the GPU, then reset it"),
    5: Grade(
        Verdict.FAIL,
        Action.RESTART_APP,
        "the driver asks to recover the IMEX domain",
        "sudo systemctl restart nvidia-imex on all nodes of the domain",
    ),
    6: _reset("the driver asks for a reset of the bus"),
    7: _reboot("the driver asks for a reboot of the system"),
}
_TO = re.compile(r"\bto 0x([0-9a-f]{1,8})\b", re.IGNORECASE)
_WORDS = (("reboot", 2), ("p2p", 3), ("drain", 4), ("imex", 5), ("bus reset", 6), ("reset", 1))


def _recovery(text: str) -> Grade:
    if found := _TO.search(text):
        number = int(found[1], 16)
        other = _look(f"the driver asks for action 0x{number:x}, which is not in our list")
        return RECOVERIES.get(number, other)
    words = text.lower()
    return next((RECOVERIES[number] for mark, number in _WORDS if mark in words), GRADES[154])


def grade(number: int, text: str) -> Grade:
    """The grade of an Xid line. The text decides for 154 and for 144 to 150."""
    if number == 154:
        return _recovery(text)
    found = GRADES.get(number, _look("not in our list"))
    if found is not _NVLINK5:
        return found
    link = xid_nvlink5.read(number, text)
    meaning = f"{'fatal ' if link.is_fatal else ''}NVLink 5 error{link.about}"
    return _reset(meaning, link.fix) if link.is_fatal else Grade(Verdict.WARN, Action.NONE, meaning)


def worst(number: int, texts: list[str]) -> tuple[Grade, int]:
    """The grade that counts among lines of one GPU and number, and where its newest line is.

    Of an Xid 154 the last: it says what is asked for now. Of others the worst.
    """
    grades = [grade(number, text) for text in texts]
    if number == 154:
        return grades[-1], len(grades) - 1
    order = (Verdict.FAIL, Verdict.WARN)
    rank = [order.index(one.verdict) if one.verdict in order else 2 for one in grades]
    at = max(index for index, value in enumerate(rank) if value == min(rank))
    return grades[at], at
