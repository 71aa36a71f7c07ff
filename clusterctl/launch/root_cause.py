"""Root and consequences among the deaths of an attempt and the facts of its nodes. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checks.finding import Verdict
from checks.reference.xid_codes import grade
from clusterctl.launch.causes import texts
from clusterctl.launch.causes.kinds import Cause, Evidence, Fact, Kind, Source
from clusterctl.launch.deaths import ASKED_TO_STOP, OURS, Death, told_later

NOT_STATED = "no rank's log states an error of its own"
# Of these a single node that has them, among several, is the likely cause; the trainer lets one
# rank of each node report a wrong environment.
_OF_ONE_NODE = (Kind.ENVIRONMENT, Kind.STORAGE)
_OF_A_DEATH = (Kind.OOM_KERNEL,)  # facts that explain the death of a process
# An attempt lasts weeks, and ranks train on after many an Xid. One that ends a run does so within
# minutes; where no rank states an error of its own, a watchdog's patience comes in between.
NEAR_S, NEAR_SILENT_S = 900.0, 7200.0


@dataclass(frozen=True, slots=True)
class Judgement:
    root: Cause
    consequences: tuple[Cause, ...] = ()
    death: Death | None = None  # of the root; None where a fact is the root


def judge(
    deaths: Sequence[Death],
    facts: Sequence[Fact] = (),
    *,
    homes: Mapping[int, str] | None = None,
    stopped_s: float = float("inf"),
) -> Judgement | None:
    """What ended an attempt; None where nothing died. Evidence decides, then the earliest event.

    `homes` has the node of every rank. After `stopped_s`, monotonic, this program itself stops
    ranks: of their deaths only those count that state an error of their own.
    """
    homes = homes or {}
    told = [death for death in deaths if not told_later(death, stopped_s)]
    ordered: list[tuple[tuple[float, bool, float], Cause, Death | None]] = []
    for death in told:
        ordered.append((death.order, cause_of(death, facts, homes), death))
    for fact in facts:
        if is_near(fact, told, stopped_s) and not any(_explains(fact, death) for death in told):
            at_s = fact.at_s if fact.at_s is not None else -float("inf")
            ordered.append(((_weight(fact), False, at_s), of_fact(fact), None))
    if not ordered:
        return None
    ordered.sort(key=lambda one: one[0])
    (_, root, of_root), *rest = ordered
    late = [death for death in deaths if told_later(death, stopped_s) and _blames(death)]
    victims = [one for _, one, _ in rest] + [cause_of(death, (), homes) for death in late]
    others = tuple(replace(one, is_root=False) for one in victims)
    several = len(set(homes.values()) | {one.node for one in told}) > 1
    if root.kind in _OF_ONE_NODE and several:
        alike = {one.node for one in (root, *others) if one.kind == root.kind}
        root = replace(root, is_of_node=len(alike) == 1)
    if root.kind.is_consequence:
        root = replace(root, is_root=False, note=NOT_STATED)
    return Judgement(root, others, of_root)


def is_near(fact: Fact, deaths: Sequence[Death], stopped_s: float = float("inf")) -> bool:
    """Whether a fact of a node may have to do with the end: shortly before it, or on the node of
    the rank that died of something else than an error which the same input gives again."""
    first_s = min((death.at_s for death in deaths), default=stopped_s)
    if fact.at_s is None or first_s == float("inf"):
        return True
    likeliest = min(deaths, key=lambda death: death.order, default=None)
    own = likeliest is not None and likeliest.states_own_error
    if likeliest is not None and likeliest.node == fact.node:
        is_input = own and likeliest.stated is not None and likeliest.stated.kind.is_deterministic
        return not is_input or first_s - fact.at_s <= NEAR_SILENT_S
    return first_s - fact.at_s <= (NEAR_S if own else NEAR_SILENT_S)


def cause_of(
    death: Death, facts: Sequence[Fact] = (), homes: Mapping[int, str] | None = None
) -> Cause:
    """One death as a cause, by the facts of its node, its signal, its log, its exit code."""
    node, rank, code, stated = death.node, death.rank, death.code, death.stated
    for fact in facts:
        if _explains(fact, death):
            return replace(of_fact(fact), rank=rank, at_s=death.at_s)
    by_code = Evidence(Source.EXIT_CODE, _how(death))
    if code is not None and code < 0 and code not in (-signal.SIGTERM, -signal.SIGABRT):
        said = stated is not None and stated.text.startswith("Fatal Python error")
        evidence = Evidence(Source.RANK_LOG, stated.text) if stated and said else by_code
        note = texts.signal_note(-code)
        return Cause(Kind.SIGNAL, str(-code), node, rank, evidence, note=note, at_s=death.at_s)
    if stated is not None and (death.states_own_error or stated.kind.is_consequence):
        # A victim names itself ("another rank has ended"), an agreed error the rank at fault.
        named = stated.rank if stated.rank is not None and not _blames(death) else rank
        is_exception = stated.kind == Kind.WORKER_EXCEPTION
        return Cause(
            stated.kind,
            stated.detail,
            (homes or {}).get(named) if named != rank else node,
            named,
            Evidence(Source.RANK_LOG, stated.text),
            is_of_node=stated.is_of_node,
            file=texts.file_of(death.tail) if is_exception else "",
            at_s=death.at_s,
        )
    if code == ASKED_TO_STOP:  # whoever has asked: a stop by the user is the root by itself
        return Cause(Kind.SIGNAL, str(-OURS[0]), node, rank, by_code, at_s=death.at_s)
    if code is not None and code < 0:
        return Cause(Kind.SIGNAL, str(-code), node, rank, by_code, at_s=death.at_s)
    return Cause(Kind.UNKNOWN, "", node, rank, by_code, at_s=death.at_s)


def _blames(death: Death) -> bool:
    return death.stated is not None and death.stated.kind.is_consequence


def of_fact(fact: Fact) -> Cause:
    is_of_node = fact.kind.is_of_node
    if fact.kind == Kind.XID:
        is_of_node = _is_broken(fact)
    about = (fact.kind, fact.detail, fact.node, fact.rank, fact.evidence)
    return Cause(*about, is_of_node=is_of_node, at_s=fact.at_s)


def _how(death: Death) -> str:
    # `how` of a death holds its error, too: "exit code 1: no such file".
    return death.how.partition(": ")[0]


def _explains(fact: Fact, death: Death) -> bool:
    """Whether a fact is the reason of this death: the kernel killed the rank or a worker of it."""
    if fact.kind not in _OF_A_DEATH or fact.node != death.node:
        return False
    if fact.rank is not None and fact.rank != death.rank:
        return False
    has_lost_worker = death.stated is not None and death.stated.kind == Kind.WORKER_DIED
    return death.code == -signal.SIGKILL or has_lost_worker


def _weight(fact: Fact) -> float:
    """Before every death, but for an Xid that follows what a program does."""
    return 3.5 if fact.kind == Kind.XID and not _is_broken(fact) else -1.0


def _is_broken(fact: Fact) -> bool:
    """Whether an Xid says that the GPU needs a reset or more."""
    number = int(fact.detail) if fact.detail.isascii() and fact.detail.isdigit() else 0
    return grade(number, fact.evidence.line).verdict == Verdict.FAIL
