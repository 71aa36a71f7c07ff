"""Runs side by side: what is compared, what is noise, what a limit says, what is not known."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.compare.document import comparison_json
from clusterctl.compare.judge import BAD, GOOD, UNKNOWN, Comparison, Limits, compare, exit_code
from clusterctl.compare.losses import by_clips, by_steps, same
from clusterctl.compare.read import read
from clusterctl.compare.show import loss_lines
from clusterctl.errors import CouldNotFindOut
from tests.clusterctl.compare.runs_of import steps, write, write_config
from tests.clusterctl.runs.attempts_of import three_attempts
from trainer.runlog.telemetry import Event, Record, StepRecord, decode, encode, final_steps

STRICT = Limits(0.01, 0.05)


def made(
    tmp_path: Path, a: list[StepRecord], b: list[StepRecord], limits: Limits = STRICT
) -> Comparison:
    return compare(read(write(tmp_path / "a", a)), read(write(tmp_path / "b", b)), limits)


def verdicts(found: Comparison) -> list[str]:
    return [one.verdict for one in found.verdicts]


def test_same_run_is_bit_equal_and_keeps_every_limit(tmp_path: Path) -> None:
    found = made(tmp_path, steps(300, 1), steps(300, 1), Limits(0.0, 0.0))
    assert found.same.is_all
    assert (found.same.common, found.same.loss_to, found.same.grad_to) == (300, 300, 300)
    assert verdicts(found) == [GOOD, GOOD]
    assert found.judged.parts is None
    assert found.has_equal_batches


@pytest.mark.long
def test_noise_alone_is_no_difference_and_does_not_part(tmp_path: Path) -> None:
    parted, a = 0, read(write(tmp_path / "a", steps(1200, 1)))
    for seed in range(2, 6):
        found = compare(a, read(write(tmp_path / "b", steps(1200, seed))), STRICT)
        parted += found.steps.parts is not None
        half = found.steps.half
        assert half is not None
        assert half.low is not None
        assert half.high is not None
        assert half.low < 0.01
        assert half.high > -0.01
    assert parted == 0


@pytest.mark.long
def test_higher_loss_from_a_step_on_is_found_there_and_exceeds(tmp_path: Path) -> None:
    worse = steps(2000, 2, loss=lambda step, value: value * (1.2 if step > 800 else 1.0))
    found = made(tmp_path, steps(2000, 1), worse)
    assert found.steps.parts is not None
    assert 780 <= found.steps.parts.first <= 860
    assert found.steps.share(found.steps.half.value if found.steps.half else None) == pytest.approx(
        0.2, abs=0.05
    )
    assert verdicts(found) == [BAD, GOOD]
    assert exit_code([found]) == 1


@pytest.mark.long
def test_small_lasting_difference_is_found_in_longer_windows(tmp_path: Path) -> None:
    worse = steps(4000, 2, loss=lambda _, value: value + 0.012)
    found = by_steps(
        read(write(tmp_path / "a", steps(4000, 1))), read(write(tmp_path / "b", worse))
    )
    assert found.parts is not None
    assert found.parts.last - found.parts.first > 2 * 4000 / 128


@pytest.mark.long
def test_lower_loss_keeps_the_limit(tmp_path: Path) -> None:
    better = steps(600, 2, loss=lambda _, value: value * 0.9)
    assert verdicts(made(tmp_path, steps(600, 1), better))[0] == GOOD


def test_noise_wider_than_the_limit_is_not_known(tmp_path: Path) -> None:
    found = made(tmp_path, steps(60, 1), steps(60, 2), Limits(0.001, None))
    assert verdicts(found) == [UNKNOWN]
    assert "more steps are needed" in found.verdicts[0].why
    assert found.exit_code == 3


def test_few_steps_are_not_known_unless_they_are_the_same(tmp_path: Path) -> None:
    assert verdicts(made(tmp_path, steps(8, 1), steps(8, 2)))[0] == UNKNOWN
    assert verdicts(made(tmp_path, steps(8, 1), steps(8, 1)))[0] == GOOD


def test_bit_equal_up_to_a_step(tmp_path: Path) -> None:
    later = [
        replace(
            one,
            loss=one.loss + 1e-12 * (one.step > 120),
            grad_norm=one.grad_norm * (1 + (one.step > 119)),
        )
        for one in steps(300, 1)
    ]
    found = made(tmp_path, steps(300, 1), later)
    assert (found.same.loss_to, found.same.grad_to, found.same.is_all) == (120, 119, False)
    assert found.judged.parts is None  # far below 0.1 % of the loss


@pytest.mark.long
def test_other_order_of_buckets_is_compared_bucket_by_bucket(tmp_path: Path) -> None:
    found = made(tmp_path, steps(1500, 1, order=1), steps(1500, 2, order=2))
    assert not found.steps.is_paired
    assert found.steps.parts is None
    assert abs(found.steps.share(found.steps.half.value if found.steps.half else None) or 1) < 0.02
    assert verdicts(found)[1] == GOOD


def test_batches_of_other_size_are_aligned_by_clips(tmp_path: Path) -> None:
    """B sees twice as many clips in a step: at equal clips it has the same loss, at equal steps not."""

    def half_as_far(step: int, value: float) -> float:
        import math

        return value - math.exp(-step / 100) + math.exp(-step / 50)

    found = made(tmp_path, steps(400, 1), steps(200, 2, clips=64, slower=2.0, loss=half_as_far))
    assert (found.clips.first, found.clips.last) == (64.0, 12800.0)
    assert not found.clips.is_paired
    assert found.judged is found.clips
    assert verdicts(found)[1] == GOOD  # a step takes twice as long, for twice as many clips
    assert found.speed.phases["step"].change == pytest.approx(1.0, abs=0.05)
    steps_half, clips_half = found.steps.half, found.clips.half
    assert steps_half is not None
    assert clips_half is not None
    assert abs(clips_half.value) < 0.01 < abs(steps_half.value)


@pytest.mark.long
def test_slower_run_exceeds_and_a_stall_alone_does_not(tmp_path: Path) -> None:
    found = made(tmp_path, steps(300, 1), steps(300, 2, slower=1.1))
    assert verdicts(found)[1] == BAD
    assert found.speed.slowdown is not None
    assert found.speed.slowdown.value == pytest.approx(0.1, abs=0.02)
    assert found.speed.buckets["512px 1f 1.00"].change == pytest.approx(0.1, abs=0.02)
    stalled = [
        replace(one, step_s=600.0) if one.step in (100, 200) else one for one in steps(300, 2)
    ]
    assert verdicts(made(tmp_path, steps(300, 1), stalled))[1] == GOOD


def test_saves_and_first_steps_are_no_slowdown(tmp_path: Path) -> None:
    first, *rest = steps(300, 2)
    slow = [
        replace(first, step_s=90.0),
        *(
            replace(one, step_s=one.step_s + 5, seconds={**one.seconds, "checkpoint": 5.0})
            for one in rest
        ),
    ]
    plain = [replace(one, seconds={**one.seconds, "checkpoint": 0.0}) for one in steps(300, 1)]
    assert verdicts(made(tmp_path, plain, slow))[1] == GOOD


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_run_that_has_diverged_exceeds_the_limit(tmp_path: Path, value: float) -> None:
    gone = steps(100, 2, loss=lambda step, loss: value if step > 20 else loss)
    found = made(tmp_path, steps(100, 1), gone)
    assert found.verdicts[0].verdict == BAD
    assert "50 losses are not finite" in found.verdicts[0].why


@pytest.mark.long
def test_loss_that_is_not_finite_never_keeps_a_limit(tmp_path: Path) -> None:
    nan = steps(300, 2, loss=lambda step, value: float("nan") if step > 290 else value * 0.5)
    found = made(tmp_path, steps(300, 1), nan)
    assert found.verdicts[0].verdict == BAD
    assert "10 losses are not finite" in found.verdicts[0].why
    back = made(tmp_path, nan, steps(300, 1))
    assert back.verdicts[0].verdict == UNKNOWN


def test_no_common_step_is_not_known_and_speed_still_is(tmp_path: Path) -> None:
    found = made(tmp_path, steps(100, 1), steps(100, 2, first=200))
    assert "no steps in common: A 1 to 100, B 200 to 299" in found.steps.why
    assert "one begins at step 1, the other at 200" in found.clips.why
    assert verdicts(found) == [UNKNOWN, GOOD]
    assert compare(found.a, found.b, Limits()).exit_code == 3


def test_mfu_is_known_only_with_the_gpu_on_record(tmp_path: Path) -> None:
    a = read(write(tmp_path / "a", steps(50, 1), device="NVIDIA H100 80GB HBM3"))
    b = read(write(tmp_path / "b", steps(50, 2)))
    found = compare(a, b, Limits())
    flops_s = found.rates[0].flops_s
    assert flops_s is not None
    assert found.rates[0].mfu == pytest.approx(flops_s / 989.4e12)
    assert found.rates[1].mfu is None


def test_restarted_run_counts_each_step_once(tmp_path: Path) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    found = read(run_dir)
    assert list(found.steps) == [float(step) for step in range(1, 201)]
    told = three_attempts().account()
    assert found.account.effective_s == pytest.approx(told.effective_s)
    assert found.ettr == pytest.approx(told.ettr(found.newest_s))
    assert found.account.attempts == told.attempts
    assert [one.cause for one in found.journal.incidents] == ["signal-9", "hang-data"]


@pytest.mark.long
def test_steps_that_count_are_those_of_telemetry_whatever_was_written(tmp_path: Path) -> None:
    noise = random.Random(5)
    for _ in range(60):
        records: list[Record] = []
        step = 0
        for _ in range(noise.randrange(1, 40)):
            kind = noise.random()
            if kind < 0.15:
                step = noise.randrange(0, step + 1)
                records.append(Event("start", "", {}, noise.choice([step, None]), 1.0))
            elif kind < 0.2:
                step = max(0, step - noise.randrange(5))
            else:
                step += noise.choice([1, 1, 1, 2])
                records.append(replace(steps(1, 1)[0], step=step, loss=noise.random()))
        text = "".join(f"{encode(one)}\n" for one in records)
        (tmp_path / "telemetry.jsonl").write_text(text)
        counted = final_steps(filter(None, map(decode, text.splitlines())))
        if not counted:
            continue
        found = read(tmp_path)
        assert list(map(int, found.steps)) == list(counted)
        assert list(found.columns["loss"]) == [one.loss for one in counted.values()]


def test_torn_and_foreign_lines_are_counted_and_hide_no_other(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", steps(30, 1))
    path = run_dir / "telemetry.jsonl"
    lines = path.read_text().splitlines()
    lines[10:10] = [
        "{",
        "[1,2",
        "null",
        '{"kind":"step","step":"5"}',
        '{"kind":"step","step":1e400}',
        "\x00" * 40,
    ]
    path.write_text("\n".join(lines) + '\n{"kind":"step","step":31,"steps_to')
    found = read(run_dir)
    assert len(found.steps) == 30
    assert found.unread == 7


def test_run_without_telemetry_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CouldNotFindOut, match=r"has no telemetry\.jsonl"):
        read(tmp_path / "a")
    (tmp_path / "a" / "telemetry.jsonl").write_text(f"{encode(Event('start', '', {}, 0, 1.0))}\n")
    with pytest.raises(CouldNotFindOut, match="has no step"):
        read(tmp_path / "a")


def test_what_differs_in_config_is_told(tmp_path: Path) -> None:
    for name, rate in (("a", 1e-4), ("b", 2e-4)):
        write_config(write(tmp_path / name, steps(20, 1)), lr=rate)
    found = compare(read(tmp_path / "a"), read(tmp_path / "b"), Limits())
    assert ("config lr", "0.0001", "0.0002") in found.changes.changes


def test_a_path_that_is_written_in_another_way_has_not_changed(tmp_path: Path) -> None:
    words = (("a", "/data/x/clips.csv", None), ("b", "../x/clips.csv", "held.csv"))
    for name, clips, held_out in words:
        run_dir = write(tmp_path / name, steps(20, 1))
        write_config(run_dir, clips=clips, held_out=held_out)
        (run_dir / "plan.json").write_text(json.dumps({"workdir": "/data/y"}))
    changes = compare(read(tmp_path / "a"), read(tmp_path / "b"), Limits()).changes.changes
    assert changes == (("config held_out", "None", "held.csv"),)


def test_steps_that_are_missing_make_clips_unknown(tmp_path: Path) -> None:
    a = read(write(tmp_path / "a", steps(100, 1)))
    b = read(write(tmp_path / "b", [one for one in steps(100, 1) if one.step != 50]))
    assert "how many clips 1 of its steps had" in by_clips(a, b).why
    assert same(a, b).common == 99


def test_document_has_no_value_that_json_lacks(tmp_path: Path) -> None:
    from clusterctl.compare.document import comparison_json, run_json

    nan = steps(100, 2, loss=lambda step, value: float("inf") if step > 90 else value)
    found = made(tmp_path, steps(100, 1), nan)
    text = json.dumps([comparison_json(found), run_json(found.b, found.rates[1])], allow_nan=False)
    assert '"judged_by": "steps"' in text


def measured(run_dir: Path, *points: tuple[int, float, float], clips: int = 20) -> Path:
    """With validation losses after these steps, as a run writes them."""
    with (run_dir / "telemetry.jsonl").open("a") as file:
        for step, model, ema in points:
            data = {"model": {"loss": model, "clips": clips}, "ema": {"loss": ema, "clips": clips}}
            file.write(f"{encode(Event('validation', 'loss …', data, step, 5.0))}\n")
    return run_dir


def test_validation_losses_are_compared_after_the_last_step_that_both_have(tmp_path: Path) -> None:
    a = measured(write(tmp_path / "a", steps(100, 1)), (0, 2.0, 2.0), (50, 1.0, 0.9))
    b = measured(
        write(tmp_path / "b", steps(100, 2)), (0, 2.0, 2.0), (50, 0.8, 0.81), (90, 0.1, 0.1)
    )
    found = compare(read(a), read(b), STRICT)
    lines = " ".join(text.strip() for text, _ in loss_lines(found, "B"))
    wanted = "validation after step 50: B -20.0 % (A 1.000); averaged weights B -10.0 % (A 0.9000)"
    assert wanted in lines.replace("  ", " ")
    assert [one["step"] for one in comparison_json(found)["validation"]] == [0, 50]
    other = measured(write(tmp_path / "c", steps(100, 2)), (50, 0.8, 0.81), clips=64)
    said = " ".join(
        text.strip() for text, _ in loss_lines(compare(read(a), read(other), STRICT), "B")
    )
    assert "not compared, as A has 20 clips and B 64" in said


def test_validation_losses_of_steps_that_are_done_again_do_not_count(tmp_path: Path) -> None:
    run_dir = measured(write(tmp_path / "a", steps(100, 1), end=""), (50, 1.0, 0.9), (90, 0.8, 0.7))
    with (run_dir / "telemetry.jsonl").open("a") as file:
        file.write(f"{encode(Event('start', 'x', {}, 60, 9.0))}\n")
    assert list(read(run_dir).validations) == [50]


def test_validation_losses_measured_beside_the_run_count(tmp_path: Path) -> None:
    run_dir = measured(write(tmp_path / "a", steps(100, 1), end=""), (50, 1.0, 0.9))
    beside = [(50, 9.0), (90, 0.7)]
    lines = [
        Event("validation", "x", {"model": {"loss": loss}, "checkpoint": "x"}, step, 9e9)
        for step, loss in beside
    ]
    text = "".join(f"{encode(line)}\n" for line in lines)
    (run_dir / "validation.jsonl").write_text(text + "torn")
    found = read(run_dir).validations
    assert {step: point.model for step, point in found.items()} == {50: 1.0, 90: 0.7}
