"""The search names any one bad node or link of up to a thousand within log rounds, or says it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.preflight.active.fault_isolation import (
    Diagnosis,
    Group,
    Outcome,
    most_rounds,
    ring_rounds,
    search,
)

Bad = Callable[[Group], bool]


def nodes(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def play(names: list[str], is_bad: Bad, named: dict[str, str] | None = None, lost: dict[str, str] | None = None) -> Diagnosis:  # fmt: skip
    """Run a search against a world; `named` and `lost` show themselves when they are tested."""
    looker = search(names)
    try:
        groups = next(looker)
        while True:
            members = [node for group in groups for node in group]
            assert len(members) == len(set(members)), "a node twice in one round"
            assert all(len(group) > 1 for group in groups)
            groups = looker.send(
                Outcome(
                    frozenset(group for group in groups if is_bad(group)),
                    {node: why for node, why in (named or {}).items() if node in members},
                    {node: why for node, why in (lost or {}).items() if node in members},
                )
            )
    except StopIteration as end:
        return end.value


def said(found: Diagnosis) -> list[object]:
    """Bad nodes, ends of bad links, lost nodes, groups that are unclear; what is empty is left out."""
    words = [set(found.bad_nodes), *map(set, found.bad_links), set(found.lost)]
    return [*filter(None, words), *(group for group, _ in found.unclear)]


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 1000))
def test_good_nodes_are_all_tested_and_nothing_is_said(count: int) -> None:
    found = play(nodes(count), lambda _: False)
    assert said(found) == []
    assert found.rounds <= 4


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.integers(3, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_bad_node_is_named_and_nobody_else(drawn: tuple[int, int]) -> None:
    count, bad = drawn
    found = play(nodes(count), lambda group: f"n{bad}" in group)
    assert said(found) == [set(found.bad_nodes)] == [{f"n{bad}"}]
    assert found.rounds <= most_rounds(count)


@pytest.mark.long
@given(
    st.integers(3, 1000).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=2, max_size=2, unique=True))
    )
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_one_bad_link_is_named_and_nothing_else(drawn: tuple[int, list[int]]) -> None:
    count, ends = drawn
    link = {f"n{end}" for end in ends}
    found = play(nodes(count), lambda group: link <= set(group))
    assert said(found) == [set(one) for one in found.bad_links] == [link]
    assert found.rounds <= most_rounds(count)


@settings(max_examples=20, deadline=None)
@given(st.integers(6, 300), st.data())
def test_several_bad_nodes_are_all_named(count: int, data: st.DataObject) -> None:
    many = st.sets(st.integers(0, count - 3), min_size=2, max_size=max(2, count // 3))
    bad = {f"n{index}" for index in data.draw(many)}  # the last two are good: somebody must be
    found = play(nodes(count), lambda group: bool(bad & set(group)))
    assert said(found) == [set(found.bad_nodes)] == [bad]


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 200), st.data())
def test_a_node_that_names_itself_or_is_lost_is_not_blamed_on_its_partner(
    count: int, data: st.DataObject
) -> None:
    odd = f"n{data.draw(st.integers(0, count - 1))}"
    stuck = play(nodes(count), lambda group: odd in group, named={odd: "stopped"})
    assert stuck.bad_nodes == {odd: "stopped"}
    gone = play(nodes(count), lambda group: odd in group, lost={odd: "no answer"})
    assert gone.lost == {odd: "no answer"}
    assert said(stuck) == said(gone) == [{odd}]


@pytest.mark.parametrize("count", [3, 4, 7, 64, 1000])
def test_a_fault_that_only_many_nodes_show_is_said_to_be_unclear(count: int) -> None:
    found = play(nodes(count), lambda group: len(group) == count)
    assert said(found) == [tuple(nodes(count))]
    assert "no smaller part" in found.unclear[0][1]
    assert found.rounds <= most_rounds(count)


def test_two_nodes_cannot_tell_which_one_it_is() -> None:
    found = play(nodes(2), lambda _: True)
    assert said(found) == [("n0", "n1")]


def test_when_nothing_works_nobody_is_blamed() -> None:
    found = play(nodes(9), lambda _: True)
    assert said(found) == [tuple(nodes(9))]
    assert found.rounds <= 3


def test_a_fault_that_does_not_show_again_is_not_reported() -> None:
    seen: list[Group] = []

    def once(group: Group) -> bool:
        seen.append(group)
        return group == ("n2", "n3") and seen.count(group) == 1

    assert said(play(nodes(8), once)) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 1000))
def test_the_ring_has_every_neighbour_once(count: int) -> None:
    rounds = ring_rounds(nodes(count))
    pairs = [pair for groups in rounds for pair in groups]
    assert len(pairs) == len(set(pairs)) == (count if count > 2 else 1)
    assert len(rounds) <= 3
