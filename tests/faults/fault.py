"""A fault as data: how it is made, what must be seen of it, and how soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.faults.rig import Round
from tests.faults.setting import Setting

RECOVERED_S = 20.0  # from the fault to the first new step, on 4 nodes
Inject = Callable[[Round], None]


def nothing_more(_: Round) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Fault:
    """`inject` is called while the run takes steps; it calls `strike` when the fault begins.

    `cause` is a pattern of the classes of all incidents, joined by ", "; "" for none: then the run
    must not be restarted. A limit in seconds that is None is not looked at.
    """

    id: str
    title: str
    inject: Inject
    cause: str = ""
    detected_s: float | None = None
    recovered_s: float | None = None
    exit_code: int = 0
    is_same: bool = True  # every number is that of the undisturbed run
    refuses_clips: bool = False  # others take the place of clips, so clips are not counted
    setting: Setting = field(default_factory=Setting)
    check: Callable[[Round], Iterable[str]] = nothing_more  # what else is wrong
    prepare: Inject | None = None  # before the launch


FAULTS: dict[str, Fault] = {}


def fault(
    id_: str,
    title: str,
    cause: str = "",
    *,
    check: Callable[[Round], Iterable[str]] = nothing_more,
    setting: Setting = Setting(),
    detected_s: float | None = None,
    recovered_s: float | None = RECOVERED_S,
    exit_code: int = 0,
    is_same: bool = True,
    refuses_clips: bool = False,
    prepare: Inject | None = None,
) -> Callable[[Inject], Inject]:
    """Enter a function as a fault. One that is recovered from has `recovered_s` for it."""

    def enter(inject: Inject) -> Inject:
        limit_s = recovered_s if cause and exit_code == 0 else None
        FAULTS[id_] = Fault(
            id_,
            title,
            inject,
            cause,
            detected_s,
            limit_s,
            exit_code,
            is_same and not refuses_clips,
            refuses_clips,
            setting,
            check,
            prepare,
        )
        return inject

    return enter


def with_size(fault: Fault, nodes: int, ranks: int, busy: float = 1.0) -> Fault:
    """The same with as many nodes, and ranks on each, on a machine that is `busy` times as slow."""
    return replace(fault, setting=replace(fault.setting, nodes=nodes, ranks=ranks, busy=busy))
