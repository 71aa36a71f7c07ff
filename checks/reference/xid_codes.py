"""NVIDIA's Xid numbers: what each means for a node that is about to train.

From NVIDIA's catalogue and the grades of four peers; numbers that none of them has are a warning,
because a new driver brings new ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from checks.finding import Action, Verdict


@dataclass(frozen=True, slots=True)
class Grade:
    """How bad an Xid is, and what the machine needs."""

    verdict: Verdict
    action: Action
    meaning: str


_RESET = Grade(Verdict.FAIL, Action.RESET_GPU, "the GPU has to be reset")
_APP = Grade(Verdict.WARN, Action.RESTART_APP, "usually the program's own fault")
_NVLINK5 = Grade(Verdict.WARN, Action.NONE, "NVLink 5")

GRADES: dict[int, Grade] = {
    13: Grade(Verdict.WARN, Action.RESTART_APP, "graphics engine exception, usually user code"),
    31: Grade(Verdict.WARN, Action.RESTART_APP, "GPU memory page fault, usually user code"),
    43: Grade(Verdict.PASS, Action.NONE, "a program was stopped"),
    45: Grade(Verdict.PASS, Action.NONE, "preemptive clean-up, follows another error"),
    48: Grade(Verdict.FAIL, Action.RESET_GPU, "double-bit ECC error"),
    54: Grade(Verdict.FAIL, Action.SERVICE, "auxiliary power is not connected"),
    63: Grade(Verdict.WARN, Action.RESET_GPU, "a memory row is marked for remapping"),
    64: Grade(Verdict.FAIL, Action.SERVICE, "a memory row could not be remapped"),
    68: _APP,
    69: _APP,
    74: Grade(Verdict.FAIL, Action.RESET_GPU, "NVLink error"),
    79: Grade(Verdict.FAIL, Action.REBOOT, "GPU has fallen off the bus"),
    80: _APP,
    81: _APP,
    92: Grade(Verdict.WARN, Action.NONE, "high rate of single-bit errors"),
    94: Grade(Verdict.WARN, Action.RESTART_APP, "contained memory error"),
    95: Grade(Verdict.FAIL, Action.RESET_GPU, "uncontained memory error"),
    **dict.fromkeys((46, 62, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), _RESET),
    **dict.fromkeys((144, 145, 146, 147, 148, 149, 150), _NVLINK5),
}

_RECOVERY = (
    ("node reboot", Grade(Verdict.FAIL, Action.REBOOT, "the driver asks for a reboot")),
    ("drain", Grade(Verdict.FAIL, Action.RESET_GPU, "the driver asks for a drain and reset")),
    ("gpu reset", Grade(Verdict.FAIL, Action.RESET_GPU, "the driver asks for a GPU reset")),
)


def grade(number: int, text: str) -> Grade:
    """The grade of an Xid line. The text decides for 151, 154, 168 and for 144 to 150."""
    if number in (151, 154, 168):
        words = text.lower().replace("required", "").replace("  ", " ")
        for mark, found in _RECOVERY:
            if mark in words:
                return found
        return Grade(Verdict.WARN, Action.NONE, "the recommended recovery has changed")
    found = GRADES.get(number, Grade(Verdict.WARN, Action.NONE, "not in our list"))
    if found is _NVLINK5 and re.search(r"\bFatal\b", text) and "Nonfatal" not in text:
        return Grade(Verdict.FAIL, Action.RESET_GPU, "fatal NVLink 5 error")
    return found
