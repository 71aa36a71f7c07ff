"""Two real ranks meet data whose loss stays high: they go back, skip those data, and go on exactly."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from trainer.data.digits import main as render
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.weights import checkpoints

pytestmark = pytest.mark.timeout(1300)
EACH = 24  # microbatches of an epoch


def train(folder: Path, runs: dict[str, list[str]]) -> dict[str, list[Done]]:
    (folder / "tiny.py").write_text(TINY)
    render(["--out", str(folder / "clips"), "--clips", "96", "--seed", "1"])
    words = [
        [str(folder / "tiny.py"), "--data-path", str(folder / "clips/digits.csv"), "--run-dir", str(folder / name),
         "--ckpt-every", "20", "--log-every", "1000", *more]
        for name, more in runs.items()
    ]  # fmt: skip
    return dict(zip(runs, ranks.train(words, 2, folder / "p", limit_s=900), strict=True))


def events(run_dir: Path, kind: str) -> list[Event]:
    return [r for r in read(run_dir) if isinstance(r, Event) and r.name == kind]


def steps(run_dir: Path) -> list[int]:
    return [r.step for r in read(run_dir) if isinstance(r, StepRecord)]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def places(done: Done) -> list[int]:
    """Of the microbatches, counted over epochs, behind each step."""
    return [EACH * epoch + consumed for epoch, consumed in done.seen]


def sampler(checkpoint: Path) -> Any:
    return json.loads((checkpoint / "sampler.json").read_text())


@pytest.mark.long
def test_a_spike_that_stays_goes_back_skips_its_data_and_a_resume_continues_exactly(
    tmp_path: Path,
) -> None:
    spike, harm = tmp_path / "spike", "harm=bad_data_and_short_windows"
    saved = spike / "epoch4-global_step40"
    runs = {
        "spike": ["--max-steps", "50", "--ckpt-every", "10", harm],
        "on": ["--max-steps", "50", "--ckpt-every", "10", "--load", str(saved), harm],
    }
    done = train(tmp_path, runs)
    assert [rank.code for rank in done["spike"]] == [0, 0], done["spike"][0].err
    (event,) = events(spike, "rollback")
    assert event.step == 40
    assert event.text.startswith("the loss of steps 31 to 40 is ")
    assert "back to epoch2-global_step30, rollback 1 of 2" in event.text
    assert steps(spike) == [*range(1, 41), *range(31, 51)]
    for rank in done["spike"]:
        # 60 microbatches up to step 30, 80 up to step 40: from there on the run continues
        assert places(rank)[40:] == [80 + 2 * n for n in range(1, 21)]
    first = sampler(spike / "epoch3-global_step30")
    assert (first["epoch"], first["microbatches_consumed"]) == (3, 8)
    assert first["skipped"] == [[2, 12, 24], [3, 0, 8]]
    # used before step 30 and skipped: each microbatch so far once
    assert 60 + sum(end - begin for _, begin, end in first["skipped"]) == EACH * 3 + 8
    assert sampler(saved)["skipped"] == first["skipped"]
    last = checkpoints.find(spike).name
    assert last.endswith("global_step50")

    assert [rank.code for rank in done["on"]] == [0, 0], done["on"][0].err
    assert digests(tmp_path / "on" / last) == digests(spike / last)


@pytest.mark.slow
def test_rollbacks_end_when_they_help_and_after_two_that_do_not(tmp_path: Path) -> None:
    long = ["--max-steps", "400"]
    runs = {
        "helps": ["--max-steps", "170", "harm=bad_data"],
        "stays": [*long, "harm=bad_data_to_the_end"],
        "none": [*long, "--ckpt-every", "0", "harm=bad_data_to_the_end"],
        "off": ["--max-steps", "170", "--guard-rollback", "false", "harm=bad_data_to_the_end"],
    }
    done = train(tmp_path, runs)
    assert [rank.code for rank in done["helps"]] == [0, 0]
    (event,) = events(tmp_path / "helps", "rollback")
    assert "back to epoch8-global_step100, rollback 1 of 2" in event.text
    last = checkpoints.find(tmp_path / "helps")
    assert last.name.endswith("global_step170")
    guards = json.loads((last / "guards.json").read_text())
    assert guards["rollbacks"]["tries"] == 0  # it has passed step 150
    assert [rank.code for rank in done["stays"]] == [1, 1]
    said, silent = (rank.err for rank in done["stays"])
    assert "2 rollbacks did not get past step 150; all ranks stop" in said
    assert silent == ""
    assert [e.data["rollbacks"] for e in events(tmp_path / "stays", "rollback")] == [1, 2]
    assert [rank.code for rank in done["none"]] == [1, 1]
    text = "there is no checkpoint of a step before 101 to go back to"
    assert text in done["none"][0].err
    assert done["none"][1].err == ""
    assert [rank.code for rank in done["off"]] == [0, 0]
    assert events(tmp_path / "off", "rollback") == []
