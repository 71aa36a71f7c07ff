"""The figures of a step, in one table: a field of `StepRecord` says its meaning, its unit, and
under which name W&B and TensorBoard (`tracker`) and Prometheus (`metric`) have it. Standard library
only. docs/reference/figures.md is made from this file, and so are all other places: a further
figure is a field here and its value in trainer.step_report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

_EACH = "{}"  # in a tracker's name: the part that a number of several is of
# Peaks of GPUs by their data sheets: dense matrix products, no sparsity.
# TFLOP/s by dtype and a pattern over the device's name; the first that fits counts. bf16 with fp32
# accumulation; fp32 is what the plain fp32 units do (TF32 is off in this trainer).
_PEAKS: tuple[tuple[str, float, float], ...] = (
    (r"GB200", 2500.0, 80.0),
    (r"B200", 2250.0, 75.0),
    (r"GH200|H200", 989.4, 66.9),
    (r"H100.*(PCIe|PCI-E)", 756.0, 51.0),
    (r"H100.*NVL", 835.0, 60.0),
    (r"H100|H800", 989.4, 66.9),
    (r"H20\b", 148.0, 44.0),
    (r"A100|A800", 312.0, 19.5),
    (r"A40\b", 149.7, 37.4),
    (r"A30\b", 165.0, 10.3),
    (r"A10G", 70.0, 31.2),
    (r"A10\b", 125.0, 31.2),
    (r"L40S", 362.0, 91.6),
    (r"L40\b", 181.0, 90.5),
    (r"L4\b", 121.0, 30.3),
    (r"RTX 6000 Ada", 364.0, 91.1),
    (r"RTX 5090", 209.5, 104.8),
    (r"RTX 4090", 165.2, 82.6),
    (r"RTX 3090", 71.0, 35.6),
    (r"MI355", 2500.0, 157.3),
    (r"MI325|MI300X", 1307.4, 163.4),
    (r"MI250X", 383.0, 47.9),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """What is said of a figure beside its value."""

    meaning: str
    tracker: str = ""  # name in trackers, upstream's where it has one; "" is not sent there
    unit: str = "short"  # Grafana's word for it
    metric: str = ""  # of the exporter, without "run_"; "" is not there
    panel: str = ""  # of the Grafana board; "" is not drawn
    part: str = ""  # what a figure of several numbers is split by: the label of its metric


def figure(meaning: str, tracker: str = "", *, default: Any = MISSING, **more: Any) -> Any:
    """A field of a record. `default` is that of records which earlier versions wrote."""
    return field(default=default, metadata=_about(meaning, tracker, **more))


def _about(meaning: str, tracker: str, **more: Any) -> dict[str, Figure]:
    return {"figure": Figure(meaning, tracker, **more)}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step, over all ranks. What is not known is None and nowhere shown as 0."""

    step: int = figure(
        "steps of the whole run, the first is 1", "iter", metric="step", panel="Steps"
    )
    steps_total: int = figure("where the run means to stop", metric="steps_planned", panel="Steps")
    epoch: int = figure("passes over the data so far", "epoch", metric="epoch")
    samples: int = figure("clips of this step")
    tokens: int = figure("latent tokens of this step")
    loss: float = figure("mean over ranks", "loss", metric="loss", panel="Loss")
    grad_norm: float = figure(
        "norm of the gradients before clipping",
        "global_grad_norm",
        metric="gradient_norm",
        panel="Gradient norm",
    )
    lr: float = figure(
        "learning rate", "lr", metric="learning_rate", unit="sci", panel="Learning rate"
    )
    step_s: float = figure(
        "wall time on the slowest rank, with a save before it", "step_s", unit="s"
    )
    seconds: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "time of each phase, mean over ranks", "debug/{}_time", unit="s", part="phase"
        ),
    )
    weight_norm: float | None = figure(
        "norm of the trained fp32 weights after the step",
        "weight_norm",
        default=None,
        metric="weight_norm",
        panel="Weight norm",
    )
    # (slowest - mean) / slowest of the ranks' own work, 0 to 1; on a GPU (slowest - mean) / step of
    # what they do before they wait for each other, see trainer.engine.device_clock
    idle_share: float | None = figure(
        "share of time that ranks wait for the slowest",
        "idle_share",
        default=None,
        unit="percentunit",
    )
    slowest_rank: int | None = figure(
        "the rank with most work of its own", "slowest_rank", default=None
    )
    bucket: str = figure("resolution, frames and ratio on rank 0", default="")
    flops: float = figure(
        "of the forward and backward passes of all ranks, none counted twice", default=0.0
    )
    memory_bytes: int | None = figure(
        "peak of the largest rank: allocated on its GPU, or resident",
        "memory_bytes",
        default=None,
        unit="bytes",
        metric="memory_bytes",
        panel="Memory of the run",
    )
    decoder_bytes: int | None = figure(
        "peak resident memory of the largest decoding process",
        "decoder_bytes",
        default=None,
        unit="bytes",
        metric="decoder_bytes",
        panel="Memory of the run",
    )
    world: int = figure("ranks", "ranks", default=1, metric="ranks")
    time_s: float = figure("unix time, for people; never for arithmetic between nodes", default=0.0)
    skipped: bool = figure(
        "gradients were not finite or absurd: the step has changed no weight",
        "skipped",
        default=False,
    )
    acc_step: int | None = figure("steps since this start of the trainer", "acc_step", default=None)
    attempt: int | None = figure(
        "the launcher's number of the attempt; without one, of the start", "attempt", default=None
    )
    avg_loss: float | None = figure(
        "mean of the losses of the last `log_every` steps", "avg_loss", default=None
    )
    loss_by_bucket: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "mean over the microbatches of all ranks, by resolution and frames",
            "loss_by_bucket/{}",
            metric="loss_by_bucket",
            panel="Loss by bucket",
            part="bucket",
        ),
    )
    loss_by_time: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "mean over the clips of all ranks, by bands of their times, from 0 (clean) to noise",
            "loss_by_time/{}",
            metric="loss_by_time",
            panel="Loss by time",
            part="band",
        ),
    )
    update_ratio: float | None = figure(
        "norm of the step's change over that of the weights; every `log_every` steps, at least 10",
        "update_ratio",
        default=None,
        unit="sci",
        metric="update_ratio",
        panel="Update ratio and EMA gap",
    )
    ema_gap: float | None = figure(
        "norm of weights minus average (EMA) over that of the weights; every `log_every` steps, "
        "at least 10",
        "ema_gap",
        default=None,
        unit="sci",
        metric="ema_gap",
        panel="Update ratio and EMA gap",
    )
    samples_per_s: float | None = figure(
        "clips of the step over `step_s`", "samples_per_s", default=None
    )
    tokens_per_s: float | None = figure(
        "tokens of the step over `step_s`", "tokens_per_s", default=None
    )
    mfu: float | None = figure(
        "model FLOP utilisation: `flops` over what the GPUs could do in `step_s`",
        "mfu",
        default=None,
        unit="percentunit",
        metric="mfu_ratio",
        panel="MFU",
    )
    bad_clips: int = figure(
        "clips of this step that could not be read and were replaced",
        "bad_clips",
        default=0,
        metric="bad_clips",
        panel="Bad clips",
    )
    memory_reserved_bytes: int | None = figure(
        "peak that torch has reserved on the GPU of the largest rank",
        "memory_reserved_bytes",
        default=None,
        unit="bytes",
        metric="memory_reserved_bytes",
        panel="Memory of the run",
    )


