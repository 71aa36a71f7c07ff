"""The cause of a run's end by deaths, lost nodes and the starter's log. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl.launch.causes import texts
from clusterctl.launch.causes.kinds import Cause, Evidence, Fact, Kind, Source
from clusterctl.launch.deaths import ASKED_TO_STOP, Death
from clusterctl.launch.root_cause import Judgement, judge

USER_STOPPED, NODE_LOST = 130, 3  # exit codes of a launch
_BY_SIGNAL = re.compile(r": what starts its ranks ended with code -(\d{1,3})$")


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended. Times are of the head's monotonic clock, in seconds."""

    exit_code: int
    reason: str
    deaths: Sequence[Death] = ()
    # Node: why it cannot be asked any more; first the one for which the run was ended.
    lost: Mapping[str, str] = field(default_factory=dict)
    starter_lines: Sequence[str] = ()  # of the starter's log, where it has failed itself
    homes: Mapping[int, str] = field(default_factory=dict)  # the node of each rank
    facts: Sequence[Fact] = ()
    stopped_s: float = float("inf")  # when the supervisor stopped what was left
    leaving: Collection[str] = ()  # of the lost nodes those that have said that they go down


def judge_end(end: End) -> Judgement:
    """Root and consequences of an end that was not good.

    A node that cannot be asked is the root where the run ended because of it, and also where every
    rank that died blames a peer: that peer is on it. So is a node that goes down, or has gone,
    where ranks have saved and ended in order: it has asked them to.
    """
    found = judge(end.deaths, end.facts, homes=end.homes, stopped_s=end.stopped_s)
    if end.exit_code == USER_STOPPED:
        stop = Cause(Kind.USER_STOP, evidence=Evidence(Source.USER, end.reason))
        return Judgement(stop, _victims(found, end.stopped_s))
    blames_others = found is None or found.root.kind.is_consequence
    left = [name for name in end.lost if name in end.leaving]
    if found is not None and found.death is not None:
        blames_others |= found.death.code == ASKED_TO_STOP
    if end.lost and (end.exit_code == NODE_LOST or blames_others):
        node = left[0] if left and blames_others else next(iter(end.lost))
        kind = Kind.NODE_STOPPED if node in left else Kind.NODE_UNREACHABLE
        evidence = Evidence(Source.CONNECTION, end.lost[node])
        root = Cause(kind, "", node, None, evidence, is_of_node=True)
        return Judgement(root, _victims(found, end.stopped_s))
    return found or Judgement(_of_starter(end))


def _victims(found: Judgement | None, stopped_s: float) -> tuple[Cause, ...]:
    """Causes that are none beside the known root; what the stop itself ended is left out."""
    if found is None:
        return ()
    every = (found.root, *found.consequences)
    died = [one for one in every if one.at_s is None or one.at_s <= stopped_s]
    return tuple(replace(one, is_root=False) for one in died)


def _of_starter(end: End) -> Cause:
    """No rank died: what starts them has failed, or an agent reported a failure."""
    stated = texts.read(end.starter_lines)
    if stated is None or stated.kind == Kind.WORKER_EXCEPTION:
        line = end.starter_lines[-1] if end.starter_lines else ""
        stated = texts.classify(line) if line else None
    name = end.reason.partition(":")[0]  # "node-1: what starts its ranks ended with code 4"
    node = name if name in end.homes.values() else None
    if stated is None and (by_signal := _BY_SIGNAL.search(end.reason)):
        evidence = Evidence(Source.EXIT_CODE, end.reason)
        return Cause(Kind.SIGNAL, by_signal[1], node, None, evidence)
    if stated is None or stated.kind == Kind.WORKER_EXCEPTION:
        return Cause(Kind.UNKNOWN, "", node, None, Evidence(Source.STARTER_LOG, end.reason))
    evidence = Evidence(Source.STARTER_LOG, stated.text)
    return Cause(stated.kind, stated.detail, node, None, evidence)
