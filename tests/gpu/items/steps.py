"""Training steps of stage 1 by bucket, as `trainer.bench` makes them, and what one spends on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    from trainer.bench.trial import Spec

SHARDS = 192  # ranks of the recipe, which share the optimizer's state
ALL, NOTHING = ("--grad-checkpoint", "all"), ("--grad-checkpoint", "off")  # what is recomputed
# The recipe: blocks by our kernels on a GPU, compiled where those are not; a microbatch in as few
# parts as fit with nothing recomputed.
RECIPE: tuple[str, ...] = ("--fused-blocks", "true", "--compile", "true")
RECIPE += ("--grad-checkpoint", "auto")
COMPILED = ("--fused-blocks", "false", "--compile", "true")
EAGER = ("--fused-blocks", "false", "--compile", "false")
TINY = "16px:8"


def bench(
    options: Options,
    figures: Figures,
    bucket: str,
    *words: str,
    path: str = "ours",
    batch: int | None = None,
    warmup: int = 1,
    steps: int = 3,
    activation_budget: float | None = None,
) -> str:
    """Steps of a bucket with the options `words` of a config; each step is a figure at once.

    `activation_budget`: what share of its activations torch's partitioner may keep of a block.
    """
    if activation_budget is not None:
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = activation_budget
    spec = trial_spec(options, bucket, words, path=path, batch=batch, warmup=warmup, steps=steps)
    is_predicted = activation_budget is None
    return _measured(options, figures, spec, " ".join(words), is_predicted)


def _measured(
    options: Options, figures: Figures, spec: Spec, words: str, is_predicted: bool
) -> str:
    """The trial's figures; returns its headline."""
    import torch

    from trainer.bench.rows import rates
    from trainer.bench.trial import OURS, run_trial
    from trainer.device import name_of
    from trainer.runlog.figures import peak_flops

    marks: list[float] = []

    def progress(done: int, total: int) -> None:
        marks.append(time.perf_counter())
        if done:
            figures.add(f"step {done} of {total}", step_s=marks[-1] - marks[-2])

    measured = run_trial(spec, progress)
    patch = _patch(spec.config)
    tokens = spec.shape.batch_size * spec.shape.tokens(patch)
    peak = peak_flops(name_of(options.device), spec.config.dtype)
    found = rates(measured, tokens, peak)
    memory: dict[str, Any] = {"allocated_bytes": measured.peak_bytes}
    if options.device == "cuda":
        memory["reserved_bytes"] = torch.cuda.max_memory_reserved()
    if is_predicted and spec.path == OURS and measured.predicted_mb is not None:
        memory["predicted_bytes"] = round(measured.predicted_mb * 1e6)
    names = ("forward_s", "backward_s", "optimizer_s", "step_s", "first_s", "start_bytes")
    figures.add(
        "steps",
        bucket=spec.shape.name,
        batch=spec.shape.batch_size,
        tokens=tokens,
        path=spec.path,
        words=words,
        **{name: getattr(measured, name) for name in names},
        model_flops=measured.model_flops,
        **found,
        **memory,
    )
    mfu = "" if found["mfu"] is None else f"  MFU {found['mfu']:.1%}"
    text = f"step {measured.step_s:.3f} s{mfu}  {(found['flops_per_s'] or 0) / 1e12:.3g} TFLOP/s"
    text += f"  peak {measured.peak_bytes / 1e9:.3g} GB"
    if "predicted_bytes" in memory:
        text += f" (predicted {memory['predicted_bytes'] / 1e9:.3g})"
    if "reserved_bytes" in memory:
        text += f", reserved {memory['reserved_bytes'] / 1e9:.3g}"
    return f"{text}  first {measured.first_s:.1f} s"


def profile(options: Options, figures: Figures, bucket: str, *words: str) -> str:
    """The 25 operations of a step that take the most time, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from trainer.bench.trial import Trainee

    trainee = Trainee(trial_spec(options, bucket, words), torch.device(options.device))
    for _ in range(2):
        trainee.step()
    on_gpu = options.device == "cuda"
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        trainee.step()
    rows = [
        (
            event.key,
            event.self_device_time_total if on_gpu else event.self_cpu_time_total,
            event.count,
        )
        for event in profiler.key_averages()
    ]
    return _table(sorted(rows, key=lambda row: -row[1]), figures)


def _table(rows: list[tuple[str, float, int]], figures: Figures) -> str:
    """One figure for each of the 25 that took the most microseconds. Raises RuntimeError."""
    total = sum(microseconds for _, microseconds, _ in rows)
    if not total:
        raise RuntimeError(
            "torch's profiler recorded no event of the device: CUPTI is missing, or may not be "
            "used by this user (the driver's NVreg_RestrictProfilingToAdminUsers)"
        )
    figures.add("profile", total_ms=total / 1e3, kinds=len(rows))
    for number, (name, microseconds, count) in enumerate(rows[:25], 1):
        share = microseconds / total
        figures.add(f"{number}. {name[:120]}", ms=microseconds / 1e3, share=share, count=count)
    name, microseconds, _ = rows[0]
    return f"{total / 1e3:.0f} ms, first {name[:40]} {microseconds / total:.0%}"


def trial_spec(
    options: Options,
    bucket: str,
    words: tuple[str, ...],
    *,
    path: str = "ours",
    batch: int | None = None,
    warmup: int = 1,
    steps: int = 3,
) -> Spec:
    """A trial of a stage 1 bucket (tiny: of the demo's), as `trainer.bench` makes it."""
    from dataclasses import replace

    from trainer.bench.shapes import shapes_of
    from trainer.bench.trial import Spec
    from trainer.config import load as configuration

    words = (*RECIPE, *words)
    config = configuration.load("demo" if options.tiny else "stage1", list(words))
    (shape,) = shapes_of(config, (TINY if options.tiny else bucket,))
    if batch is not None or options.tiny:
        shape = replace(shape, batch_size=batch or 2)
    return Spec(
        config,
        shape,
        options.device,
        config.text_encoder.model_max_length,
        masked=bool(config.mask_ratios and any(config.mask_ratios.values())),
        path=path,
        shards=SHARDS,
        warmup=warmup,
        steps=steps,
        # A rehearsal traces the blocks as a compiler does, without generating code.
        backend="aot_eager" if options.tiny else "inductor",
    )


def _patch(config: Any) -> Any:
    from trainer.models.stdit_config import PRESETS, STDiT3Config

    options = {**PRESETS.get(config.model.type, {}), **config.model.options}
    return options.get("patch_size", STDiT3Config().patch_size)
