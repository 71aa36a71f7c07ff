"""The loss of clips that are never trained on, each at fixed times and with noise of its own.

Times are the middles of equal bands of 0 to num_timesteps and stand as the model sees them, not
transformed for the size of a clip: figures of runs that draw their times in other ways compare.
A microbatch is computed whole by one rank, and what all ranks found is added up in one order, so
the result does not depend on their number.
"""

# B clips · C channels · T,H,W latent frames, height, width · K times

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.features.cache import Features
from trainer.data.loader.build_loader import read_batch
from trainer.data.loader.encode import encode
from trainer.data.loader.microbatch import Bad, Batch, assemble
from trainer.data.loader.task import Task, make_task
from trainer.data.manifest.shared import read_once
from trainer.data.plan.data_plan import DataPlan
from trainer.data.plan.held_out import HeldOutPlan, all_of, held_out_of
from trainer.data.video.decode import Decoder
from trainer.device import random_numbers_kept
from trainer.diffusion.draws import seed_of
from trainer.engine.agreement import agreed
from trainer.engine.base import Engine
from trainer.errors import ConfigError, TooManyBadSamples
from trainer.runlog.validation import Figures, Losses, figures_of

Show = Callable[[int, int], None]


def _silent(_done: int, _all: int) -> None:
    pass


@dataclass(frozen=True)
class _Encoded:
    """A microbatch on the host."""

    index: int
    bucket: str
    ids: list[int]  # content ids
    is_read: list[bool]  # False: another clip in place of one that could not be read
    z_BCTHW: Tensor
    conditions: Mapping[str, Tensor]


class Validation:
    """Reads and encodes its clips once, then measures models on them."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        engine: Engine,
        plan: HeldOutPlan,
        features: Features | None = None,
    ) -> None:
        self._dataset, self._engine = config.dataset, engine
        self._vae, self._text, self._flow = parts.vae, parts.text, parts.flow
        self._plan, self._features, self._compiled = plan, features, config.compile
        steps, bands = config.scheduler.num_timesteps, config.validation.times
        self.times = [(band + 0.5) * steps / bands for band in range(bands)]
        self._encoded: list[_Encoded] = []
        self._passes: int | None = None  # of a measurement; None before the clips were read
        self.bad: list[Bad] = []  # clips of all ranks that could not be read
        self.notes: list[str] = []  # on clips that could not be compared with their features

    @property
    def is_ready(self) -> bool:
        return self._passes is not None

    def __len__(self) -> int:
        """Microbatches of all ranks."""
        return len(self._plan.epoch(0))

    def prepare(self, show: Show = _silent) -> None:
        """Read and encode this rank's share, once (collective). `show` gets (done, all)."""
        if self.is_ready:
            return
        own = self._engine.together(lambda: self._read(show))
        counts = self._engine.gather_objects(len(own))
        every = [clip for bad in self._engine.gather_objects(self.bad) for clip in bad]
        # Once each: a clip may also have been tried in another's place.
        self.bad = list({clip.row: clip for clip in reversed(every)}.values())[::-1]
        # Where a pass gathers weights, all ranks make equally many.
        passes = len(own) if self._engine.forward_is_local else max(counts)
        if max(counts) > 0 and not self._engine.forward_is_local and 0 in counts:
            # Of its clips a rank could read none: it computes what another one does, which counts
            # once, as the figures of a microbatch are kept by its number.
            first = next(rank for rank, count in enumerate(counts) if count)
            given = own[:1] if self._engine.rank == first else []
            given = self._engine.gather_objects(given)[first]
            own = own or given
        self._encoded, self._passes = own, passes

    def measure(self, model: nn.Module, show: Show = _silent) -> Figures:
        """Losses of this model (collective); torch's generators stand as before."""
        self.prepare(show)
        was_training, passes = model.training, self._passes or 0
        model.eval()
        # Blocks compiled for training would be compiled once more for passes without gradients.
        eager = torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()
        found: Losses = {}
        try:
            with torch.no_grad(), eager:
                for number in range(passes):
                    show(number, passes)
                    one = self._encoded[number % len(self._encoded)]
                    found[one.index] = (one.bucket, self._losses(model, one))
        finally:
            model.train(was_training)
        merged: Losses = {}
        for of_rank in self._engine.gather_objects(found):
            merged |= of_rank
        return figures_of(merged, self.times)

    def _losses(self, model: nn.Module, one: _Encoded) -> list[list[float]]:
        """[clip][time], of the clips that could be read."""
        device = self._engine.device
        z_BCTHW = one.z_BCTHW.to(device)
        conditions = {name: value.to(device) for name, value in one.conditions.items()}
        conditions["mask"] = one.conditions["mask"]  # on the host, as a step has it
        columns = []
        for number, time in enumerate(self.times):
            noises = [_noise(clip, number, z_BCTHW.shape[1:]) for clip in one.ids]
            noise_BCTHW = torch.stack(noises).to(z_BCTHW)
            t_B = torch.full((len(z_BCTHW),), time, device=device)
            losses_B = self._flow.training_losses(
                model, z_BCTHW, conditions, t=t_B, noise=noise_BCTHW
            )
            columns.append(losses_B)
        rows = torch.stack(columns, 1).double().tolist()
        return [row for row, is_read in zip(rows, one.is_read, strict=True) if is_read]

    def _read(self, show: Show) -> list[_Encoded]:
        count, rank, found = len(self), self._engine.rank, []
        own = list(range(rank, count, self._engine.world))
        if not own and count and not self._engine.forward_is_local:
            own = [rank % count]
        make, close = self._maker()
        try:
            for number, index in enumerate(own):
                show(number, len(own))
                if (encoded := self._encode(index, make)) is not None:
                    found.append(encoded)
        finally:
            close()
        return found

    def _maker(self) -> tuple[Callable[[Task], Batch], Callable[[], None]]:
        """What makes a batch of a task, and what ends it."""
        data, features = self._dataset, self._features
        if features is not None:
            shards, ids = features.shards(), self._plan.content_ids
            return partial(read_batch, features=features, shards=shards, ids=ids), shards.close
        limits = (data.clip_timeout_s, 0, "validation", data.worker_memory_mb << 20, data.resize)
        decoder = Decoder(*limits)
        timeout_s = data.batch_timeout_s
        return partial(assemble, decoder=decoder, timeout_s=timeout_s), decoder.close

    def _encode(self, index: int, make: Callable[[Task], Batch]) -> _Encoded | None:
        """None where none of its clips can be read."""
        task = make_task(self._plan, 0, index, self._dataset, elsewhere=False)
        rows = [clip.row for clip in task.clips]
        ids = self._plan.content_ids[rows].tolist()
        try:
            batch = make(task)
        except TooManyBadSamples as error:
            self.bad += [Bad(*clip) for clip in error.bad]
            return None
        self.bad += batch.bad
        is_read = [found == row for found, row in zip(batch.rows, rows, strict=True)]
        device = self._engine.device
        with random_numbers_kept(device):
            torch.manual_seed(seed_of(*ids))
            z_BCTHW, conditions = encode(self._vae, self._text, device, batch)
        on_host = {name: value.cpu() for name, value in conditions.items()}
        return _Encoded(index, task.bucket.name, ids, is_read, z_BCTHW.cpu(), on_host)


