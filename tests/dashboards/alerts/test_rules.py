"""Each rule over a small cluster: what it sees, what it leaves alone, and that unknown is neither."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.cli import run as run_command
from dashboards.alerts.engine import RULES
from dashboards.alerts.rules.base import RuleContext, command_line, hostfile_of, keep
from dashboards.model.alert_book import Breach, Rule, RuleMemory, Unit
from dashboards.model.samples import (
    READING,
    Disk,
    EventSample,
    Gpu,
    Link,
    NodeDown,
    NodeSample,
    RunOpened,
    RunRead,
    Sample,
    StepSample,
    Tick,
    Xid,
)
from dashboards.model.state import State, initial_state
from dashboards.model.thresholds import DEFAULT
from dashboards.reduce import fold
from tests.dashboards.runs import record
from tests.trainer.runlog.test_slow_ranks import entry, said
from trainer.runlog.telemetry import Event

NOW = 10_000.0
BY_ID = {rule.id: rule for rule in RULES}
NAMES = ("n1", "n2", "n3", "n4")
GIB = 2.0**30


def gpu(index: int = 0, **changed: Any) -> Gpu:
    good = Gpu(index, "H100", 690.0, 700.0, 1.0, 71 * GIB, 80 * GIB, 60.0, 1980.0, "", "", 0, (18, 18))  # fmt: skip
    return replace(good, **changed)


def node(name: str, **changed: Any) -> NodeSample:
    links = (Link("mlx5_0/1", "ib", "Active", 400.0, 1e9, 1e9, 0.0, 0), Link("eth0", "eth", "up"))
    good = NodeSample(
        name, NOW, 0.2, 208, 40.0, 600 * GIB, 2000 * GIB, 1e9, (gpu(0), gpu(1)), links=links,
        disks=(Disk("/data", 700 * GIB, 1000 * GIB),), clock_offset_s=0.001, clock_bound_s=0.0005,
        clock_step_s=0.0, xids=(),
    )  # fmt: skip
    return replace(good, **changed)


def cluster(**of_n1: Any) -> State:
    """Four good nodes; n1 as said."""
    samples: list[Sample] = [node(name) for name in NAMES]
    state = fold(initial_state(NAMES, now_s=NOW, source="nodes.txt"), [*samples, Tick(NOW)])
    return fold(state, [node("n1", **of_n1)])


def look_at(state: State, kept: RuleMemory | None = None) -> RuleContext:
    return RuleContext(state, DEFAULT, kept or BUSY)


BUSY = RuleMemory(were_busy=frozenset((name, f"GPU {index}") for name in NAMES for index in (0, 1)))


def breaches(id: str, state: State, kept: RuleMemory = BUSY) -> dict[Unit, Breach]:
    return {breach.unit: breach for breach in BY_ID[id].find(look_at(state, kept))}


def n1_gpu(**changed: Any) -> State:
    return cluster(gpus=(gpu(0, **changed), gpu(1)))


LINK = Link("mlx5_0/1", "ib", "Active", 400.0, 1e9, 1e9, 0.0, 0)
GPU0 = ("n1", "GPU 0")

# id, state, unit, part of the text, severity when it is not the rule's
OVER: list[tuple[str, Callable[[], State], Unit, str, str]] = [
    ("gpu.idle", lambda: n1_gpu(power_w=101.0), GPU0, "101 W, the others 690 W", ""),
    ("gpu.throttle", lambda: n1_gpu(throttle="hw slowdown, power cap", sm_mhz=345.0), GPU0, "hw slowdown: 345 MHz", "fail"),
    ("gpu.throttle", lambda: n1_gpu(throttle="sw thermal"), GPU0, "sw thermal", "warn"),
    ("gpu.hot", lambda: n1_gpu(temperature_c=88.0), GPU0, "88 °C", ""),
    ("gpu.ecc", lambda: n1_gpu(ecc_errors=1), GPU0, "1 uncorrected memory error since", ""),
    ("gpu.memory", lambda: n1_gpu(memory_used_bytes=79.5 * GIB), GPU0, "79.5 GiB of 80 GiB", ""),
    ("gpu.nvlink", lambda: n1_gpu(nvlinks=(17, 18)), GPU0, "17 of 18", ""),
    ("gpu.missing", lambda: cluster(gpus=(gpu(1),)), GPU0, "not there any more", ""),
    ("gpu.missing", lambda: n1_gpu(error="GPU is lost"), GPU0, "GPU is lost", ""),
    ("gpu.unread", lambda: cluster(gpus=None, gpu_error="NVML: no answer for 9 s"), ("n1", ""), "no answer for 9 s", ""),
    ("gpu.xid", lambda: cluster(xids=(Xid(NOW - 60, 0, 79, ""),)), GPU0, "Xid 79", "fail"),
    ("gpu.xid", lambda: cluster(xids=(Xid(NOW - 60, None, 31, ""),)), ("n1", ""), "Xid 31", "warn"),
    ("node.memory", lambda: cluster(memory_used_bytes=1950 * GIB), ("n1", ""), "1.9 TiB of 1.95 TiB", ""),
    ("clock.step", lambda: cluster(clock_step_s=-2.5), ("n1", ""), "jumped by -2.5 s", "fail"),
    ("clock.step", lambda: cluster(clock_step_s=0.02), ("n1", ""), "+20 ms", "warn"),
    ("clock.offset", lambda: cluster(clock_offset_s=2.5), ("n1", ""), "+2.5 s against the others", "fail"),
    ("clock.offset", lambda: cluster(clock_offset_s=0.02), ("n1", ""), "+19 ms", "warn"),
    ("link.errors", lambda: cluster(links=(replace(LINK, errors_min=12.0),)), ("n1", "mlx5_0/1"), "12 errors a minute", ""),
    ("link.down", lambda: cluster(links=(replace(LINK, state="Down"),)), ("n1", "mlx5_0/1"), "up on 3 other nodes", ""),
    ("disk.full", lambda: cluster(disks=(Disk("/data", 920 * GIB, 1000 * GIB),)), ("n1", "/data"), "92 % full, 80 GiB left", "warn"),
    ("disk.full", lambda: cluster(disks=(Disk("/data", 995 * GIB, 1000 * GIB),)), ("n1", "/data"), "5 GiB left", "fail"),
    ("disk.full", lambda: cluster(disks=(Disk("/data"),)), ("n1", "/data"), "does not answer", "fail"),
    ("disk.full", lambda: cluster(disks=(Disk("/data", error="Stale file handle"),)), ("n1", "/data"), "could not be read: Stale file handle", "warn"),
    ("gpu.log_unread", lambda: cluster(xids=None, log_error="/dev/kmsg: no"), ("n1", ""), "/dev/kmsg: no", "warn"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "state", "unit", "text", "severity"), OVER)
def test_over_the_limit(
    id: str, state: Callable[[], State], unit: Unit, text: str, severity: str
) -> None:
    assert breaches(id, cluster()) == {}
    found = breaches(id, state())
    assert set(found) == {unit}
    assert text in found[unit].text
    assert (found[unit].severity or BY_ID[id].severity) == (severity or BY_ID[id].severity)
    assert BY_ID[id].known(look_at(cluster()), unit)


UNREAD = {
    "gpu.idle": n1_gpu(power_w=None), "gpu.throttle": n1_gpu(throttle=None), "gpu.hot": n1_gpu(temperature_c=None),
    "gpu.ecc": n1_gpu(ecc_errors=None), "gpu.memory": n1_gpu(memory_used_bytes=None), "gpu.nvlink": n1_gpu(nvlinks=None),
    "gpu.missing": cluster(gpus=None), "gpu.xid": cluster(xids=None), "node.memory": cluster(memory_used_bytes=None),
    "clock.step": cluster(clock_step_s=None), "clock.offset": cluster(clock_offset_s=None),
    "link.errors": cluster(links=(replace(LINK, errors_min=None),)), "link.down": cluster(links=None),
    "disk.full": cluster(disks=None),
}  # fmt: skip


@pytest.mark.parametrize("id", UNREAD)
def test_what_could_not_be_read_is_neither_over_nor_good(id: str) -> None:
    unit = next(unit for over, _, unit, _, _ in OVER if over == id)
    assert breaches(id, UNREAD[id]) == {}
    assert not BY_ID[id].known(look_at(UNREAD[id]), unit)


def test_another_users_mount_is_neither_full_nor_good() -> None:
    refused = cluster(disks=(Disk("/data", error="Permission denied"),))
    assert breaches("disk.full", refused) == {}
    assert not BY_ID["disk.full"].known(look_at(refused), ("n1", "/data"))


def test_mount_that_is_gone_hangs_no_more() -> None:
    """It was taken away, as one does with a mount that hangs: the alert ends, as long as the node says so."""
    gone, silent = cluster(disks=()), cluster(disks=None)
    assert BY_ID["disk.full"].known(look_at(gone), ("n1", "/data"))
    assert not BY_ID["disk.full"].known(look_at(silent), ("n1", "/data"))
    state = initial_state(("n1",), now_s=NOW)
    for second in range(200):
        disks = (Disk("/data"),) if second < 30 else ()
        at_s = NOW + second
        state = fold(state, [NodeSample("n1", at_s, disks=disks), Tick(at_s)])
        if second == 29:
            assert [alert.id for alert in state.alerts.active] == ["disk.full"]
    assert not state.alerts.active


def test_kernel_log_of_a_node_without_gpus_is_missed_by_nobody() -> None:
    assert breaches("gpu.log_unread", cluster(gpus=(), xids=None, log_error="no")) == {}


def all_wrong() -> State:
    """n1 with everything wrong at once."""
    return cluster(
        gpus=(gpu(0, power_w=50.0, throttle="hw slowdown", temperature_c=95.0, ecc_errors=9, memory_used_bytes=79.9 * GIB, nvlinks=(1, 18)),),
        links=(replace(LINK, state="Down", errors_min=99.0),), disks=(Disk("/data", 999 * GIB, 1000 * GIB),),
        clock_offset_s=9.0, clock_step_s=9.0, memory_used_bytes=1999 * GIB, xids=(Xid(NOW, 0, 79, ""),),
    )  # fmt: skip


OF_NODES = [rule for rule in RULES if rule.id in UNREAD]


@pytest.mark.parametrize("rule", OF_NODES, ids=lambda rule: rule.id)
def test_old_figures_of_a_stale_or_lost_node_fire_nothing_and_clear_nothing(rule: Rule) -> None:
    state = cluster(gpus=()) if rule.id == "gpu.missing" else all_wrong()
    unit = next(unit for over, _, unit, _, _ in OVER if over == rule.id)
    assert unit in {breach.unit for breach in rule.find(look_at(state))}
    stale = fold(state, [*(replace(node(n), at_s=NOW + 4) for n in NAMES[1:]), Tick(NOW + 4)])
    lost = fold(state, [NodeDown("n1", NOW, "tcp", "refused"), Tick(NOW)])
    for gone in (stale, lost):
        assert "n1" not in {breach.unit[0] for breach in rule.find(look_at(gone))}
        assert not rule.known(look_at(gone), unit)


def test_no_gpu_is_idle_while_the_fleet_rests_or_beside_other_work() -> None:
    resting = fold(cluster(), [node(n, gpus=(gpu(0, power_w=100 + 60 * (n == "n1")),)) for n in NAMES])  # fmt: skip
    assert breaches("gpu.idle", resting) == {}
    empty = n1_gpu(power_w=70.0, memory_used_bytes=0.5 * GIB)
    assert breaches("gpu.idle", empty) == {}
    outside = fold(n1_gpu(power_w=100.0), [RunOpened("d", "d", NOW, ("n2", "n3", "n4"), (2, 2, 2))])
    assert breaches("gpu.idle", outside) == {}


def test_notebook_that_holds_memory_is_no_rank_that_hangs() -> None:
    """Without a run to know them by, only GPUs that computed with the others can fall behind."""
    state = n1_gpu(power_w=101.0)
    assert breaches("gpu.idle", state, RuleMemory()) == {}
    kept = keep(look_at(cluster(), RuleMemory()))
    assert set(breaches("gpu.idle", state, kept)) == {GPU0}
    freed = keep(look_at(n1_gpu(power_w=70.0, memory_used_bytes=0.0), kept))
    assert breaches("gpu.idle", state, freed) == {}
    ours = fold(state, [RunOpened("d", "d", NOW, NAMES, (2, 2, 2, 2))])
    assert set(breaches("gpu.idle", ours, RuleMemory())) == {GPU0}


def test_head_with_a_wrong_clock_is_blamed_itself() -> None:
    state = fold(cluster(), [node(n, clock_offset_s=3.0) for n in NAMES])
    found = breaches("clock.offset", state)
    assert {unit: breach.text for unit, breach in found.items()} == {
        ("", "this machine"): "-3 s against the nodes"
    }


def test_offset_within_its_error_bound_is_no_offset() -> None:
    assert breaches("clock.offset", cluster(clock_offset_s=0.2, clock_bound_s=0.25)) == {}


def test_port_that_was_always_down_is_nobodys_loss() -> None:
    unused = Link("eth1", "eth", "down")
    state = fold(cluster(), [node(n, links=(LINK, unused)) for n in NAMES])
    assert breaches("link.down", state) == {}
    assert set(breaches("link.down", state, RuleMemory(were_up=frozenset([("n2", "eth1")])))) == {("n2", "eth1")}  # fmt: skip
    odd = cluster(links=(replace(LINK, state="unknown"),))
    assert breaches("link.down", odd) == {}
    assert not BY_ID["link.down"].known(look_at(odd), ("n1", "mlx5_0/1"))


def test_link_that_was_lost_between_two_looks_is_told_for_a_while() -> None:
    unit = ("n1", "mlx5_0/1")
    state = cluster(links=(replace(LINK, downs=3),))
    assert breaches("link.down", state, RuleMemory(links={unit: 3})) == {}
    breach = breaches("link.down", state, RuleMemory(links={unit: 1}))[unit]
    assert (breach.text, breach.severity, breach.after_s) == (
        "was lost 2 times, is Active again",
        "warn",
        0,
    )
    assert breach.clear_s == 600


def test_disk_is_full_soon_at_the_pace_of_the_last_minutes() -> None:
    unit = ("n1", "/data")
    state = cluster(disks=(Disk("/data", 800 * GIB, 1000 * GIB),))
    slow = RuleMemory(disks={unit: ((NOW - 600, 790 * GIB),)})  # 10 GiB in 10 min: 200 min to go
    fast = RuleMemory(disks={unit: ((NOW - 600, 750 * GIB),)})  # 40 min to go
    short = RuleMemory(disks={unit: ((NOW - 60, 700 * GIB),)})  # one checkpoint says nothing
    assert breaches("disk.full", state, slow) == breaches("disk.full", state, short) == {}
    assert breaches("disk.full", state, fast)[unit].text.endswith(
        "full in 40 min 00 s at this pace"
    )
    faster = RuleMemory(disks={unit: ((NOW - 600, 500 * GIB),)})
    assert breaches("disk.full", state, faster)[unit].severity == "fail"


def test_node_that_never_answered_gets_more_time_than_one_that_fell_silent() -> None:
    state = fold(initial_state(("a", "b"), now_s=0.0), [NodeSample("a", 0.0), Tick(5.0)])
    found = breaches("node.down", state)
    assert found["b", ""].after_s == 30
    assert found["a", ""].after_s == 6


# --- the run ---


def training(records: Iterable[Any], *events: Event, after_s: float = 0.0) -> State:
    """A run whose records came as fast as they say; looked at `after_s` seconds behind the last one."""
    records = list(records)
    state = initial_state(("n1", "n2"), now_s=0.0, source="nodes.txt")
    samples: list[Sample] = [RunOpened("outputs/001-x", "001-x", 0.0, ("n1", "n2"), (8, 8))]
    samples += [StepSample(one, one.time_s) for one in records]
    last_s = records[-1].time_s if records else 0.0
    samples += [EventSample(event, event.time_s or last_s) for event in events]
    return fold(state, [*samples, Tick(last_s + after_s)])


def unread(why: str, *events: Event, after_s: float = 0.0) -> State:
    """Of a run whose losses went wrong and whose last attempt failed, as far as it was read."""
    state = training(with_last(3, loss=float("nan")), *events, after_s=after_s)
    return fold(state, [RunRead(state.now_s, why), Tick(state.now_s)])


def restarted(age_s: float, *, after_step: int = 300) -> State:
    """An attempt ended behind that step and another one is to begin; `age_s` seconds later."""
    at_s, data = 1000.0 + 4.0 * after_step, {"attempt": 2, "cause": "signal-9", "node": "n2"}
    said = Event("restart", "restarting in 4 s: rank 3 was killed", data, None, at_s + 5)
    state = training(steps(after_step), after_s=age_s + 5)
    run = [EventSample(said, said.time_s, "journal"), Tick(state.now_s)]
    return fold(state, run)


def steps(count: int = 300, **changed: Any) -> list[Any]:
    return [record(step, step_s=4.0, time_s=1000.0 + 4.0 * step, **changed) for step in range(1, count + 1)]  # fmt: skip


def with_last(few: int, **changed: Any) -> list[Any]:
    every = steps()
    return every[:-few] + [replace(one, **changed) for one in every[-few:]]


RUN = ("", "001-x")
OVER_RUN: list[tuple[str, Callable[[], State], Unit, str]] = [
    ("run.stalled", lambda: training(steps(), after_s=65), RUN, "no step for 1 min 05 s after step 300"),
    ("run.stalled", lambda: training([], Event("start", time_s=100.0), after_s=1100), RUN, "no first step for 16 min"),
    ("run.unread", lambda: unread("telemetry.jsonl: Stale file handle"), RUN, "telemetry.jsonl: Stale file handle"),
    ("run.restarted", lambda: restarted(age_s=599), ("", "001-x attempt 2"), "restarting in 4 s: rank 3 was killed"),
    ("run.failed", lambda: training(steps(), Event("failed", "Traceback\nValueError: boom", time_s=2200.0)), RUN, "ValueError: boom"),
    ("loss.nan", lambda: training(with_last(1, loss=float("nan"))), RUN, "loss is nan at step 300"),
    ("loss.nan", lambda: training(with_last(3, grad_norm=float("inf"))), RUN, "gradient norm is inf"),
    ("loss.spike", lambda: training(with_last(5, loss=0.9)), RUN, "mean 0.900 over 5 steps, before that 0.3"),
    ("run.data_wait", lambda: training(with_last(20, seconds={"data": 1.6, "forward": 2.0})), RUN, "40 % of the last 20"),
    ("run.straggler", lambda: training(with_last(20, idle_share=0.4, slowest_rank=11)), ("n2", "GPU 3"), "rank 11 is the slowest in 20 of 20"),
    ("run.straggler", lambda: training(steps(), said(entry(11))), ("n2", "GPU 3"), "rank 11 on n2 is 6.2% slower than the others, 84 ms of a step, most of it in backward and forward: its GPU runs at 1410 MHz"),
    ("run.straggler", lambda: training(steps(), said(entry(None, phase="data"))), RUN, "all ranks are 6.2% slower than before"),
    ("run.straggler", lambda: training(steps(), said(entry(99))), ("", "001-x rank 99"), "rank 99 on n1"),
    ("wandb.unsent", lambda: training(steps(), Event("tracking", "W&B was too slow", {"unsent": 240})), RUN, "240 unsent"),
    ("run.unsaved", lambda: training(steps(), Event("save-failed", "rank 0: No space left", time_s=2200.0)), RUN, "rank 0: No space left"),
    ("run.space", lambda: training(steps(), Event("checkpoint", "", {}, 200), Event("space", "the next 3 checkpoints need 60 GB more", {}, 200), Event("checkpoint", "", {}, 200)), RUN, "need 60 GB more"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "state", "unit", "text"), OVER_RUN)
def test_run_over_the_limit(id: str, state: Callable[[], State], unit: Unit, text: str) -> None:
    assert breaches(id, training(steps(), after_s=20)) == {}
    found = breaches(id, state())
    assert set(found) == {unit}
    assert text in found[unit].text
    assert found[unit].starts


def test_slow_ranks_are_an_alert_until_the_trainer_takes_it_back() -> None:
    both = training(steps(), said(entry(11), entry(2)))
    assert set(breaches("run.straggler", both)) == {("n2", "GPU 3"), ("n1", "GPU 2")}
    over = training(steps(), said(entry(11), entry(2)), said(step=290))
    assert breaches("run.straggler", over) == {}
    again = training(steps(), said(entry(11)), Event("start", step=250))
    assert breaches("run.straggler", again) == {}


def test_restart_is_an_alert_for_ten_minutes_and_no_stall_until_the_start_takes_too_long() -> None:
    assert breaches("run.restarted", restarted(age_s=601)) == {}
    ended = restarted(age_s=60)
    done = EventSample(Event("done", "", {}, 300, ended.now_s), ended.now_s, "journal")
    assert breaches("run.restarted", fold(ended, [done, Tick(ended.now_s)])) == {}
    assert breaches("run.stalled", restarted(age_s=800)) == {}
    assert "no step since the restart for 16 min" in breaches("run.stalled", restarted(age_s=980))[RUN].text  # fmt: skip


def test_end_of_an_attempt_is_the_end_of_the_run_only_where_no_restart_follows() -> None:
    begun = Event("attempt", "attempt 1 on n[1-2]", {"attempt": 1}, None, 900.0)
    failed = Event("failed", "ValueError: boom", time_s=2200.0)
    end = Event("end", "rank 3 on n2: exit code 1", {"exit_code": 1}, None, 2230.0)
    state = fold(training(steps()), [EventSample(begun, 900.0, "journal"), EventSample(failed, 2200.0)])  # fmt: skip
    assert breaches("run.failed", state)[RUN].after_s == 60.0
    state = fold(state, [EventSample(end, 2230.0, "journal")])
    assert breaches("run.failed", state)[RUN].after_s is None


def test_what_a_restart_took_makes_no_stall_usual() -> None:
    """A pause of ten minutes in the middle of the window would be its 99th percentile."""
    late = [replace(one, time_s=one.time_s + 600.0) for one in steps(60) if one.step > 30]
    records = [one for one in steps(60) if one.step <= 30]
    state = training([*records, *late], after_s=65)
    assert breaches("run.stalled", state) == {}
    start = Event("start", "001-x at step 30", {}, 30, 1500.0)
    opening: list[Sample] = [RunOpened("outputs/001-x", "001-x", 0.0, ("n1", "n2"), (8, 8))]
    samples = [*(StepSample(one, one.time_s) for one in records), EventSample(start, 1500.0)]
    samples += [StepSample(one, one.time_s) for one in late]
    begin = initial_state(("n1", "n2"), now_s=0.0, source="nodes.txt")
    state = fold(begin, [*opening, *samples, Tick(late[-1].time_s + 65)])
    assert set(breaches("run.stalled", state)) == {RUN}


def test_pauses_for_saving_are_no_stall() -> None:
    records = steps()
    shift = 0.0
    for place, one in enumerate(records):
        shift += 90.0 if one.step % 50 == 0 else 0.0  # a save of 90 s between every 50 steps
        records[place] = replace(one, time_s=one.time_s + shift)
    assert breaches("run.stalled", training(records, after_s=200)) == {}
    assert breaches("run.stalled", training(records, after_s=300))


@pytest.mark.parametrize(
    "events",
    [
        [Event("done", "done", time_s=2300.0)],
        [Event("end", "", {"exit_code": 0}, time_s=2300.0)],
        [Event("stopped", "stopped", time_s=2300.0)],
    ],
)
def test_run_that_ended_well_does_not_stall(events: list[Event]) -> None:
    state = training(with_last(1, loss=float("nan")), *events, after_s=5000)
    for id in ("run.stalled", "run.failed", "loss.nan"):
        assert breaches(id, state) == {}


def test_run_of_yesterday_starts_no_alert() -> None:
    for state, id in (
        (training(steps(), after_s=100_000), "run.stalled"),
        (training(steps(), Event("failed", "x", time_s=2300.0), after_s=100_000), "run.failed"),
    ):
        assert [breach.starts for breach in breaches(id, state).values()] == [False]


@pytest.mark.parametrize("why", [READING, "telemetry.jsonl: Stale file handle"])
def test_what_was_read_of_a_run_so_far_fires_nothing_and_clears_nothing(why: str) -> None:
    failed = Event("failed", "ValueError: boom", time_s=2200.0)
    for state in (unread(why, after_s=5000), unread(why, failed)):
        assert set(breaches("run.unread", state)) == (set() if why == READING else {RUN})
        for id in {id for id, *_ in OVER_RUN} - {"run.unread"}:
            assert breaches(id, state) == {}
            assert not BY_ID[id].known(look_at(state), RUN), id
    read = unread("", failed)
    assert breaches("run.failed", read)
    assert BY_ID["run.failed"].known(look_at(read), RUN)


def test_one_bad_batch_is_no_spike_and_too_few_steps_say_nothing() -> None:
    assert breaches("loss.spike", training(with_last(1, loss=9.0))) == {}
    young = steps(40)
    young[-5:] = [replace(one, loss=9.0) for one in young[-5:]]
    assert breaches("loss.spike", training(young)) == {}


def test_what_an_earlier_attempt_told_of_wandb_is_over() -> None:
    told = [Event("tracking", "W&B failed", time_s=1500.0), Event("start", "again", time_s=1600.0)]
    assert breaches("wandb.unsent", training(steps(), *told)) == {}


def test_failed_save_is_an_alert_until_one_succeeds_or_the_run_starts_again_or_ends() -> None:
    failed = Event("save-failed", "the checkpoint could not be written", step=100, time_s=1400.0)
    assert set(breaches("run.unsaved", training(steps(), failed))) == {RUN}
    for name in ("checkpoint", "start", "done", "stopped"):
        later = Event(name, "x", step=110, time_s=1500.0)
        assert breaches("run.unsaved", training(steps(), failed, later)) == {}


def test_lack_of_space_is_over_with_a_later_save_another_attempt_or_the_end() -> None:
    lacks = Event("space", "the next 3 checkpoints need 60 GB more", {}, 200)
    later = Event("checkpoint", "", {}, 300), Event("start", "again"), Event("done", "done")
    for event in later:
        assert breaches("run.space", training(steps(), lacks, event)) == {}


# --- all of them ---


def test_every_alert_has_a_test_above() -> None:
    tried = {id for id, *_ in OVER} | {id for id, *_ in OVER_RUN} | {"node.down"}
    assert tried == set(BY_ID)
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", rule.id)
        assert set(rule.suppressed_by) <= set(BY_ID), rule.id


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_suggested_command_is_one_that_exists(
    rule: Rule, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command_line(rule, "nodes.txt", "n[1-3]", "/my data", "outputs/001-x"))
    if words[0] == "clusterctl":
        options = [word for word in words[2:] if word.startswith("-")]
        assert run_command([words[1], "--help"]) == 0
        text = capsys.readouterr().out
        for option in options:
            assert re.search(rf"(?<![\w-]){re.escape(option[:2] if option == '-vv' else option)}\b", text), option  # fmt: skip


def test_hostfile_of_a_feed() -> None:
    assert hostfile_of("my nodes.txt + outputs") == "my nodes.txt"
    assert hostfile_of("demo") == hostfile_of("replay") == hostfile_of("") == ""


def test_links_that_no_bridge_of_a_model_uses_are_no_alert() -> None:
    def pair(name: str, *up: int) -> State:
        return cluster(gpus=tuple(gpu(n, name=name, nvlinks=(of, 18)) for n, of in enumerate(up)))

    assert not breaches("gpu.nvlink", pair("NVIDIA H100 NVL", 12, 12))
    assert set(breaches("gpu.nvlink", pair("NVIDIA H100 NVL", 11, 12))) == {GPU0}
    assert not breaches("gpu.nvlink", pair("NVIDIA A100 80GB PCIe", 0, 0))
    assert len(breaches("gpu.nvlink", pair("NVIDIA H100 80GB HBM3", 0, 0))) == 2
