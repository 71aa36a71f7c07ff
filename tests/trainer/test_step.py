"""A step on a GPU waits for the device once: a simulated device under the real step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.engine.simulated_device import Device
from tests.trainer.models.stdit_cases import small_model
from trainer import step as step_module
from trainer.config.load import Config
from trainer.data.loader.microbatch import Failures
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor
from trainer.diffusion.draws import Drawing, Given
from trainer.diffusion.frame_masks import build_masks
from trainer.diffusion.rectified_flow import RectifiedFlow
from trainer.engine.device_clock import DeviceClock
from trainer.models.activation_checkpointing import GradCheckpoint
from trainer.optim.ema import EMA
from trainer.runlog.telemetry import Clock, StepRecord
from trainer.step import Share, step
from trainer.step_report import StepReport, by_time

LIMIT = 5.0  # of the gradient norm


class SimulatedEngine:
    """One rank whose launches take the device's time; only `read` synchronises."""

    rank, world, is_sharded, waited_s = 0, 1, True, 0.0
    forward_is_local, backward_is_timed = True, True

    def __init__(self, device: Device) -> None:
        self.simulated, self.device = device, torch.device("cpu")
        self.read_at_ms: list[float] = []

    def step(self, limit: float | None) -> Tensor:
        assert limit == LIMIT
        self.simulated.launch(30)
        return torch.tensor(2.0, dtype=torch.float64)

    def master_params(self) -> list[tuple[str, Tensor]]:
        return [("w", torch.full((4,), 3.0))]

    def measured_step(self, limit: float | None) -> tuple[Tensor, Tensor]:
        return self.step(limit), torch.tensor(0.09, dtype=torch.float64)

    def read(self, *values: Tensor) -> list[list[float]]:
        self.simulated.synchronise()
        self.read_at_ms.append(self.simulated.host_ms)
        return [value.reshape(-1).tolist() for value in values]

    def gather(self, values: Iterable[float]) -> list[list[float]]:
        return [list(values)]


def run_of(
    device: Device, clock: Clock, records: list[StepRecord], told: list[tuple[Any, ...]]
) -> Any:
    def nothing(*_: Any) -> None: ...

    config = Config(accumulation_steps=2)
    ema = EMA([("w", torch.full((4,), 2.0))], 0.5)
    buckets = Buckets.parse({"144p": {1: (1.0, 2)}})
    about = {"is_sharded": True, "on_device": True, "first": 0, "attempt": 3, "peak_flops": 1e3}
    report = StepReport(config, buckets, **about)  # type: ignore[arg-type]
    saver = SimpleNamespace(is_copying=False, status=0.0, advance=lambda _: [])
    return SimpleNamespace(
        engine=SimulatedEngine(device),
        clock=clock,
        config=config,
        schedule=SimpleNamespace(lr=0.1, step=lambda: None),
        ema=ema,
        guards=SimpleNamespace(
            begin=lambda *_: LIMIT, is_skipped=lambda norm: norm > LIMIT, end=nothing
        ),
        journal=SimpleNamespace(step=records.append),
        loader=SimpleNamespace(cursor=Cursor(), cells_of_step=lambda: np.array([[0, 1]])),
        plan=SimpleNamespace(buckets=buckets),
        report=report,
        slow_ranks=SimpleNamespace(asks=0.0, after=lambda *step: told.append(step)),
        saver=saver,
        failed_saves=SimpleNamespace(take=lambda work, _: work()),
        step=0,
        steps_total=1,
        samples=0,
        stop_requested=False,
    )


def test_a_step_reads_its_events_after_the_one_wait_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, records, told = Device(), list[StepRecord](), list[tuple[Any, ...]]()
    clock = DeviceClock(None, make_event=device.event)

    def microbatch(_run: Any, _batch: Any, share: Share, _left: int) -> None:
        with clock.phase("data", 1):
            device.wait_on_host(2)
        with clock.phase("forward", 1):
            device.launch(100)
        with clock.phase("backward", 1):
            device.launch(200)
            clock.mark_computed()
            device.launch(10)
        share.losses.append(torch.tensor(0.25, dtype=torch.float64))
        share.by_time = share.by_time + by_time(
            torch.full((2,), 0.5), torch.tensor([0.0, 999.0]), 1000
        )
        share.figures.flops += 50.0

    monkeypatch.setattr(step_module, "_microbatch", microbatch)
    run = run_of(device, clock, records, told)
    batches: Any = iter([object(), object()])
    assert step(run, batches) is False
    assert len(run.engine.read_at_ms) == 1
    (record,) = records
    assert record.loss == 0.5
    assert record.grad_norm == 2.0
    assert record.weight_norm == pytest.approx(6.0)
    assert record.update_ratio == pytest.approx(0.3 / 6.0)
    # the average moves from 2 to 2.9 before the first step's decay of 0.1 has passed
    assert record.ema_gap == pytest.approx(0.1 * 2.0 / 6.0)
    assert record.loss_by_bucket == {"144p 1f": 0.5}
    assert record.loss_by_time == {"0-250": 0.5, "750-1000": 0.5}
    assert (record.attempt, record.acc_step, record.avg_loss) == (3, 1, 0.5)
    assert record.mfu == pytest.approx(100.0 / (1e3 * record.step_s))
    expected = {"data": 0.002, "forward": 0.2, "backward": 0.42, "optimizer": 0.03}
    assert {k: v for k, v in record.seconds.items() if v} == pytest.approx(expected, abs=1e-4)
    assert sum(record.seconds.values()) == pytest.approx(run.engine.read_at_ms[0] / 1e3)
    assert clock.own_s == pytest.approx(0.602, abs=1e-4)
    assert (record.idle_share, record.slowest_rank) == (0.0, 0)
    # without the reduction, which waits for other ranks
    ((number, (own,), _),) = told
    assert number == 1
    assert (own.data, own.own_forward) == pytest.approx((0.002, 0.2), abs=1e-4)
    assert own.own_backward == pytest.approx(0.4, abs=3e-3)


