"""Run directories as trainer and launcher leave them, with attempts that end as a test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.dashboards.runs import journal, record
from trainer.config.load import load, to_dict
from trainer.runlog.telemetry import Event, Writer

BEGAN = 1_795_000_000.0
MB = 10**6


class Run:
    """A run directory that grows; its clock is `at_s`, unix seconds."""

    def __init__(self, run_dir: Path, *overrides: str, world: int = 2, began_s: float = BEGAN) -> None:  # fmt: skip
        self.path, self.world, self.at_s, self.step = run_dir, world, began_s, 0
        self.total = 1000  # steps
        run_dir.mkdir(parents=True)
        document = {"schema": 1, "config": to_dict(load("demo", overrides))}
        (run_dir / "config.json").write_text(json.dumps(document))
        self._writer = Writer(run_dir)

    def start(self, at_step: int | None = None) -> None:
        self.step = self.step if at_step is None else at_step
        self.event("start", data={"world": self.world})

    def train(self, steps: int, step_s: float = 2.0, **fields: Any) -> None:
        for _ in range(steps):
            self.step, self.at_s = self.step + 1, self.at_s + step_s
            own = {"step_s": step_s, "world": self.world, "time_s": self.at_s, "total": self.total}
            self._writer.write(record(self.step, **{**own, **fields}))

    def event(self, name: str, text: str = "", data: dict[str, Any] | None = None) -> None:
        self._writer.write(Event(name, text, data or {}, self.step, self.at_s))

    def save(self, stall_s: float = 0.5, seconds: float = 8.0, each: int = MB) -> Path:
        """The event and the folder of a checkpoint: model 1, ema 2, optimizer 6 times `each` bytes."""
        path = self.path / f"epoch0-global_step{self.step}"
        self.event("checkpoint", path.name, {"seconds": seconds, "stall_s": stall_s})
        sizes = {"model/model.safetensors": each, "ema/model.safetensors": 2 * each}
        sizes |= {"optimizer/rank-0.safetensors": 6 * each, "sampler.json": 1000}
        files = {name: {"size": size, "sha256": "0" * 64} for name, size in sizes.items()}
        path.mkdir()
        (path / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
        return path

    def fail(self, after_s: float, text: str = "rank 1 on n1: exit code 1", code: int = 1) -> None:
        """The launcher notices an end `after_s` seconds after the last step."""
        self.at_s += after_s
        journal(self.path, "failure", text, self.at_s, data={"exit_code": code})

    def incident(self, text: str = "no step for 600 s", kind: str = "hang") -> None:
        line = {"incident": kind, "text": text, "time_s": self.at_s, "step": self.step}
        with (self.path / "incidents.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def failing_run(run_dir: Path, times: int = 4, **options: Any) -> Run:
    """Every attempt trains 900 s, saves twice, is found dead after 10 s and back after 60 s."""
    run = Run(run_dir, "--ckpt-every", "100", **options)
    run.total = 5000
    run.start()
    for _ in range(times):
        run.train(300)
        run.save()
        run.train(150)
        run.fail(10.0)
        run.at_s += 58.0
        run.start(run.step - 150)
        run.train(1)
    return run