def _noise(clip: int, number: int, shape: torch.Size) -> Tensor:
    """fp32, on the CPU: the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed_of(clip, number)))


def validation_for(
    config: Config,
    parts: Parts,
    engine: Engine,
    plan: DataPlan,
    features: Features | None = None,
    *,
    is_compared: bool = False,
) -> Validation | None:
    """Of a run that asks for it (collective). Raises ConfigError where no clip is there for it, and
    FeaturesError where its features are of other files of the same names; with `is_compared` the
    caller has looked at those of the plan's manifest."""
    wanted = config.validation
    if not wanted.every:
        return None
    if wanted.data_path is not None:
        root = Path(config.dataset.root) if config.dataset.root else None
        most = config.dataset.max_wrong_rows
        manifest, _ = read_once(engine, Path(wanted.data_path), root, max_wrong_rows=most)
        held_out = engine.together(lambda: all_of(manifest, plan, wanted.clips))
    else:
        manifest, held_out = plan.manifest, held_out_of(plan, wanted.clips)
    notes: list[str] = []
    if features is not None and not (is_compared and manifest is plan.manifest):
        limits = config.num_workers, config.dataset.clip_timeout_s, held_out.epoch(0).rows()
        compare = partial(features.check_clips, manifest, plan.buckets, *limits)
        notes = engine.run_on_rank0(compare)
    validation = engine.together(lambda: Validation(config, parts, engine, held_out, features))
    validation.notes = notes
    if not len(validation):
        text = f"no clip of {manifest.source} is there for validation"
        hint = "validation.share = 0.01 keeps one of a hundred"
        if wanted.share or wanted.data_path:
            text += ", in any bucket"
            hint = "a larger share, other clips, or validation.every = 0"
        raise agreed(ConfigError(text, hint=hint))
    return validation
