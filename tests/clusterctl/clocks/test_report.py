"""Clocks judged together, without any node: who is off, who was stepped, what nobody knows."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from checks.facts import Clock, Exchange, Machine, NodeFacts, Previous, Unknown, Unreached
from checks.parsers.clock import read_sources, read_tracking
from checks.profile import Profile
from checks.rules.time import middle_clock
from clusterctl.clocks import exchange as clock_talk
from clusterctl.clocks.exchange import HeadClock, ask_time
from clusterctl.clocks.monitor import Alarm, Lost, Sample, Screen, Track, sparkline
from clusterctl.clocks.report import HEAD, cells, folded, judge, steered_by
from clusterctl.output import Output
from clusterctl.payload import watch
from clusterctl.remote.node_threads import Pauses
from tests.lab.equipment import CAPTURES

LIMITS = Profile()


def node(name: str, offset_s: float = 0.0, error_s: float = 0.0001, **more) -> NodeFacts:
    clock = {
        "time_s": 1000.0, "boottime_s": 100.0, "moved_s": 0.0, "kernel_synced": True,
        "daemons": ("systemd-timesyn",), "clocksource": "tsc", "log_ahead_s": -5.0,
        "exchange": Exchange(offset_s, error_s, 12),
    }  # fmt: skip
    clock |= more.pop("clock", {})
    machine = Machine(f"boot-{name}", Unknown(""), Unknown(""), "")
    return NodeFacts(name, machine=machine, clock=Clock(**clock), **more)


def chrony(state: str) -> dict:
    top = CAPTURES / "chrony"
    return {
        "tracking": read_tracking((top / f"{state}.tracking.csv").read_text()),
        "sources": read_sources((top / f"{state}.sources.csv").read_text()),
    }


def test_three_milliseconds_are_no_alarm_and_fifty_are() -> None:
    clocks = judge(
        [node("n1"), node("n2", 0.003), node("n3", 0.05)], LIMITS
    )  # the head is one more at 0
    assert [row.verdict for row in clocks.rows] == ["good", "good", "bad"]
    assert clocks.rows[2].flags == ("50 ms ahead of the others",)
    assert clocks.exit_code == 1
    assert "widest apart n3 and n1: 50 ms" in clocks.summary()


def test_error_bound_is_taken_off_before_judging_and_a_long_way_is_unknown() -> None:
    clocks = judge([node("n1"), node("n2"), node("n3", 0.02, 0.015)], LIMITS)
    assert clocks.rows[2].verdict == "unknown"
    assert "too long to measure" in clocks.rows[2].flags[0]
    assert clocks.exit_code == 3


def test_unreachable_node_is_unknown_never_good() -> None:
    dead = NodeFacts("n2", unreached=Unreached("tcp", 3.0, "no answer"))
    clocks = judge([node("n1"), dead], LIMITS)
    assert (clocks.rows[1].verdict, clocks.rows[1].flags) == ("unknown", ("no answer: tcp: no answer",))  # fmt: skip
    assert clocks.exit_code == 3
    assert "unknown: n2" in clocks.summary()


def test_all_nodes_unreachable_is_exit_3() -> None:
    dead = NodeFacts("n1", unreached=Unreached("tcp", 3.0, "no answer"))
    assert judge([dead], LIMITS).exit_code == 3


def test_of_two_nodes_the_head_tells_whose_clock_is_wrong() -> None:
    clocks = judge([node("n1", 0.0), node("n2", -0.5)], LIMITS)
    assert [row.verdict for row in clocks.rows] == ["good", "bad"]
    assert clocks.rows[1].flags == ("0.5 s behind the others",)


def test_head_that_is_off_is_named_and_no_node_is() -> None:
    clocks = judge([node(f"n{i}", 0.08) for i in range(4)], LIMITS)
    assert {row.verdict for row in clocks.rows} == {"good"}
    assert clocks.head_flags == ("this machine's own clock is 80 ms behind the nodes'",)
    assert clocks.exit_code == 1


def test_step_of_the_head_is_no_step_of_the_nodes() -> None:
    clocks = judge([node("n1"), node("n2")], LIMITS, head_moved_s=-2.0)
    assert clocks.head_flags == (
        "this machine's own clock was stepped -2 s during the measurement",
    )


@pytest.mark.parametrize(
    ("then_s", "flags"),
    [
        (900.0, ()),
        (900.005, ()),
        (902.5, ("moved back 2.5 s since the previous run, 10 min 00 s ago",)),
        (899.9, ("moved forward 0.1 s since the previous run, 10 min 00 s ago",)),
    ],
)
def test_step_since_the_last_look(then_s: float, flags: tuple[str, ...]) -> None:
    one = node("n1", previous=Previous("boot-n1", then_s, {}, 600.0))
    clocks = judge([one, node("n2")], LIMITS)
    assert clocks.rows[0].flags == flags
    assert clocks.exit_code == (1 if flags else 0)


def test_record_of_another_boot_is_not_compared() -> None:
    one = node("n1", previous=Previous("boot-before", 5000.0, {}, 600.0))
    assert judge([one, node("n2")], LIMITS).exit_code == 0


def test_step_while_we_looked() -> None:
    one = judge([node("n1", clock={"moved_s": -0.3}), node("n2")], LIMITS).rows[0]
    assert one.flags == ("moved back 0.3 s during the measurement",)


def test_chrony_that_follows_itself_is_bad_although_it_says_normal() -> None:
    clocks = judge([node("n1", clock=chrony("local10")), node("n2", clock=chrony("good"))], LIMITS)
    assert clocks.rows[0].verdict == "bad"
    assert clocks.rows[0].steered == "chrony: its own clock"
    assert clocks.rows[1].steered.startswith("chrony: 10.")
    assert "selected" in clocks.rows[1].sources


def test_nobody_tells_is_unknown() -> None:
    nobody = {"kernel_synced": Unknown("not allowed"), "ntp_synchronized": Unknown("no such tool")}
    clocks = judge([node("n1", clock=nobody), node("n2")], LIMITS)
    assert (clocks.rows[0].verdict, clocks.exit_code) == ("unknown", 3)
    assert "status unavailable" in clocks.rows[0].steered


def test_one_machine_under_two_names_is_not_asked_who_steers_it() -> None:
    clocks = judge(
        [node("n1", clock={"kernel_synced": False})], LIMITS, head_boot_id="boot-n1"
    )  # fmt: skip
    assert clocks.exit_code == 0
    clocks = judge([node("n1", clock={"kernel_synced": False})], LIMITS, head_boot_id="other")
    assert clocks.exit_code == 1
    assert not [one for one in clocks.findings if one.nodes == (HEAD,)]


def test_good_nodes_fold_with_the_range_of_their_offsets() -> None:
    clocks = judge([node("n1", -0.001), node("n2", 0.002), node("n3", 0.05)], LIMITS)
    groups = folded(clocks)
    assert [names for names, _ in groups] == ["n[1-2]", "n3"]
    assert cells(groups[0][1])[:3] == ["-1 to +2 ms ", "0.1 ms", "+0 ms"]


def test_middle_is_a_clock_that_exists_and_prefers_the_head() -> None:
    assert middle_clock([0.05]) == 0.0
    assert middle_clock([0.05, 0.051, 0.049]) == 0.049
    assert middle_clock([]) == 0.0


def test_kernel_alone_and_ntpd_are_shown() -> None:
    assert steered_by(Clock(kernel_synced=False, daemons=())) == "no daemon seen; not synchronised"
    assert steered_by(Clock(kernel_synced=True, daemons=("ntpd",))) == "ntpd; synchronised"


def sample(wall_minus_boot_s: float, boot: str = "b", offset_s: float = 0.0) -> Sample:
    return Sample("n1", 0.0, offset_s, 0.0001, wall_minus_boot_s, boot)


def test_track_raises_an_alarm_for_a_step_once_and_not_for_a_reboot() -> None:
    track = Track("n1")
    assert track.add(sample(900.0), 0.01) is None
    assert track.add(sample(900.003), 0.01) is None
    alarm = track.add(sample(897.5), 0.01)
    assert alarm is not None
    assert alarm.words() == "n1: the clock moved back 2.5 s in one step"
    assert track.add(sample(897.5), 0.01) is None
    assert track.add(sample(17.0, boot="other"), 0.01) is None
    assert track.steps == [alarm]


def test_sparkline_shows_a_step_and_calls_a_wobble_flat() -> None:
    assert sparkline([0.0, 0.0, 1.0]) == "▁▁█"
    assert sparkline([0.0, 0.0001, 0.0]) == "▁▁▁"
    assert sparkline([-1.0, 0.0, 1.0], "_-=") == "_-="
    assert sparkline([]) == ""


class _LateAnswers:
    """A channel on which the answer to a question may come behind the next question."""

    def __init__(self, answers: list[dict | None]) -> None:
        self.asked: list[int] = []
        self._answers = answers

    def send(self, message: dict) -> None:
        self.asked.append(message["id"])

    def receive(self, _timeout_s: float) -> dict | None:
        answer = self._answers.pop(0)
        if answer is not None and "back" in answer:
            return {"id": self.asked[-1 - answer["back"]], "time_s": answer["time_s"], "boottime_s": 0.0}  # fmt: skip
        return answer


def test_late_answer_is_not_taken_for_the_answer_to_the_next_question(monkeypatch) -> None:
    monkeypatch.setattr(clock_talk, "GOOD_ERROR_S", 1.0)
    now = iter([0.0, 1.0, 2.0, 2.1])  # head's clock: sent and received of two questions
    channel = _LateAnswers(
        [{"back": 0, "time_s": 0.5}, {"back": 1, "time_s": 0.9}, {"back": 0, "time_s": 2.05}]
    )
    said = ask_time(channel, lambda: next(now), questions=2, budget_s=60.0)  # type: ignore[arg-type]
    assert said.samples == ((0.0, 0.5, 1.0), (2.0, 2.05, 2.1))


class _Clocks:
    """The three clocks of a machine, moved as sleep and steps move them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s, self.boot_s, self.monotonic_s = 1.8e9, 5000.0, 4000.0
        monkeypatch.setattr(time, "time", lambda: self.wall_s)
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic_s)
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.boot_s)

    def sleep(self, seconds: float) -> None:
        """The lid is closed: CLOCK_MONOTONIC stands still."""
        self.wall_s += seconds
        self.boot_s += seconds

    def step(self, seconds: float) -> None:
        self.wall_s += seconds


