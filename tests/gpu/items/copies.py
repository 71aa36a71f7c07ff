"""What runs beside a step: the saver's copy and activations that wait on the host."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.gpu.items.steps import EAGER, trial_spec
from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    import torch

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"  # hardware queues; ColossalAI sets 1
COPIED_BYTES = 6 << 30
OFFLOADED, STAYING = 4, 2  # the last blocks that are kept; offloading leaves two on the device
CLIPS = 2


def beside_steps(options: Options, figures: Figures) -> str:
    """Steps of 360p:51 alone, beside a copy of a rank's state, and with 4 blocks on the host."""
    import torch

    from trainer.bench.trial import Trainee
    from trainer.models.activation_checkpointing import GradCheckpoint

    device = torch.device(options.device)
    words = EAGER if options.tiny else ()  # a rehearsal need not compile for it
    spec = trial_spec(options, "360p:51", words, batch=CLIPS)
    trainee = Trainee(spec, device)
    queues = os.environ.get(VARIABLE, "default")
    alone_s = _median_step(trainee)
    figures.add("step alone", step_s=alone_s, queues=queues)
    saved = figures.attempt("copy beside steps", lambda: _copy_beside(trainee, device, options))

    depth = trainee.model.config.depth
    first = max(0, 2 * depth - OFFLOADED - STAYING)
    how = GradCheckpoint(at_least={spec.shape.latent: first})
    kept: dict[str, dict[str, Any]] = {}
    for name, offload in (("kept", False), ("on the host", True)):

        def work(offload: bool = offload) -> dict[str, Any]:
            trainee.model.enable_grad_checkpoint(how, offload)
            if options.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            step_s = _median_step(trainee)
            peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
            return {"step_s": step_s, "peak_bytes": peak, "queues": queues}

        kept[name] = figures.attempt(f"{OFFLOADED} blocks {name}", work) or {}
    text = f"{queues} queues: step {alone_s:.3f} s alone"
    if saved is not None:
        text += f", {saved['step_s']:.3f} beside a copy at {saved['bytes_per_s'] / 1e9:.3g} GB/s"
    parts = [f"{found['step_s']:.3f} {name}" for name, found in kept.items() if found]
    return f"{text}; {OFFLOADED} blocks {', '.join(parts)}"


def _median_step(trainee: Any, count: int = 2) -> float:
    trainee.step()
    return statistics.median(sum(trainee.step()) for _ in range(count))


def _copy_beside(trainee: Any, device: torch.device, options: Options) -> dict[str, Any]:
    """The saver's own copy, into pinned memory that is there already, while steps go on."""
    from trainer.checkpoint.staging_buffer import PendingCopy, StagingBuffer

    tensors = _state(trainee, 1 << 20 if options.tiny else COPIED_BYTES)
    buffer = StagingBuffer(device)
    begin = time.perf_counter()
    buffer.copy(PendingCopy(tensors))  # makes the pinned memory
    made_s = time.perf_counter() - begin
    size = sum(tensor.nbytes for tensor in tensors.values())
    _, alone_s = _timed(lambda: buffer.copy(PendingCopy(tensors)))
    copied: list[float] = []
    ready = PendingCopy(tensors)
    thread = threading.Thread(target=lambda: copied.append(_timed(lambda: buffer.copy(ready))[1]))
    thread.start()
    steps = []
    while thread.is_alive() or not steps:
        steps.append(sum(trainee.step()))
    thread.join()
    return {
        "step_s": steps[0],
        "steps": len(steps),
        "copy_s": copied[0],
        "copy_alone_s": alone_s,
        "bytes_per_s": size / copied[0],
        "copied_bytes": size,
        "tensors": len(tensors),
        "pinned_s": made_s,
    }


def _state(trainee: Any, most_bytes: int) -> dict[str, torch.Tensor]:
    """Weights, and fp32 tensors of their shapes as masters and moments are, up to `most_bytes`."""
    found: dict[str, Any] = {}
    total = 0
    for kind in ("weights", "master", "exp_avg", "exp_avg_sq"):
        for name, weight in trainee.model.named_parameters():
            tensor = weight.detach() if kind == "weights" else weight.detach().float()
            if total + tensor.nbytes > most_bytes:
                return found
            total += tensor.nbytes
            found[f"{kind}/{name}"] = tensor
    return found


def _timed(work: Callable[[], object]) -> tuple[object, float]:
    begin = time.perf_counter()
    return work(), time.perf_counter() - begin
