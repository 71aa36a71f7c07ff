"""A run made of its config: parts, data, engine, schedule, EMA; fresh or from a checkpoint."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.captions import clean_caption
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saver
from trainer.components import TINY_T5, Parts, build_parts, make_tiny_text_encoder
from trainer.config.load import Config
from trainer.data.features.cache import NETWORK_DTYPES, Features
from trainer.data.features.key import Hashes, key_of, refuse_other, unseen
from trainer.data.features.projected_captions import use_projected
from trainer.data.loader.build_loader import NoText, NoVAE, build_loader
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.shared import read_once
from trainer.data.plan import state as data_state_of
from trainer.data.plan.balance import Balance, classes
from trainer.data.plan.costs import costs_by_arithmetic, costs_by_timing, write_costs
from trainer.data.plan.data_plan import Cursor, DataPlan, plan_for, plan_once
from trainer.engine.agreement import agreed
from trainer.engine.base import Engine, set_threads
from trainer.engine.device_clock import clock_for
from trainer.errors import CheckpointError, ConfigError
from trainer.fits import fit_buckets
from trainer.guards.guards import Guards
from trainer.guards.rollback import Back, between
from trainer.journal import Journal
from trainer.models.stdit import STDiT3
from trainer.optim.ema import EMA
from trainer.optim.lr_schedules import Schedule
from trainer.resume import place_note, resumed_note, source_of, stated_place, take_guards, take_over
from trainer.runlog.atomic_file import put_in_place
from trainer.runlog.output import RUN
from trainer.runlog.telemetry import Heartbeat
from trainer.runlog.units import counted
from trainer.step import Run
from trainer.validation.measure import validation_for
from trainer.warm_up import warm_up_for
from trainer.weights import checkpoints
from trainer.weights.load import load_into, load_weights, read_checkpoint, read_weights

_SHARED_WAIT_S = 10.0
_SHOWN_ROWS = 5
_CAPTIONS_SEEN = 50  # evenly spread, to see whether they are clean
_LOSS_WEIGHTING = "each microbatch counts the same, however many clips it has, as in Open-Sora"


def assemble(
    config: Config,
    engine: Engine,
    run_dir: Path,
    heartbeat: Heartbeat | None,
    data_state: str,
    back: Back | None = None,
) -> Run:
    """All that `train` needs, on every rank the same way (collective); after a rollback `back`."""
    set_threads(config.threads, engine.ranks_on_this_host(), engine.device.type != "cpu")
    require_shared(run_dir, engine)
    journal = engine.together(lambda: Journal(run_dir, config, engine.rank))
    root = Path(config.dataset.root) if config.dataset.root else None
    path, on_disk = Path(str(config.dataset.data_path)), config.dataset.memory_efficient
    manifest, notes = read_once(engine, path, root, on_disk, config.dataset.max_wrong_rows)
    for note in notes:
        journal.event("data", note)
    if manifest.wrong:
        journal.event("data", _left_out(manifest), rows_left_out=len(manifest.wrong))
    unclean = _unclean(config, manifest) if engine.rank == 0 else ""
    if unclean:
        journal.event("note", unclean)
    plan = engine.together(lambda: plan_for(config, manifest))
    taken = engine.run_long_on_rank0(lambda lives: source_of(config, lives))
    source = taken.path if taken is not None else None
    engine.run_on_rank0(lambda: _prepare_text(config, run_dir, source, manifest.texts))
    features = _features(config, plan, run_dir, engine, journal)
    parts = engine.together(lambda: _parts(config, run_dir, source, features, engine))
    if source is None and config.model.from_pretrained is not None:
        _start(config, parts, engine, journal)
    if features is not None:
        engine.together(lambda: use_projected(features, parts.model, NETWORK_DTYPES[config.dtype]))
    model = engine.wrap(parts.model.train(), config)
    fit_buckets(config, engine, parts, plan, journal)
    schedule = Schedule(engine, config)
    if taken is not None:
        engine.load(taken.path / checkpoints.OPTIMIZER)
        if note := take_over(schedule, taken):
            journal.event("lr", note)
    masters, decay, ramp = engine.master_params(), config.ema_decay, config.ema_warmup
    ema = engine.together(lambda: EMA(masters, decay, ramp=ramp))
    before = taken.sampler if taken is not None and not config.start_from_scratch else None
    world = engine.world
    place = engine.run_on_rank0(lambda: stated_place(config, plan, before, world, data_state))
    before = before if place is None else None
    plan.put_into_steps(_balance(config, plan, before, parts, engine, run_dir))
    running: Mapping[str, int] = taken.running if taken is not None else {}
    cursor = place or Cursor()
    if place is not None:
        journal.event("data", place_note(place, taken, running.get("global_step", 0)))
    if source is not None:
        engine.together(lambda: _take_average(ema, engine, source, running["ema_updates"]))
        if before is not None:

            def restore() -> Any:
                seen = checkpoint.read_array(source / checkpoint.SEEN)
                return data_state_of.restore(plan, before, seen, data_state)

            restored = engine.run_on_rank0(restore)
            cursor = restored.cursor
            plan.leave_out(cursor.epoch, restored.left_out)
            plan.skipped = list(restored.skipped)
            if back is not None:
                each = engine.world * config.accumulation_steps
                plan.skipped += between(plan, cursor, back.place, each)
                cursor = back.place
            if restored.note:
                journal.event("data", restored.note)
        journal.event("resume", resumed_note(source, running, cursor, engine.world))
    needs_ids = features is not None or config.validation.every > 0
    for note in plan_once(engine, plan, cursor.epoch, ids=needs_ids):
        journal.event("data", note)
    each, workers = config.accumulation_steps, config.num_workers
    reading = (engine.rank, engine.world, workers, config.dataset)
    more: Any = {"each": each, "prefetch_factor": config.prefetch_factor, "features": features}
    loader = engine.together(lambda: build_loader(plan, cursor, *reading, **more))
    if not len(loader) and (begin := loader.next_place(config.epochs)) is not None:
        left = f"less than a step is left of epoch {cursor.epoch}"
        journal.event("data", f"{left}: the data continue in epoch {begin.epoch}")
    journal.event("loss", _LOSS_WEIGHTING)
    how = _how_blocks_run(parts.model, config.compile)
    for note in (*config.notes, *how, *_without_effect(config, engine.device.type)):
        journal.event("note", note)
    guards = Guards(config, plan, journal)
    if taken is not None and not config.start_from_scratch:
        engine.together(lambda: take_guards(guards, taken, back))
    saver = Saver(run_dir, engine, config)
    if config.ckpt_every:
        saver.prepare()
    # What continues from the checkpoint; nothing with --start-from-scratch.
    reached = {} if config.start_from_scratch else running
    in_place = bool(reached) and source is not None and source.parent == run_dir and not back
    validation = validation_for(config, parts, engine, plan, features, is_compared=True)
    for note in validation.notes if validation is not None else ():
        journal.event("note", note)
    return Run(
        config=config,
        engine=engine,
        parts=parts,
        plan=plan,
        loader=loader,
        ema=ema,
        schedule=schedule,
        journal=journal,
        guards=guards,
        saver=saver,
        run_dir=run_dir,
        clock=clock_for(engine, heartbeat),
        model=model,
        warm_up=warm_up_for(config, parts, engine),
        validation=validation,
        step=reached.get("global_step", 0),
        samples=reached.get("samples", 0),
        bad_clips=set(taken.bad_clips) if taken is not None and reached else set(),
        captions=unclean,
        saved_at=reached["global_step"] if in_place else -1,
    )


def _left_out(manifest: Manifest) -> str:
    """Of rows that cannot be trained on: how many, and the first of them."""
    wrong = manifest.wrong
    first = "; ".join(f"line {row}" for row in wrong[:_SHOWN_ROWS])
    more = f"; and {len(wrong) - _SHOWN_ROWS:,} more" if len(wrong) > _SHOWN_ROWS else ""
    return (
        f"{counted(len(wrong), 'row')} of {manifest.source} left out, {len(manifest):,} good: "
        f"{first}{more} (python -m trainer.data stats lists them)"
    )


def _parts(
    config: Config, run_dir: Path, source: Path | None, features: Features | None, engine: Engine
) -> Parts:
    """This rank's parts; the model has `source`'s weights, fresh ones, or none if they follow."""
    torch.manual_seed(config.seed)  # the same fresh weights on every rank
    has_weights = source is not None or config.model.from_pretrained is not None
    encoders = (NoVAE(features), NoText(features)) if features is not None else None
    dtype = NETWORK_DTYPES[config.dtype]
    device = engine.device.type
    how: dict[str, Any] = {"empty": has_weights, "encoders": encoders, "in_fp8": config.fp8_linears}
    parts = build_parts(config, run_dir, dtype, device, **how)
    parts.text.to(engine.device)
    parts.vae.to(engine.device)
    if source is not None:
        load_weights(parts.model, read_checkpoint(source, ema=False)[0], source)
    return parts


def _how_blocks_run(model: STDiT3, compiled: bool) -> list[str]:
    count = 2 * model.config.depth
    if model.fused:
        more = ", large products in fp8 (fp8_linears)" if model.in_fp8 else ""
        return [f"{count} blocks run on kernels of our own (fused_blocks){more}"]
    if model.in_fp8:
        return [f"large products of {count} blocks round to fp8, computed in fp32 (fp8_linears)"]
    return [f"{count} blocks are compiled; embedders and last layer not"] if compiled else []


def _without_effect(config: Config, device: str) -> list[str]:
    """Kernels are chosen on a GPU only: what a config says of them does nothing elsewhere."""
    if device == "cuda":
        return []
    names = ["attention_table"] * (config.attention_table is not None)
    names += ["fused_blocks"] * (not config.fused_blocks)
    if config.compile and config.fp8_linears:
        names.append("compile (with fp8_linears)")
    return [f"on a CPU these settings change nothing: {', '.join(names)}"] if names else []


def _take_average(ema: EMA, engine: Engine, source: Path, updates: int) -> None:
    """Raises CheckpointError for an average of another model."""
    averages = read_weights(source / checkpoints.EMA)
    try:
        shards = {name: engine.part(name, averages[name]) for name, _ in engine.master_params()}
        ema.load_state_dict(shards, updates)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{source / checkpoints.EMA} is of another model: {error}") from None


def _start(config: Config, parts: Parts, engine: Engine, journal: Journal) -> None:
    """Load --ckpt-path into the fresh model; ranks succeed or fail together (collective)."""
    place, partial = str(config.model.from_pretrained), config.model.allow_partial
    report = engine.together(lambda: load_into(parts.model, place, allow_partial=partial))
    journal.event("weights", report.summary(), report=report.as_dict())
    if engine.rank == 0:
        for line in report.lines():
            RUN.info(line)


def _balance(
    config: Config, plan: DataPlan, before: Any, parts: Parts, engine: Engine, run_dir: Path
) -> Balance | None:
    """How microbatches are put into steps: as before, or with costs found now (collective)."""
    window, buckets, how = config.dataset.balance_window, plan.buckets, config.dataset.balance_costs
    step = (engine.world, config.accumulation_steps)
    if not window:
        return None

    def kept_balance() -> Balance | None:
        kept = data_state_of.balance_before(before, buckets, window, *step)
        if kept is not None:
            write_costs(run_dir, buckets.cells, "checkpoint", kept.costs)
        return kept

    if before is not None and (kept := engine.run_on_rank0(kept_balance)) is not None:
        return kept
    recompute = parts.model.grad_checkpoint.every == 1
    cells = list(buckets.cells)
    if how == "timed":
        present = engine.run_on_rank0(lambda: np.unique(plan.epoch(0).cells).tolist())
        costs = costs_by_timing(cells, present, parts, engine, recompute)
    else:
        costs = costs_by_arithmetic(cells, parts, recompute)
    found: tuple[int, ...] = engine.broadcast(classes(costs))
    engine.run_on_rank0(lambda: write_costs(run_dir, buckets.cells, how, found, costs))
    return Balance(window, found, {0: step})


def require_shared(run_dir: Path, engine: Engine) -> None:
    """All ranks must see rank 0's run directory, or no checkpoint can be whole (collective)."""
    mark = run_dir / engine.broadcast(f".seen-{secrets.token_hex(8)}")
    engine.run_on_rank0(mark.touch)
    deadline = time.monotonic() + _SHARED_WAIT_S
    # os.path's never raises; NFS may know of a new file later
    while not (seen := os.path.exists(mark)) and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.05)
    lacking = [
        host for host, sees in engine.gather_objects((socket.gethostname(), seen)) if not sees
    ]
    engine.run_on_rank0(lambda: mark.unlink(missing_ok=True))
    if lacking:
        ranks = f"{len(lacking)} of {engine.world} ranks ({', '.join(sorted(set(lacking)))})"
        text = f"{run_dir} of rank 0 cannot be seen by {ranks}"
        hint = "--outputs or --run-dir on a shared filesystem"
        needed = "checkpoints need a folder that all nodes share"
        raise agreed(ConfigError(f"{text}; {needed}", hint=hint))