def test_the_loss_stays_on_the_device_until_the_end_of_the_step() -> None:
    """The real `_microbatch` on torch's device without memory, where no number can be read."""
    meta = torch.device("meta")
    passed: list[Tensor] = []
    config = SimpleNamespace(patch_size=(1, 1, 1))

    def losses(*_: Any, **__: Any) -> Tensor:
        return torch.ones(3, device=meta, requires_grad=True)

    run: Any = SimpleNamespace(
        engine=SimpleNamespace(
            device=meta,
            passing=lambda is_last: contextlib.nullcontext(),
            backward=lambda loss, is_last: passed.append(loss),
        ),
        clock=Clock(None),
        step=0,
        config=SimpleNamespace(seed=1, accumulation_steps=2),
        parts=SimpleNamespace(
            flow=SimpleNamespace(training_losses=losses, num_timesteps=1000),
            model=SimpleNamespace(config=config, grad_checkpoint=GradCheckpoint()),
            vae=None,
            text=None,
        ),
        model=None,
        drawing=SimpleNamespace(
            seed_for_encoding=lambda _: None,
            take=lambda *_: Given(None, torch.zeros(3, device=meta), torch.zeros(3)),
        ),
        loader=SimpleNamespace(coming=lambda: None),
    )
    batch: Any = SimpleNamespace(
        microbatch=(0, 1), bucket="16px", bad=[], failures=Failures(), decoder_bytes=0
    )
    share = Share()
    with pytest.MonkeyPatch.context() as patch:
        latent = torch.zeros(3, 4, 2, 2, 2)
        patch.setattr(step_module, "encode", lambda *_: (latent, {"y": torch.zeros(3, 1, 5, 8)}))
        patch.setattr(step_module, "forward_flops", lambda *_: 1.0)
        step_module._microbatch(run, batch, share, 1)
        step_module._microbatch(run, batch, share, 0)
    assert len(passed) == 2
    assert isinstance(share.by_time, Tensor)
    for value in (*share.losses, share.by_time):
        assert (value.device, value.dtype) == (meta, torch.float64)
    assert share.figures.samples == 6
    assert math.isclose(share.figures.flops, 6.0)


@pytest.mark.parametrize(("seed", "drop_path"), [(1, 0.0), (1, 0.7), (2, 0.7), (3, 0.7)])
def test_a_microbatch_in_parts_gives_the_same_loss_and_gradients(
    seed: int, drop_path: float
) -> None:
    """Captions and branches are dropped, frames given: each clip's draws are the same either way,
    also of blocks that are recomputed."""
    found = []
    for at_once, every in ((5, 0), (2, 0), (2, 1)):
        model = small_model(class_dropout_prob=0.5, drop_path=drop_path).train()
        model.grad_checkpoint = GradCheckpoint(every=every, at_once={(3, 4, 4): at_once})
        flow = RectifiedFlow()
        passed: list[str] = []

        def backward(loss: Tensor, is_last: bool, passed: list[str] = passed) -> None:
            passed.append("whole")
            loss.backward()

        def backward_here(loss: Tensor, passed: list[str] = passed) -> None:
            passed.append("here")
            loss.backward()

        engine = SimpleNamespace(
            device=torch.device("cpu"),
            passing=lambda is_last: contextlib.nullcontext(),
            backward=backward,
            backward_here=backward_here,
        )
        generator = torch.Generator().manual_seed(1)
        config = model.config
        latent = torch.randn(5, config.in_channels, 3, 4, 4, generator=generator)
        sizes = dict.fromkeys(("fps", "height", "width", "num_frames"), torch.full((5,), 16.0))
        y = torch.randn(5, 1, 6, config.caption_channels, generator=generator)
        mask = torch.ones(5, 6, dtype=torch.int64)
        conditions = {"y": y, "mask": mask, **sizes}
        masks = build_masks({"random": 0.7})
        drawing = Drawing(seed, flow, masks, engine.device, model.draw_kept)
        run: Any = SimpleNamespace(
            engine=engine,
            clock=Clock(None),
            step=0,
            config=SimpleNamespace(seed=1, accumulation_steps=1),
            parts=SimpleNamespace(flow=flow, model=model, vae=None, text=None),
            model=model,
            drawing=drawing,
            loader=SimpleNamespace(coming=lambda: None),
        )
        batch: Any = SimpleNamespace(
            microbatch=(0, 1), bucket="16px", bad=[], failures=Failures(), decoder_bytes=0
        )
        share = Share()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_module, "encode", lambda *_, z=latent, c=conditions: (z, c))
            step_module._microbatch(run, batch, share, 0)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append((share.losses[0], share.by_time, gradients, passed, share.figures.samples))
    (loss, bands, gradients, passed, samples), *others = found
    assert passed == ["whole"]
    for other in others:
        assert other[3] == ["here", "here", "whole"]
        assert samples == other[4] == 5
        pairs = [(other[0], loss), (torch.as_tensor(other[1]), torch.as_tensor(bands))]
        pairs += zip(other[2], gradients, strict=True)
        for in_parts, whole in pairs:
            torch.testing.assert_close(in_parts, whole, rtol=2e-5, atol=2e-5)  # fp32