FIGURES: Mapping[str, Figure] = {one.name: one.metadata["figure"] for one in fields(StepRecord)}
# Of events: name of the event, key of its data. The losses of `validation` name themselves.
OF_EVENTS: Mapping[tuple[str, str], Figure] = {
    ("checkpoint", "seconds"): Figure(
        "from the begin of a save to its seal", "checkpoint/seconds", "s"
    ),
    ("checkpoint", "stall_s"): Figure(
        "of them, how long training waited", "checkpoint/stall_s", "s"
    ),
}


def tracked(record: StepRecord) -> dict[str, float]:
    """What trackers get of a step, by their names; without what is not known."""
    found: dict[str, float] = {}
    for name, one in FIGURES.items():
        if one.tracker:
            found |= {key: float(value) for key, value in _numbers(one, getattr(record, name))}
    return found


def tracked_of_event(event: str, data: Mapping[str, Any]) -> dict[str, float]:
    """The same of an event."""
    known = {key: one.tracker for (name, key), one in OF_EVENTS.items() if name == event}
    return {known[key]: float(value) for key, value in data.items() if key in known}


def _numbers(one: Figure, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        yield from ((one.tracker.replace(_EACH, part), number) for part, number in value.items())
    elif value is not None:
        yield one.tracker, value


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s for "bf16" or "fp32" by the driver's name of a device; None for an unknown one."""
    for pattern, bf16, fp32 in _PEAKS:
        if re.search(pattern, device_name, re.IGNORECASE):
            return 1e12 * (bf16 if dtype == "bf16" else fp32)
    return None
