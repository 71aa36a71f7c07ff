"""The life of a starter: one attempt for a person, or one after another for the node's agents."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.config import sources
from trainer.starter.agent_link import AgentLink
from trainer.starter.command import Command, parse
from trainer.starter.program import Program
from trainer.starter.ranks import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, SIGNALS, Ranks, prctl

STANDBY_S = 120.0  # without an agent, without ranks, and since a launch asked for it
GRACE_S = 30.0  # from SIGTERM to SIGKILL, after a signal to the starter
# From the first bad end to SIGTERM for the others, where no agent decides: they find out by
# themselves within that, and say why.
PEERS_S = 5.0
LOOK_S = 0.5


class Starter:
    """`serve` returns the exit code; in a forked rank the program that it is to run."""

    def __init__(
        self,
        arguments: Sequence[str],
        command: Command,
        link: AgentLink | None,
        given: Mapping[str, str],  # the variables that this process was started with
    ) -> None:
        self._arguments, self._command = list(arguments), command
        self._link, self._given = link, given
        own = len(sys.orig_argv) - len(arguments)
        self._own_words = [sys.executable, *sys.orig_argv[1:own]]  # interpreter and module
        self._is_new = True  # until the first order
        self._installed = sources.installed()
        self._ranks = Ranks()
        self._codes: list[int] = []
        self._fail_grace_s = GRACE_S
        self._number = 0  # of the signal that asked for the end
        self._idle_s = time.monotonic()  # when an agent was connected last

    def serve(self) -> int | Program:
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # what ranks leave behind stays below this process
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes `_wait`
        for number in SIGNALS:
            signal.signal(number, self._asked)
        program = None if self._link else self._start(self._command)
        while program is None and not self._is_done():
            self._wait()
            for rank, _, code in self._ranks.reap():
                self._codes.append(code)
                self._send("ended", rank=rank, code=code)
                if not self._ranks.alive:
                    self._send("over", code=self._code)
            if self._link is not None:
                program = self._hear(self._link)
            self._end_ranks()
        if program is not None:
            return program
        if self._link is not None:
            self._link.close()
        return 128 + self._number if self._number else self._code

    @property
    def _code(self) -> int:
        return int(any(self._codes))

    def _asked(self, number: int, _frame: object) -> None:
        self._number = number

    def _start(self, command: Command) -> Program | None:
        self._codes = []
        program = self._ranks.start(command, self._leave)
        if program is None:
            prctl(PR_SET_PDEATHSIG, 0)  # from now on the socket tells when the agent has gone
            for pid, rank in self._ranks.alive.items():
                self._send("rank", rank=rank, pid=pid)
        return program

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._woken)
        if self._link is not None:
            self._link.leave()

    def _is_done(self) -> bool:
        if self._ranks.alive:
            return False
        if self._number or self._link is None:
            return True
        is_alone = not self._link.is_connected and time.monotonic() - self._idle_s > STANDBY_S
        return is_alone and self._link.asked_for_s > STANDBY_S

    def _wait(self) -> None:
        descriptors = [self._wake, *(self._link.descriptors() if self._link else ())]
        ready = select.select(descriptors, [], [], LOOK_S)[0]
        if self._wake in ready:
            os.read(self._wake, 65536)
        if self._link is not None and ready:
            self._link.accept(is_busy=bool(self._ranks.alive))

    def _end_ranks(self) -> None:
        if self._number:
            self._ranks.end(GRACE_S)
        failed_s = self._ranks.failed_s
        if self._link is None and failed_s is not None and time.monotonic() - failed_s > PEERS_S:
            self._ranks.end(GRACE_S)
        self._ranks.kill_late()

    def _hear(self, link: AgentLink) -> Program | None:
        for order in link.orders():
            program = self._obey(order)
            if program is not None:
                return program
        if link.is_connected:
            self._idle_s = time.monotonic()
        elif self._ranks.alive:  # the agent has died under its ranks
            self._ranks.end(self._fail_grace_s)
            self._number = signal.SIGTERM
        return None

    def _obey(self, order: dict[str, Any]) -> Program | None:
        """A start of ranks, with what this process was given when it was started."""
        self._fail_grace_s = order["fail_grace_s"]
        own = len(order["argv"]) - len(self._arguments)
        if self._is_new and order["argv"][own:] == self._arguments:
            self._own_words = order["argv"][:own]  # this command has started this process
        self._is_new = False
        why = self._why_not(order)
        if why:
            self._send("refused", why=why)
            return None
        command = parse(order["argv"][len(self._own_words) :], order["more"])
        self._send("accepted")
        return self._start(command)

    def _why_not(self, order: dict[str, Any]) -> str:
        """Why this process cannot start what an attempt wants."""
        own = len(self._own_words)
        if self._ranks.alive or self._number:
            return "its ranks have not ended"
        if order["argv"][:own] != self._own_words:
            return "another interpreter is asked for"
        if any(self._given.get(name) != value for name, value in order["env"].items()):
            return "another environment is asked for"
        if parse(order["argv"][own:]).preload != self._command.preload:
            return "other modules are asked for"
        # Ranks of one attempt run one code: nodes without a starter import what is there now.
        found = sources.changed(sources.imported(), sources.read())
        found += [
            name for name in self._installed if sources.file_facts(name) != self._installed[name]
        ]
        return f"{sources.shown(found)} has changed since it was imported" if found else ""

    def _send(self, kind: str, **message: Any) -> None:
        if self._link is not None:
            self._link.send(kind, **message)
