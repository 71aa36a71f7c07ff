"""The loader of a run: of clips that are decoded, or of features that were encoded before."""

from __future__ import annotations

from typing import Any

from trainer.data.features.cache import Features
from trainer.data.loader.dataset import Loader, LoaderOptions
from trainer.data.loader.features_loader import FeatureLoader
from trainer.data.plan.data_plan import Cursor, DataPlan


def build_loader(
    plan: DataPlan,
    cursor: Cursor,
    rank: int,
    world: int,
    workers: int,
    config: Any = None,
    *,
    each: int = 1,
    features: Features | None = None,
) -> Loader:
    """Batches for one rank from `cursor` on; `each` for each step, none short, none skipped.

    `workers` decoding processes, at least one; `config` is a training configuration or
    `LoaderOptions`; with `features` nothing is decoded, see `features_loader.read_batch`. Raises
    TooFewClips when no epoch holds even one step; iterating raises TooManyBadSamples and
    LoaderError.
    """
    place = (plan, cursor, rank, world, workers, LoaderOptions.of(config), each)
    loader = Loader(*place) if features is None else FeatureLoader(*place, features=features)
    loader.next_place()
    return loader
