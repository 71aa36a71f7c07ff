"""Clips that cannot be read, in runs of two ranks: no rank leaves a step alone, and the end says why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from trainer.config.load import load
from trainer.data.digits import main as render
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan
from trainer.runlog.telemetry import Event, StepRecord, read

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Runs:
    done: dict[str, list[Done]]
    folder: Path

    def bad(self, name: str) -> list[dict]:
        path = self.folder / name / "bad_samples.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def steps(self, name: str) -> list[StepRecord]:
        return [r for r in read(self.folder / name) if isinstance(r, StepRecord)]


def empty(plan: DataPlan, rows: list[int]) -> None:
    for row in rows:
        Path(plan.manifest.locate(int(row))).write_bytes(b"")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.py").write_text(TINY)
    config = load(str(folder / "tiny.py"), [])
    plans = {}
    for name in ("some", "hole"):
        render(["--out", str(folder / name), "--clips", "96", "--seed", "1"])
        manifest = read_manifest(folder / name / "digits.csv")
        plans[name] = DataPlan(manifest, Buckets.parse(config.bucket_config), config.seed)
    first, second, third = list(plans["some"].epoch(0))[:3]
    empty(plans["some"], [first.rows[1], second.rows[1], third.rows[3]])
    # Of the second microbatch, rank 1's first, neither its clips nor what would stand in for them.
    epoch = plans["hole"].epoch(0)
    empty(plans["hole"], [*epoch[1].rows, *epoch.substitutes(1, 12)])

    def words(name: str, data: str, *more: str) -> list[str]:
        return [str(folder / "tiny.py"), "--data-path", str(folder / data / "digits.csv"),
                "--run-dir", str(folder / name), "--dataset.balance-window", "0",
                "--ckpt-every", "0", *more]  # fmt: skip

    asked = {
        "some": words("some-run", "some", "--max-steps", "4"),
        "limit": words("limit-run", "some", "--max-steps", "4", "--max-bad-samples", "1"),
        "hole": words("hole-run", "hole", "--max-steps", "4"),
    }
    return Runs(dict(zip(asked, ranks.train(list(asked.values()), 2, folder / "p"), strict=True)), folder)  # fmt: skip


@pytest.mark.long
def test_each_bad_clip_is_replaced_and_listed_and_every_step_is_taken_by_all(runs: Runs) -> None:
    assert [rank.code for rank in runs.done["some"]] == [0, 0], runs.done["some"][0].err
    assert [len(rank.rows) for rank in runs.done["some"]] == [4, 4]
    assert {len(rows) for rank in runs.done["some"] for rows in rank.rows} == {4}
    listed = {Path(line["path"]).name: line for line in runs.bad("some-run")}
    assert {line["reason"] for line in listed.values()} == {"empty file"}
    # a clip that was to stand in and could not is listed by that rank as well
    assert {(line["step"], line["rank"]) for line in listed.values()} >= {(1, 0), (1, 1), (2, 0)}
    assert all(record.decoder_bytes > 10e6 for record in runs.steps("some-run"))


def test_too_many_of_them_stop_all_ranks_with_the_list_and_what_to_do(runs: Runs) -> None:
    done = runs.done["limit"]
    assert [rank.code for rank in done] == [1, 1]
    assert "clips could not be read, more than max_bad_samples = 1" in done[0].err
    assert "bad_samples.jsonl lists them with their reasons" in done[0].err
    assert "python -m trainer.data check" in done[0].err
    assert "--checked" in done[0].err
    assert done[1].err == ""
    assert len(runs.bad("limit-run")) >= 2


def test_a_rank_without_a_batch_ends_all_ranks_at_once_with_its_reason(runs: Runs) -> None:
    done = runs.done["hole"]
    assert [rank.code for rank in done] == [1, 1]
    said = done[0].err
    assert (
        "no batch for step 1: rank 1: no clip of bucket 16px 8f 1.00 is left as a replacement"
        in said
    )
    assert "clips/" in said
    assert "empty file" in said
    assert "python -m trainer.data check" in said
    assert done[1].err == ""  # no traceback of a connection that was lost
    assert runs.steps("hole-run") == []  # a step without data is no step
    assert sum(line["rank"] == 1 for line in runs.bad("hole-run")) == 16
    events = [e for e in read(runs.folder / "hole-run") if isinstance(e, Event)]
    assert events[-1].name == "failed"
    assert not list((runs.folder / "hole-run").glob("epoch*"))
