"""Ctrl-C on a terminal at random moments of a launch, and random answers to what it asks."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable

from clusterctl.launch.head.attached import QUESTION, STOPPING
from tests.clusterctl.launch.harness import command_line
from tests.faults.fault import Fault
from tests.faults.rig import Round
from tests.faults.setting import Setting
from tests.faults.terminal import INTERRUPT

MOMENTS_S = (0.0, 14.0)  # after the command was typed: arguments, checks, connections, steps
ENDS_S = 60.0
ANSWERS = {"Ctrl-C": INTERRUPT, "s": b"s", "d": b"d", "c": b"c"}


def stopped_run(seed: int) -> Fault:
    """A launch that its user stops, in one of several ways; with a seed it is the same again."""
    draw = random.Random(seed)
    moment_s, answer = draw.uniform(*MOMENTS_S), draw.choice(list(ANSWERS))
    hurries = draw.random() < 0.5  # a Ctrl-C more, which kills at once
    wait_s = draw.choice((0.0, draw.uniform(0, 2)))

    def inject(one: Round) -> None:
        one.made.append(f"Ctrl-C after {moment_s:.2f} s, {answer}, hurries: {hurries}")
        pause(one, moment_s)
        one.strike()
        press(one, INTERRUPT)
        pause(one, wait_s)
        press(one, ANSWERS[answer])
        if answer == "d" and ends(one) and one.view.returncode == 0:
            shown = len(one.said())
            one.attach()
            until_shown(one, shown)
        if answer in ("c", "d"):
            press(one, INTERRUPT)
            until_asked(one, 2 if answer == "c" else 1)
            press(one, b"s")
        if answer == "Ctrl-C" and not is_answered(one):  # two at once may be one signal
            press(one, INTERRUPT)
        if hurries:
            pause(one, 0.5)
            press(one, INTERRUPT)
        if not ends(one):
            one.notes.append(f"it has not ended within {ENDS_S:g} s")

    return Fault(
        "ctrl-c",
        "Ctrl-C on a terminal at a random moment, and an answer",
        inject,
        cause="|user-stop",
        exit_code=130,
        is_same=False,
        setting=Setting(nodes=2, steps=10**6, terminal=True),
        check=nothing_is_left,
    )


def press(one: Round, keys: bytes) -> None:
    if one.view.poll() is None:
        one.terminal.press(keys)


def pause(one: Round, seconds: float) -> None:
    """A moment that is not known beforehand; shorter where the command ends."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and one.view.poll() is None:
        time.sleep(0.01)


def until_shown(one: Round, so_far: int) -> None:
    """More than this many characters, or the command has ended."""
    until = time.monotonic() + 20
    while len(one.said()) <= so_far and one.view.poll() is None and time.monotonic() < until:
        time.sleep(0.02)


def until_asked(one: Round, times: int) -> None:
    """Or until the command has ended, or has been asked less often: it was too early to ask."""
    until = time.monotonic() + 5
    while one.said().count(QUESTION) < times and one.view.poll() is None:
        if time.monotonic() > until:
            return
        time.sleep(0.02)


def is_answered(one: Round) -> bool:
    """Whether the command ends, or says that it stops the run."""
    until = time.monotonic() + 5
    while STOPPING not in one.said() and one.view.poll() is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def ends(one: Round) -> bool:
    until = time.monotonic() + ENDS_S
    while one.view.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    return one.view.poll() is not None


def nothing_is_left(one: Round) -> Iterable[str]:
    """Also where the run had no directory yet, and so no id to look for."""
    if not one.terminal.is_as_before:
        yield "the terminal's modes are not as before"
    until = time.monotonic() + 10
    while (left := list(programs(one))) and time.monotonic() < until:
        time.sleep(0.1)
    yield from (f"left: {line}" for line in left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if one.view.returncode == -number:
            yield f"it was ended by signal {number}"


def programs(one: Round) -> Iterable[str]:
    """What runs on the nodes and is no part of the node itself."""
    for node in one.lab.nodes:
        for pid in node.processes():
            words = command_line(pid).replace(b"\0", b" ").decode(errors="replace")
            if "python" in words.split(" ")[0] and "tests/lab/init.py" not in words:
                yield f"{node.name}: {words[:80]}"
