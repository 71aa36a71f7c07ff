"""The cause of an end by more than the ranks' deaths: lost nodes, a stop, the starter itself."""

from __future__ import annotations

from clusterctl.launch.causes.kinds import Kind, Source
from clusterctl.launch.end_cause import End, judge_end
from tests.clusterctl.launch.test_root_cause import PEER, died

HOMES = {0: "node-1", 1: "node-2"}


def test_lost_node_is_the_root_of_a_run_that_ended_because_of_it() -> None:
    end = End(3, "node-2 was lost: eof", [died(0, 1, PEER)], {"node-2": "eof"}, homes=HOMES)
    found = judge_end(end)
    assert (found.root.name, found.root.node, found.root.is_of_node) == (
        "node-unreachable", "node-2", True,
    )  # fmt: skip
    assert [one.kind for one in found.consequences] == [Kind.PEER_LOST]


def test_lost_node_is_the_root_where_all_who_died_blame_a_peer() -> None:
    """Its peers end long before its silence is noticed: gloo sees a closed connection at once."""
    lost = {"node-2": "tcp: timed out"}
    assert judge_end(End(1, "rank 0", [died(0, 1, PEER)], lost, homes=HOMES)).root.node == "node-2"
    own = died(0, 1, "ValueError: no frames")
    assert judge_end(End(1, "rank 0", [own], lost, homes=HOMES)).root.rank == 0


def test_stop_by_the_user_is_the_root_whatever_the_ranks_print_then() -> None:
    deaths = [died(0, 1, "ValueError: late", at_s=9.0), died(1, 130, at_s=1.0)]
    found = judge_end(End(130, "stopped by the user", deaths, homes=HOMES, stopped_s=2.0))
    assert found.root.kind == Kind.USER_STOP
    assert found.root.evidence is not None
    assert found.root.evidence.source == Source.USER
    assert [one.rank for one in found.consequences] == [1]


def test_log_of_the_starter_says_why_it_could_not_start() -> None:
    lines = ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'torch'"]
    reason = "node-2: what starts its ranks ended with code 1"
    root = judge_end(End(1, reason, starter_lines=lines, homes=HOMES)).root
    assert (root.kind, root.node) == (Kind.ENVIRONMENT, "node-2")
    root = judge_end(End(1, reason, homes=HOMES)).root
    assert (root.kind, root.node, root.is_root) == (Kind.UNKNOWN, "node-2", True)
    killed = "node-2: what starts its ranks ended with code -9"
    root = judge_end(End(1, killed, homes=HOMES)).root
    assert (root.name, root.node, root.rank) == ("signal-9", "node-2", None)
    root = judge_end(End(1, killed, starter_lines=lines, homes=HOMES)).root
    assert root.kind == Kind.ENVIRONMENT  # what it said itself comes first


def test_of_several_lost_nodes_the_one_of_the_reason_is_the_root() -> None:
    lost = {"node-2": "eof", "node-1": "tcp: timed out"}
    found = judge_end(End(3, "node-2 was lost: eof", [died(0, 1, PEER)], lost, homes=HOMES))
    assert found.root.node == "node-2"


def test_node_that_goes_down_is_the_root_where_ranks_save_and_end() -> None:
    """Ranks may be heard before the agent that was told the same."""
    asked, lost = [died(0, 130), died(1, 130)], {"node-1": "it goes down"}
    for code in (1, 3):
        found = judge_end(End(code, "", asked, lost, homes=HOMES, leaving=["node-1"]))
        assert (found.root.name, found.root.node) == ("node-stopped", "node-1")
    assert judge_end(End(1, "", asked, homes=HOMES)).root.name == "signal-15"
    own = [died(1, 1, "ValueError: no frames")]
    assert judge_end(End(1, "", own, lost, homes=HOMES, leaving=["node-1"])).root.rank == 1
