"""The book of alerts: how long, how often, folded, acknowledged, muted. Rules are made up here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.alerts.engine import Change, acknowledge, after, changes, mute
from dashboards.alerts.rules.base import RuleContext
from dashboards.model.alert_book import FAIL, WARN, AlertBook, Breach, Rule, Unit
from dashboards.model.samples import NodeDown, NodeSample, Tick
from dashboards.model.state import State, initial_state
from dashboards.reduce import fold

AFTER_S, CLEAR_S = 5.0, 10.0
OVER, UNDER, UNKNOWN = "over", "under", "unknown"


def made_up(seen: dict[Unit, str], id: str = "gpu.idle", **changed: object) -> Rule:
    """A rule that sees what the dictionary says at the time of the check."""

    def find(_: RuleContext) -> Iterable[Breach]:
        return [Breach(unit, "98 W") for unit, what in seen.items() if what == OVER]

    def known(_: RuleContext, unit: Unit) -> bool:
        return seen.get(unit, UNDER) != UNKNOWN

    rule = Rule(id, FAIL, "", find, known, AFTER_S, CLEAR_S, "clusterctl gpus {hosts} {nodes}", "")
    return replace(rule, **changed)  # type: ignore[arg-type]


class Played:
    """A book and a state that go on second by second."""

    def __init__(self, *rules: Rule, nodes: Iterable[str] = ("n1", "n2", "n3")) -> None:
        self.state = initial_state(tuple(nodes), now_s=0.0, source="nodes.txt")
        self.book = AlertBook(rules=rules)
        self.told: list[tuple[float, Change]] = []

    def go(self, seconds: int = 1) -> Played:
        for _ in range(seconds):
            before = self.book
            self.state = replace(self.state, now_s=self.state.now_s + 1)
            self.book = after(before, self.state)
            self.told += [(self.state.now_s, c) for c in changes(before, self.book, self.state)]
        return self


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([OVER, UNDER, UNKNOWN]), max_size=90))
def test_alerts_never_flap(story: list[str]) -> None:
    """Whatever comes: a fire needs its seconds over the limit since the last clear, a clear its
    seconds under, nothing changes while nothing is known, and fire and clear take turns."""
    seen: dict[Unit, str] = {}
    played = Played(made_up(seen))
    unit = ("n1", "GPU 0")
    over = under = 0
    for what in story:
        seen[unit] = what
        told = len(played.told)
        played.go()
        over = over + 1 if what == OVER else over if what == UNKNOWN else 0
        under = under + 1 if what == UNDER else under if what == UNKNOWN else 0
        for _, change in played.told[told:]:
            assert what != UNKNOWN
            assert change.kind == ("clear" if what == UNDER else "fire")
            assert (under if what == UNDER else over) > (CLEAR_S if what == UNDER else AFTER_S)
    kinds = [change.kind for _, change in played.told]
    assert kinds == ["fire", "clear"] * (len(kinds) // 2) + ["fire"] * (len(kinds) % 2)


def test_alert_has_first_and_last_seen_nodes_evidence_and_a_command() -> None:
    seen: dict[Unit, str] = {("n2", "GPU 3"): OVER}
    played = Played(made_up(seen)).go(8)
    seen["n2", "GPU 3"] = UNDER
    (alert,) = played.go(2).book.active
    assert (alert.first_s, alert.last_s, alert.over_s) == (1.0, 8.0, 7.0)
    assert (alert.subject, alert.nodes, alert.text) == ("n2 GPU 3", ("n2",), "98 W")
    assert alert.command == "clusterctl gpus nodes.txt -w n2"
    assert not played.go(20).book.active
    assert [(one.id, one.cleared_s) for one in played.book.history] == [("gpu.idle", 19.0)]


def test_what_cannot_be_seen_neither_makes_nor_ends_an_alert() -> None:
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen)).go(4)
    seen["n1", ""] = UNKNOWN
    assert not played.go(100).book.active
    seen["n1", ""] = OVER
    assert played.go(3).book.active
    seen["n1", ""] = UNKNOWN
    (alert,) = played.go(100).book.active
    assert not alert.is_known
    assert alert.last_s == 107.0


def test_alerts_of_one_kind_are_one_line() -> None:
    seen: dict[Unit, str] = {("n3", ""): OVER, ("n1", ""): OVER, ("n2", ""): OVER}
    played = Played(made_up(seen)).go(10)
    (alert,) = played.book.active
    assert (alert.subject, alert.nodes) == ("n[1-3]", ("n1", "n2", "n3"))
    assert alert.command.endswith("-w 'n[1-3]'")
    assert [change.alert.subject for _, change in played.told] == ["n[1-3]"]


def test_acknowledged_stays_quiet_and_a_new_node_speaks_up() -> None:
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen)).go(10)
    played.book = acknowledge(played.book, played.book.active[0].key)
    assert played.book.active[0].acknowledged
    seen["n2", ""] = OVER
    new, old = played.go(10).book.active
    assert (new.subject, new.acknowledged, old.subject, old.acknowledged) == ("n2", False, "n1", True)  # fmt: skip
    seen["n1", ""] = UNDER
    played.go(20)
    seen["n1", ""] = OVER
    assert not played.go(10).book.active[0].acknowledged  # it came again: that is news


def test_key_that_has_grown_since_the_user_saw_it_still_counts() -> None:
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen)).go(10)
    key = played.book.active[0].key
    seen["n2", ""] = OVER
    played.go(10)
    assert all(alert.acknowledged for alert in acknowledge(played.book, key).active)


def test_muted_is_quiet_until_its_time_also_when_it_comes_again() -> None:
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen)).go(10)
    played.book = mute(played.book, played.book.active[0].key, 60.0)
    seen["n1", ""] = UNDER
    played.go(15)
    seen["n1", ""] = OVER
    played.go(20)
    assert played.book.active[0].muted_until_s == 60.0
    assert played.go(20).book.active[0].muted_until_s is None
    muted = mute(played.book, played.book.active[0].key, 1e9)
    assert mute(muted, muted.active[0].key, None).active[0].muted_until_s is None


def test_what_another_alert_says_already_is_not_said_twice() -> None:
    cause: dict[Unit, str] = {("n1", "GPU 3"): OVER}
    effect: dict[Unit, str] = {("n1", "GPU 3"): OVER, ("n2", "GPU 0"): OVER}
    played = Played(
        made_up(cause, "gpu.throttle"), made_up(effect, "gpu.idle", suppressed_by=("gpu.throttle",))
    ).go(10)
    assert [(one.id, one.subject) for one in played.book.active] == [
        ("gpu.throttle", "n1 GPU 3"),
        ("gpu.idle", "n2 GPU 0"),
    ]
    cause.clear()
    ids = {one.id for one in played.go(60).book.active if "n1" in one.nodes}
    assert ids == {"gpu.throttle"}  # the effect is still there: the matter is not over
    effect.clear()
    assert not played.go(30).book.active


def test_worse_is_told_and_better_only_at_the_end() -> None:
    unit = ("n1", "")
    severity = [WARN]
    rule = made_up({}, find=lambda _: [Breach(unit, "", severity[0])])
    played = Played(rule).go(10)
    severity[0] = FAIL
    played.go(2)
    severity[0] = WARN
    played.go(2)
    assert [change.kind for _, change in played.told] == ["fire", "worse"]
    assert played.book.active[0].severity == FAIL


def test_old_matters_start_no_alert() -> None:
    rule = made_up({}, find=lambda _: [Breach(("", "run"), "", starts=False)])
    assert not Played(rule).go(60).book.active


def test_pause_of_the_head_is_time_over_no_limit_and_under_none() -> None:
    """It slept or was stopped for an hour: the looks before and after it are two looks."""
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen, after_s=30.0, clear_s=30.0)).go(3)
    played.state = replace(played.state, now_s=3600.0)
    assert not played.go(1).book.active
    assert played.go(30).book.active
    seen["n1", ""] = UNDER
    played.go(3)
    played.state = replace(played.state, now_s=7200.0)
    assert played.go(1).book.active
    assert not played.go(30).book.active


def test_replay_that_goes_back_forgets_what_is_yet_to_come() -> None:
    seen: dict[Unit, str] = {("n1", ""): OVER}
    played = Played(made_up(seen)).go(100)
    played.state = replace(played.state, now_s=3.0)
    assert not played.go().book.active


def test_text_of_nodes_cannot_draw_on_the_terminal_nor_break_the_line() -> None:
    unit = ("n1", "/mnt/\x1b[2Ja\n/b")
    rule = made_up({}, find=lambda _: [Breach(unit, "NVML:\x1b]0;owned\x07\nsecond line " + 500 * "x")])  # fmt: skip
    (alert,) = Played(rule).go(10).book.active
    assert alert.text.startswith(r"NVML:\x1b]0;owned\x07 second line xxx")
    assert len(alert.text) == 240
    assert alert.subject == r"n1 /mnt/\x1b[2Ja /b"


def test_user_text_in_commands_is_quoted() -> None:
    rule = made_up(
        {("n1", "/data; rm -rf ~'"): OVER}, "disk.full",
        command="clusterctl run {remote} {hosts} {nodes}", remote="du {part}",
    )  # fmt: skip
    played = Played(rule)
    played.state = replace(played.state, source="my nodes.txt + outputs")
    (alert,) = played.go(10).book.active
    words = shlex.split(alert.command)
    assert words == ["clusterctl", "run", "du '/data; rm -rf ~'\"'\"''", "my nodes.txt", "-w", "n1"]
    assert shlex.split(words[2]) == ["du", "/data; rm -rf ~'"]


def test_state_has_alerts_and_a_silent_node_is_told_after_ten_seconds() -> None:
    state: State = initial_state(("a", "b"), now_s=0.0, source="nodes.txt")
    state = fold(state, [NodeSample("a", 0.0), NodeSample("b", 0.0), Tick(0.0)])
    for second in range(1, 12):
        state = fold(state, [NodeSample("a", second), Tick(second)])
        assert bool(state.alerts.active) == (second >= 10), second
    (alert,) = state.alerts.active
    assert (alert.id, alert.nodes, alert.text) == (
        "node.down",
        ("b",),
        "connected, but no readings",
    )
    state = fold(state, [NodeDown("b", 12.0, "tcp", "refused"), NodeSample("a", 12.0), Tick(12.0)])
    assert state.alerts.active[0].text == "tcp: refused"
    for second in range(13, 17):
        state = fold(state, [NodeSample(n, second) for n in "ab"] + [Tick(second)])
    assert not state.alerts.active
