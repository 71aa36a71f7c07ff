"""One table of figures: trackers get of a record what it names, and nothing that is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.runlog.figures import FIGURES, StepRecord, tracked, tracked_of_event
from trainer.runlog.steps import LAUNCHED, ettr, of_run
from trainer.runlog.telemetry import Event, Writer, decode, encode, starts


def record(step: int, **more: object) -> StepRecord:
    given = {"loss_by_bucket": {"144p 1f": 0.5}, "attempt": 1, "acc_step": step, **more}
    return StepRecord(step, 9, 2, 8, 64, 0.5, 1.0, 1e-3, 0.5, {"forward": 0.1}, **given)  # type: ignore[arg-type]


def test_names_are_upstream_s_where_it_has_the_figure() -> None:
    found = tracked(record(3, weight_norm=7.0, avg_loss=0.6, skipped=True))
    names = {"iter": 3, "acc_step": 3, "epoch": 2, "loss": 0.5, "avg_loss": 0.6, "lr": 1e-3}
    names |= {"weight_norm": 7.0, "global_grad_norm": 1.0, "debug/forward_time": 0.1}
    names |= {"loss_by_bucket/144p 1f": 0.5, "attempt": 1, "skipped": 1}
    assert {name: found[name] for name in names} == names
    assert all(type(value) is float for value in found.values())


def test_what_is_not_known_is_not_sent() -> None:
    found = tracked(record(1, mfu=None, update_ratio=None))
    assert not {"mfu", "update_ratio", "ema_gap", "weight_norm", "memory_bytes"} & found.keys()
    assert tracked_of_event("checkpoint", {"path": "x", "seconds": 2.0, "stall_s": 0.1}) == {
        "checkpoint/seconds": 2.0,
        "checkpoint/stall_s": 0.1,
    }
    assert tracked_of_event("note", {"seconds": 2.0}) == {}


def test_a_name_stands_for_one_figure() -> None:
    for names in ([one.tracker for one in FIGURES.values()], [f.metric for f in FIGURES.values()]):
        used = [name for name in names if name]
        assert len(used) == len(set(used))


def test_a_record_of_an_earlier_version_is_read() -> None:
    line = json.loads(encode(record(3)))
    for name in ("loss_by_bucket", "attempt", "acc_step", "mfu", "bad_clips", "loss_by_time"):
        del line[name]
    old = decode(json.dumps(line))
    assert isinstance(old, StepRecord)
    assert (old.loss_by_bucket, old.attempt, old.mfu, old.bad_clips) == ({}, None, None, 0)


@pytest.mark.parametrize(("launched", "wall_s"), [({}, 20.0), ({LAUNCHED: 90.0}, 30.0)])
def test_the_ettr_counts_steps_once_and_all_the_time_since_the_launch(
    launched: dict[str, float], wall_s: float, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    writer.write(Event("start", "x", launched, 0, 100.0))
    for step in range(1, 7):
        writer.write(record(step))
    writer.write(Event("start", "x", {LAUNCHED: 108.0}, 4, 110.0))  # from the checkpoint of step 4
    for step in (5, 6, 7, 8):
        writer.write(record(step))
    writer.close()
    steps = of_run(tmp_path)
    assert ettr(steps.effective_s, steps.began_s, 120.0) == pytest.approx(8 * 0.5 / wall_s)
    assert ettr(0.0, steps.began_s, 120.0) is None
    assert starts(tmp_path) == 2
