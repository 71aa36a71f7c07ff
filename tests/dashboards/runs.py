"""Runs and clusters for tests: real run directories, and a feed that holds what it is given."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dashboards.model.samples import EventSample, NodeSample, RunOpened, Sample, StepSample, Tick
from trainer.runlog.telemetry import Event, StepRecord, Writer

BEGAN = 1795269600.0


def wobble(step: int) -> float:
    """-0.5 to 0.5, the same for the same step."""
    return math.sin(step * 12.9898) * 43758.5453 % 1.0 - 0.5


def record(step: int, *, total: int = 900, step_s: float = 0.29, **fields: object) -> StepRecord:
    """A step as the demo's training has them on two small machines."""
    values: dict[str, object] = {
        "step": step,
        "steps_total": total,
        "epoch": step // 60,
        "samples": 16,
        "tokens": 16 * 64,
        "loss": 0.28 + 0.7 * math.exp(-step / 60) + 0.08 * wobble(step),
        "grad_norm": 0.9 + 0.4 * wobble(step + 1),
        "lr": 1e-3 * min(1.0, step / 50),
        "step_s": step_s * (1 + 0.1 * wobble(step + 2)),
        "seconds": {"data": 0.012, "encode": 0.03, "forward": 0.08, "backward": 0.13, "optimizer": 0.02},
        "idle_share": 0.04,
        "slowest_rank": step % 2,
        "bucket": "64px 8 f 1:1",
        "memory_bytes": 900 << 20,
        "world": 2,
        "time_s": BEGAN + 4 + step * 0.3,
    }  # fmt: skip
    return StepRecord(**{**values, **fields})  # type: ignore[arg-type]


def events(steps: int) -> list[Event]:
    return [
        Event("checkpoint", f"epoch{s // 60}-global_step{s}", {}, s, BEGAN + 4 + s * 0.3)
        for s in range(150, steps + 1, 150)
    ]


def write_run(run_dir: Path, steps: int = 479, total: int = 900) -> Path:
    """A run directory as launcher and trainer leave it."""
    run_dir.mkdir(parents=True)
    nodes = [{"name": f"demo-{i}", "slots": 1, "node_rank": i} for i in range(2)]
    (run_dir / "plan.json").write_text(json.dumps({"run_id": "x", "nodes": nodes}))
    writer = Writer(run_dir)
    marks = events(steps)
    for step in range(1, steps + 1):
        writer.write(record(step, total=total))
        while marks and marks[0].step == step:
            writer.write(marks.pop(0))
    writer.close()
    journal(run_dir, "start", "ranks meet at 127.0.0.1:29500", BEGAN)
    return run_dir


def journal(run_dir: Path, name: str, text: str, time_s: float, **fields: object) -> None:
    """Append a line of the launcher's journal."""
    line = {"event": name, "text": text, "node": None, "mono_s": 1.0, "time_s": time_s, "data": {}}
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(json.dumps({**line, **fields}) + "\n")


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """A folder in its place: to read it fails, also for root."""
    moved = file.with_name("moved")
    file.rename(moved)
    file.mkdir()
    try:
        yield
    finally:
        file.rmdir()
        moved.rename(file)


class FixedFeed:
    """Gives its samples once and then nothing; the clock is set from outside."""

    def __init__(self, nodes: Sequence[str], samples: Iterable[Sample], now_s: float) -> None:
        self.nodes, self.source = tuple(nodes), "nodes.txt"
        self.samples: list[Sample] = list(samples)
        self.now_s = now_s
        self.closed = False

    def start(self) -> None: ...

    def drain(self) -> list[Sample]:
        samples, self.samples = self.samples, []
        return samples

    def now(self) -> float:
        return self.now_s

    def reads(self) -> bool:
        return False

    def settled(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def cpu_cluster(now_s: float) -> FixedFeed:
    """Two machines without GPUs that train for three minutes, as `clusterctl demo` makes them."""
    names = ("demo-0", "demo-1")
    samples: list[Sample] = []
    for second in range(240):
        at_s = now_s - 239 + second
        busy = second >= 90
        for index, name in enumerate(names):
            samples.append(
                NodeSample(
                    node=name,
                    at_s=at_s,
                    cpu=(0.91 if busy else 0.07) + 0.1 * wobble(second * 2 + index),
                    cpus=2,
                    load1=0.3 + 2.0 * (1 - math.exp(-max(0, second - 90) / 60)),
                    memory_used_bytes=(3.4 if busy else 2.1) * 2**30,
                    memory_total_bytes=23.5 * 2**30,
                    network_bytes_s=4e6 * (1 + wobble(second)) if busy else 2e4,
                )
            )
        samples.append(Tick(at_s))
    offset = now_s - 1.2 - record(479).time_s
    samples.append(RunOpened("outputs/001-STDiT3-demo", "001-STDiT3-demo", 0.0, names, (1, 1)))
    start = Event("start", "2 ranks on 2 nodes", {}, None, BEGAN + offset)
    samples.append(EventSample(start, start.time_s, "journal"))
    for step in range(1, 480):
        one = record(step, time_s=record(step).time_s + offset)
        samples.append(StepSample(one, one.time_s))
    for event in events(479):
        moved = Event(event.name, event.text, {}, event.step, event.time_s + offset)
        samples.append(EventSample(moved, moved.time_s))
    return FixedFeed(names, samples, now_s)
