"""Before the first step: a shape fits, recomputes more blocks, or ends the run in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.models.stdit_cases import small_model
from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Bucket, Buckets
from trainer.data.plan.data_plan import DataPlan
from trainer.engine.agreement import attempt
from trainer.engine.base import Engine
from trainer.errors import OutOfMemory
from trainer.fits import Fit, Rank, fit_buckets, fitting
from trainer.models.activation_checkpointing import GradCheckpoint
from trainer.models.peak import State
from trainer.models.text import TextEncoder
from trainer.models.vae.interface import IdentityVAE
from trainer.runlog import units

BUCKETS = Buckets.parse({"144p": {1: (1.0, 8), 17: (1.0, 2), 34: (1.0, 2)}})


class Ranks:
    """An engine of several ranks whose cards have these bytes; this one is the first."""

    rank, world, device = 0, 2, torch.device("cpu")
    raise_any, together = Engine.raise_any, Engine.together

    def __init__(self, others: int) -> None:
        self._others = others

    def gather(self, values: Any) -> list[list[float]]:
        own = list(values)
        return [own, [float(self._others)] * len(own)]

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, value]

    def run_on_rank0(self, work: Any) -> Any:
        return attempt(work)[0]

    def expect_chunks(self) -> None:
        self.chunks = True


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, name: str, text: str, **data: Any) -> None:
        self.seen.append((name, text, data))


def parts_of(model: Any) -> Parts:
    text = TextEncoder.__new__(TextEncoder)  # a cache's: nothing of it is on the card
    return Parts(IdentityVAE(3), text, None, model, None)  # type: ignore[arg-type]


def rank_of(model: Any) -> Rank:
    return Rank(parts_of(model), State(), torch.float32, "cpu", False, 0, 0)


def plan_of() -> DataPlan:
    lengths = np.array([1, 18, 40], np.int32)
    sides = {"height": np.full(3, 144, np.int32), "width": np.full(3, 256, np.int32)}
    manifest = Manifest(
        source=Path("clips.csv"), root=Path(), num_frames=lengths, paths=["a", "b", "c"], texts=["", "", ""],
        fps=np.full(3, 24.0), **sides,
    )  # fmt: skip
    return DataPlan(manifest, BUCKETS, seed=0)


def largest(rank: Rank, blocks: int) -> int:
    return max(rank.bytes(bucket, bucket.batch_size, blocks) for bucket in present())


def present() -> list[Bucket]:
    plan = plan_of()
    cells = np.unique(plan.buckets.reachable(plan.manifest)[1])
    return [BUCKETS.cells[cell] for cell in cells]


def fit(limit: int, others: int | None = None, model: Any = None) -> tuple[Any, Events]:
    model, events = model or small_model(), Events()
    engine: Any = Ranks(limit if others is None else others)
    fit_buckets(Config(dtype="fp32"), engine, parts_of(model), plan_of(), events, limit)  # type: ignore[arg-type]
    return model, events


def test_what_fits_stays_as_configured() -> None:
    model, events = fit(largest(rank_of(small_model()), 0))
    assert model.grad_checkpoint.at_least == {}
    assert events.seen == []


def test_what_does_not_fit_recomputes_as_few_blocks_as_it_must_and_says_so() -> None:
    rank = rank_of(small_model())
    limit = largest(rank, 2)
    model, events = fit(limit)
    [(name, text, data)] = events.seen
    assert name == "memory"
    assert "144p 34f" in text
    assert "of 4 blocks" in text
    blocks = data["blocks"]
    assert 1 <= max(blocks.values()) <= 2
    assert len(blocks) < len(present())  # the small ones are left alone
    for bucket in present():
        latent = (bucket.frames, bucket.height, bucket.width)
        count = blocks.get(bucket.name, 0)
        assert model.recomputed_blocks(bucket.batch_size, latent, 6) == frozenset(range(count))
        assert rank.bytes(bucket, bucket.batch_size, count) <= limit
        assert not count or rank.bytes(bucket, bucket.batch_size, count - 1) > limit


def test_what_is_configured_to_be_recomputed_stays_so() -> None:
    model = small_model()
    model.enable_grad_checkpoint("every 2")
    limit = largest(rank_of(model), 3)
    fit(limit, model=model)
    long = next(bucket for bucket in present() if bucket.frames == 34)
    assert model.recomputed_blocks(2, (34, long.height, long.width), 6) >= {0, 1, 2}
    assert model.recomputed_blocks(1, (4, 8, 8), 6) == {0, 1}


def test_what_does_not_fit_at_all_is_refused_in_one_sentence() -> None:
    rank = rank_of(small_model())
    limit = largest(rank, 4) * 2 // 3
    with pytest.raises(OutOfMemory) as caught:
        fit(limit)
    text, hint = str(caught.value), str(caught.value.hint)
    assert caught.value.on_all_ranks
    assert "\n" not in text
    assert "bucket 144p 34f" in text
    assert f"{units.size(limit)} for a rank: a batch of 1 would fit" in text
    assert "bucket_config['144p'][34]" in hint
    assert "offload_activations" in hint
    assert "grad_checkpoint" in hint
    one = next(bucket for bucket in present() if bucket.frames == 34)
    assert fitting(rank, [one._replace(batch_size=1)], limit)


def test_a_limit_below_the_weights_leaves_no_batch() -> None:
    with pytest.raises(OutOfMemory, match="not even one clip would fit"):
        fit(1000)


def test_ranks_decide_by_the_smallest_card() -> None:
    rank = rank_of(small_model())
    small = fit(largest(rank, 2))[0].grad_checkpoint
    both = fit(1 << 60, others=largest(rank, 2))[0].grad_checkpoint
    assert small == both
    assert small.at_least


def test_encoders_take_their_part_of_the_card() -> None:
    rank, bucket = rank_of(small_model()), present()[0]
    alone = rank.bytes(bucket, 1, 0)
    beside = replace(rank, encoder_bytes=10**9)
    assert beside.bytes(bucket, 1, 0) == alone + 10**9
    encoding = replace(beside, encoding_bytes=10**12)
    assert encoding.bytes(bucket, 1, 0) > 10**12


def test_a_cpu_has_no_limit_of_its_own() -> None:
    events = Events()
    engine: Any = Ranks(-1)
    model = small_model()
    fit_buckets(Config(), engine, parts_of(model), plan_of(), events)  # type: ignore[arg-type]
    assert events.seen == []
    assert model.grad_checkpoint.at_least == {}


def sizes(setting: GradCheckpoint, batch: int, latent: tuple[int, int, int]) -> list[int]:
    spans = setting.spans(batch, latent)
    assert [clip for span in spans for clip in range(batch)[span]] == list(range(batch))
    return [span.stop - span.start for span in spans]


def automatic() -> Any:
    model = small_model()
    model.enable_grad_checkpoint("auto")
    return model


def test_auto_passes_as_many_clips_at_once_as_fit_with_nothing_recomputed() -> None:
    rank = rank_of(automatic())
    long = next(bucket for bucket in present() if bucket.frames == 34)
    image = next(bucket for bucket in present() if bucket.frames == 1)
    limit = rank.bytes(long, 1, 0)
    assert limit < rank.bytes(long, 2, 0)
    assert fitting(rank, [long], limit) == {long: Fit(1, 0)}
    assert fitting(rank, [image], rank.bytes(image, 8, 0)) == {}
    assert fitting(rank, [image], rank.bytes(image, 3, 0)) == {image: Fit(3, 0)}


def test_auto_is_told_and_the_engine_hears_of_parts() -> None:
    model, events, rank = automatic(), Events(), rank_of(automatic())
    engine: Any = Ranks(1 << 60)
    limit = max(rank.bytes(bucket, 1, 0) for bucket in present())
    fit_buckets(Config(dtype="fp32"), engine, parts_of(model), plan_of(), events, limit)  # type: ignore[arg-type]
    long = next(bucket for bucket in present() if bucket.frames == 34)
    latent = (long.frames, long.height, long.width)
    assert engine.chunks
    assert sizes(model.grad_checkpoint, 2, latent) == [1, 1]
    assert model.recomputed_blocks(1, latent, 6) == frozenset()
    [(name, text, data)] = events.seen
    assert name == "memory"
    assert "144p 34f 1" in text
    assert data["clips"][long.name] == 1


def test_auto_recomputes_where_not_one_clip_fits_otherwise() -> None:
    rank = rank_of(automatic())
    long = next(bucket for bucket in present() if bucket.frames == 34)
    model, events = fit(rank.bytes(long, 1, 4), model=automatic())
    latent = (long.frames, long.height, long.width)
    assert sizes(model.grad_checkpoint, 2, latent) == [1, 1]
    assert model.recomputed_blocks(1, latent, 6)
    assert "recomputed of 4 blocks" in events.seen[0][1]
    with pytest.raises(OutOfMemory, match="one at a time, with every block recomputed"):
        fit(rank.bytes(long, 1, 4) * 2 // 3, model=automatic())


def test_auto_without_a_limit_keeps_everything_and_passes_whole() -> None:
    model, events = fit(1 << 60, model=automatic())
    assert events.seen == []
    assert sizes(model.grad_checkpoint, 8, (1, 2, 2)) == [8]
    assert model.recomputed_blocks(8, (1, 2, 2), 6) == frozenset()


@pytest.mark.parametrize(
    ("batch", "at_once", "wanted"), [(8, 3, [2, 3, 3]), (8, 8, [8]), (1, 4, [1]), (7, 1, [1] * 7)]
)
def test_parts_are_as_even_as_they_can_be(batch: int, at_once: int, wanted: list[int]) -> None:
    found = GradCheckpoint(at_once={(1, 2, 2): at_once})
    assert sizes(found, batch, (1, 2, 2)) == wanted
    assert sizes(found, batch, (5, 2, 2)) == [batch]
