"""Nodes of the next attempt: who stays, who stands in, when there are too few."""

from __future__ import annotations

import pytest

from clusterctl.launch.restart.choose import Pool, choose

POOL = Pool(("n1", "n2", "n3"), ("s1", "s2"))


def test_same_nodes_where_all_are_fit() -> None:
    found = choose(POOL, ["n1", "n2", "n3"], {})
    assert (found.nodes, found.text) == (("n1", "n2", "n3"), "")


def test_spare_takes_the_place_of_a_lost_node() -> None:
    found = choose(POOL, ["n1", "n2", "n3"], {"n2": "tcp: no answer"})
    assert found.nodes == ("n1", "s1", "n3")
    assert found.text == "s1 instead of n2 (tcp: no answer)"


def test_spare_that_is_unfit_too_is_passed_over() -> None:
    found = choose(POOL, ["n1", "n2", "n3"], {"n1": "lost", "s1": "no python"})
    assert found.nodes == ("s2", "n2", "n3")


def test_too_few_nodes_are_named_with_the_reason() -> None:
    pool = Pool(("n1", "n2"))
    found = choose(pool, ["n1", "n2"], {"n2": "lost"})
    assert found.nodes == ()
    assert found.text == "1 node can be used of the 2 that are needed (n2: lost)"


def test_fewer_nodes_are_used_where_the_user_allows_it() -> None:
    pool = Pool(("n1", "n2", "n3"), min_nodes=2)
    found = choose(pool, ["n1", "n2", "n3"], {"n1": "lost"})
    assert (found.nodes, found.text) == (("n2", "n3"), "without n1 (lost)")
    assert choose(pool, ["n2", "n3"], {"n1": "lost", "n3": "lost"}).nodes == ()


def test_node_that_is_clean_again_comes_back_where_a_place_is_empty() -> None:
    pool = Pool(("n1", "n2", "n3"), min_nodes=1)
    found = choose(pool, ["n2", "n3"], {})
    assert (found.nodes, found.text) == (("n2", "n3", "n1"), "n1 again")


def test_node_that_is_clean_again_does_not_displace_its_spare() -> None:
    assert choose(POOL, ["n1", "s1", "n3"], {}).nodes == ("n1", "s1", "n3")


@pytest.mark.parametrize("order", [["n1", "n2"], ["n2", "n1"]])
def test_all_nodes_lost_names_all(order: list[str]) -> None:
    found = choose(Pool(("n1", "n2")), order, {"n1": "a", "n2": "b"})
    assert found.text == "no node can be used of the 2 that are needed (n1: a; n2: b)"