def _prepare_text(config: Config, run_dir: Path, source: Path | None, texts: Sequence[str]) -> None:
    """A resumed run must see the features that it was trained on, sampling those of a cache."""
    places = [source.parent] if source is not None else []
    if config.dataset.features is not None and config.text_encoder.type == "tiny_t5":
        places.append(Path(config.dataset.features))
    target = run_dir / TINY_T5
    for made_with in (place / TINY_T5 for place in places):
        if made_with.is_dir() and not target.is_dir():
            part = target.with_name(f".tmp-{target.name}")  # whole or not at all
            shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
            shutil.copytree(made_with, part)
            put_in_place(part, target)
    make_tiny_text_encoder(config, run_dir, texts)


def _unclean(config: Config, manifest: Manifest) -> str:
    """A note where captions are lists of another format, or sampling would put them otherwise than
    training does; "" where not."""
    rows = np.unique(np.linspace(0, len(manifest) - 1, _CAPTIONS_SEEN).astype(int)).tolist()
    ends = [(text[:1], text[-1:]) for text in (manifest.texts[row].strip() for row in rows)]
    if 2 * ends.count(("[", "]")) > len(rows):
        return (
            f"{ends.count(('[', ']'))} of {len(rows)} captions looked at stand in brackets, as "
            "lists of JSON do, and training takes the brackets with them: write each caption alone"
        )
    if config.text_encoder.type != "t5":
        return ""
    try:
        unclean = sum(clean_caption(manifest.texts[row]) != manifest.texts[row] for row in rows)
    except ConfigError as error:  # it needs libraries that training does not
        return f"whether captions are as sampling would clean them was not looked at: {error}"
    if not unclean:
        return ""
    return (
        f"{unclean} of {len(rows)} captions looked at are not clean, and training takes them as "
        "they are: trainer.infer cleans prompts for a T5 (lower case, no HTML); train on what "
        "python -m trainer.data clean-captions makes, or sample with --no-clean-caption"
    )