def test_a_head_that_slept_sees_no_node_ahead_and_its_own_step_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = _Clocks(monkeypatch)
    head = HeadClock()
    clocks.sleep(3600.0)
    assert head.now_s() == pytest.approx(clocks.wall_s)
    assert head.moved_s() == pytest.approx(0.0)
    before_s = clocks.wall_s
    clocks.step(-2.5)
    assert head.now_s() == pytest.approx(before_s)
    assert head.moved_s() == pytest.approx(-2.5)


def test_a_node_that_slept_has_not_stepped_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = _Clocks(monkeypatch)
    steps = watch.ClockSteps()
    clocks.sleep(3600.0)
    assert steps.step() == 0
    clocks.step(-2.5)
    assert steps.step() == -2.5


def test_a_lost_node_is_asked_again_after_one_two_four_and_eight_seconds() -> None:
    pauses = Pauses()
    assert [pauses.after(0.1) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [pauses.after(lasted_s) for lasted_s in (3600.0, 0.1)] == [1.0, 2.0]


class _Still:
    def moved_s(self) -> float:
        return 0.0


def test_watch_says_an_alarm_at_once_and_ends_with_exit_1(capsys) -> None:
    tracks = {name: Track(name) for name in ("n1", "n2")}
    screen = Screen(Output(), LIMITS, 1.0, _Still())  # type: ignore[arg-type]
    screen.take(tracks, sample(900.0))
    screen.take(tracks, sample(898.0, offset_s=-2.0))
    assert "ALARM n1: the clock moved back 2 s" in capsys.readouterr().err
    screen.take(tracks, Lost("n2", 0.0, "tcp", "no answer"))
    screen.take(tracks, Lost("n2", 1.0, "tcp", "no answer"))
    assert capsys.readouterr().err.count("n2: no answer") == 1
    assert screen.end(tracks, interrupted=True) == 1
    out = capsys.readouterr().out
    assert "x no answer: tcp" in out
    assert "2 s behind the others" in out


def test_watch_cuts_its_table_at_the_width_of_the_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr(Output, "can_repaint", lambda _self: True)
    monkeypatch.setattr(Output, "page", lambda _self: os.terminal_size((80, 24)))
    tracks = {"n1": Track("n1")}
    screen = Screen(Output(), LIMITS, 1.0, _Still())  # type: ignore[arg-type]
    screen.take(tracks, Lost("n1", 0.0, "tcp", "no answer " * 20))
    screen.draw(tracks)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_watch_of_a_silent_node_is_exit_3_and_an_interrupt_alone_130() -> None:
    quiet = Output(quiet=True)
    silent = Screen(quiet, LIMITS, 1.0, _Still())  # type: ignore[arg-type]
    assert silent.end({"n1": Track("n1")}, interrupted=False) == 3
    tracks = {"n1": Track("n1")}
    tracks["n1"].add(sample(900.0), 0.01)
    assert silent.end(tracks, interrupted=True) == 130
    assert silent.end(tracks, interrupted=False) == 0


def test_step_of_the_heads_own_clock_is_an_alarm(capsys) -> None:
    class Stepped:
        def moved_s(self) -> float:
            return -1.0

    screen = Screen(Output(), LIMITS, 1.0, Stepped())  # type: ignore[arg-type]
    screen.draw({})
    screen.draw({})
    assert capsys.readouterr().err.count("ALARM this machine: the clock moved back 1 s") == 1
    assert isinstance(Alarm("n", -1.0).words(), str)


def test_one_machine_of_two_names_is_told_because_nobody_judges_its_source() -> None:
    two = [node("n1"), node("n2")]
    assert "one machine" not in judge(two, LIMITS).summary()
    same = [dataclasses.replace(one, machine=two[0].machine) for one in two]
    told = judge(same, LIMITS, head_boot_id="boot-n1").summary()
    assert told.endswith("all on one machine: what steers its clock is not judged")
