"""Torch on real nodes: slow links, slow nodes and stopped ranks are named, good nodes are not.

One pool serves all: starting torch is most of what these tests cost.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from checks.facts import Active, Collectives, Unknown
from checks.profile import Profile
from clusterctl.preflight.active.collectives import try_links
from clusterctl.preflight.active.ranks import measure_speeds, start_ranks
from clusterctl.remote.session_pool import SessionPool
from tests.clusterctl.preflight.active.nodes import (
    addresses,
    gather,
    make_plan,
    run_in,
    running,
    verdicts,
)
from tests.lab import Lab

pytestmark = pytest.mark.lab
SHARE = Profile().active_cpu_link_share


@pytest.fixture(scope="module")
def lab(module_lab) -> Lab:
    return module_lab(3)


@pytest.fixture(scope="module")
def pool(lab: Lab) -> Iterator[SessionPool]:
    with gather(lab) as made:
        assert start_ranks(made, make_plan(lab), lab.names, addresses(lab)) == {}
        yield made


def sum_up(pool: SessionPool, lab: Lab) -> Collectives:
    return try_links(pool, make_plan(lab), addresses(lab), {}, SHARE, lambda _: None)


@pytest.mark.long
def test_good_nodes_sum_together(pool: SessionPool, lab: Lab) -> None:
    found = sum_up(pool, lab)
    assert not found.bad_nodes
    assert not found.bad_links
    assert not found.unclear
    assert not found.unknown
    assert found.rounds <= 8  # three, where the machine has no hiccup
    assert not isinstance(found.pair_bytes_s, Unknown)


@pytest.mark.slow
def test_devices_of_one_node_sum_alone(lab: Lab) -> None:
    """Two ranks on one node, as two GPUs are: there is no other node to sum with."""
    with gather(lab) as pool:
        plan = make_plan(lab, nodes=("node-1",), devices={"node-1": 2})
        assert start_ranks(pool, plan, ["node-1"], addresses(lab)) == {}
        found = try_links(pool, plan, addresses(lab), {}, SHARE, lambda _: None)
    assert (found.rounds, dict(found.bad_nodes), dict(found.unknown)) == (1, {}, {})
    assert found.inside_bytes_s["node-1"] > 0


@pytest.mark.slow
def test_a_slow_link_is_named_with_both_ends(pool: SessionPool, lab: Lab) -> None:
    node, other = lab.nodes[1], lab.nodes[2]
    try:
        run_in(
            node,
            "tc qdisc add dev eth0 root handle 1: htb default 10",
            "tc class add dev eth0 parent 1: classid 1:10 htb rate 10gbit",
            "tc class add dev eth0 parent 1: classid 1:20 htb rate 20mbit",
            f"tc filter add dev eth0 parent 1: protocol ip u32 match ip dst {other.address}/32 flowid 1:20",
        )
        found = sum_up(pool, lab)
    finally:
        node.exec(["tc", "qdisc", "del", "dev", "eth0", "root"])
    assert [(one.first, one.second) for one in found.bad_links] == [("node-2", "node-3")]
    assert not found.bad_nodes
    assert "the middle pair has" in found.bad_links[0].why


@pytest.mark.slow
def test_a_node_with_a_slow_network_is_named(pool: SessionPool, lab: Lab) -> None:
    node = lab.nodes[2]
    try:
        run_in(node, "tc qdisc add dev eth0 root tbf rate 20mbit burst 64kb latency 400ms")
        found = sum_up(pool, lab)
    finally:
        node.exec(["tc", "qdisc", "del", "dev", "eth0", "root"])
    assert set(found.bad_nodes) == {"node-3"}
    assert not found.bad_links


@contextlib.contextmanager
def slow_processor(pids: Sequence[int]) -> Iterator[None]:
    """A cgroup that gives these processes 3 % of one core."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    version_1 = (old / "cpu.cfs_quota_us").exists()
    folder = (old if version_1 else new) / f"clusterctl-test-{os.getpid()}"
    try:
        folder.mkdir()
        if version_1:
            (folder / "cpu.cfs_quota_us").write_text("3000")
        else:
            (folder / "cpu.max").write_text("3000 100000")
        for pid in pids:
            (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no cgroup that limits processors: {error}")
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(str(pid))
        folder.rmdir()


@pytest.mark.slow
def test_a_node_with_a_slow_processor_is_named(pool: SessionPool, lab: Lab) -> None:
    ranks = running(lab.nodes[2], "active_rank")
    assert len(ranks) == 1
    with slow_processor(ranks):
        speeds = measure_speeds(pool, make_plan(lab), {}, 0.5)
    named = [nodes for id, nodes in verdicts(Active("cpu", speeds)) if id == "active.matmul"]
    assert ("node-3",) in named
    assert all(not isinstance(speeds[name], Unknown) for name in lab.names)


@pytest.mark.slow
def test_a_rank_that_was_stopped_is_named_and_its_partner_is_not(
    pool: SessionPool, lab: Lab
) -> None:
    def stop(said: str) -> None:
        if "round 2" in said:  # node-3 is to sum with node-2, and does not come
            (rank,) = running(lab.nodes[2], "active_rank")
            os.kill(rank, signal.SIGSTOP)

    found = try_links(pool, make_plan(lab, group_s=8.0), addresses(lab), {}, SHARE, stop)
    assert set(found.bad_nodes) == {"node-3"}
    assert "state T" in found.bad_nodes["node-3"]
    assert not found.unknown
    assert not found.bad_links
    assert not running(lab.nodes[2], "active_rank")  # what does not answer is ended