def _features(
    config: Config, plan: DataPlan, run_dir: Path, engine: Engine, journal: Journal
) -> Features | None:
    """The cache that replaces VAE and text encoder; rank 0 checks whether it fits (collective)."""
    if config.dataset.features is None:
        return None
    folder = Path(config.dataset.features)

    def check(lives: Callable[[], None]) -> list[str]:
        features = Features(folder)
        hashes = Hashes(features.document["weight_files"], lives=lives)
        run_key = key_of(config, run_dir / TINY_T5, hashes)
        refuse_other(folder, features.key, run_key)
        features.check_files()
        features.check_rows(plan.manifest, plan.buckets)
        data, notes = config.dataset, unseen(features.key, run_key)
        if data.frame_interval > 1 and data.frame_spacing == "upstream":
            every = f"every {data.frame_interval}th frame of a clip"
            notes.append(f'features have {every}, as dataset.frame_spacing = "even" has')
        limits = config.num_workers, config.dataset.clip_timeout_s
        # Of 20,000 clips on a busy file server: longer than ranks wait for each other.
        notes += features.check_clips(plan.manifest, plan.buckets, *limits, lives=lives)
        return notes

    for note in engine.run_long_on_rank0(check):
        journal.event("note", note)
    return engine.together(lambda: Features(folder))
