"""Runs of several attempts for tests: what trainer and launcher write, at times that a test says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.runs.attempts import Account, account
from clusterctl.runs.journal import Journal, after_event, after_incident, incident_event
from tests.dashboards.runs import record
from trainer.runlog.steps import Steps, after_record
from trainer.runlog.telemetry import Event, Record, encode

BEGAN = 1_795_269_600.0


class Attempts:
    """A run as both write it; its clock is `at_s`, unix seconds."""

    def __init__(self, began_s: float = BEGAN) -> None:
        self.at_s, self.step, self.number, self.total = began_s, 0, 0, 1000
        self.telemetry: list[Record] = []
        self.events: list[Event] = []
        self.incidents: list[dict[str, Any]] = []

    def attempt(self, *, after: int = 0, load_s: float = 20.0, nodes: tuple[str, ...] = ("n1", "n2"), **data: Any) -> None:  # fmt: skip
        """The launcher begins an attempt, and its trainer starts `load_s` later."""
        self.number += 1
        place = f"epoch0-global_step{after}" if after else None
        text = f"attempt {self.number} on {','.join(nodes)}"
        said = {"attempt": self.number, "nodes": list(nodes), "spares": [], "excluded": [], "world_size": 4, "from": place}  # fmt: skip
        self.events.append(Event("attempt", text, {**said, **data}, None, self.at_s))
        self.at_s += load_s
        self.start(after)

    def start(self, after: int) -> None:
        self.step = after
        self.telemetry.append(Event("start", f"001-x at step {after}", {}, after, self.at_s))

    def train(self, steps: int, step_s: float = 1.0, **fields: Any) -> None:
        for _ in range(steps):
            self.step, self.at_s = self.step + 1, self.at_s + step_s
            made = record(self.step, total=self.total, time_s=self.at_s, **fields)
            self.telemetry.append(replace(made, step_s=step_s))

    def incident(self, cause: str, after_s: float = 5.0, node: str = "n2", rank: int = 3) -> None:
        self.at_s += after_s
        line = {"incident": "crash", "text": f"rank {rank} on {node}: {cause}", "class": cause, "node": node, "rank": rank}  # fmt: skip
        line |= {"time_s": self.at_s, "step": self.step, "attempt": self.number, "action": "restarted"}  # fmt: skip
        self.incidents.append(line)

    def restart(self, wait_s: float = 4.0) -> None:
        last = self.incidents[-1]
        data = {"attempt": self.number + 1, "wait_s": wait_s, "cause": last["class"], "node": last["node"], "restarts": self.number}  # fmt: skip
        self.events.append(
            Event("restart", f"restarting in {wait_s:g} s: {last['text']}", data, None, self.at_s)
        )
        self.at_s += wait_s

    def end(self, exit_code: int, text: str = "all ranks have ended well") -> None:
        self.events.append(Event("end", text, {"exit_code": exit_code}, None, self.at_s))

    def incident_events(self) -> list[Event]:
        found = [incident_event(json.dumps(line)) for line in self.incidents]
        return [event for event in found if event is not None]

    def account(self) -> Account:
        steps, journal = Steps(), Journal()
        for one in self.telemetry:
            steps = after_record(steps, one)
        for event in self.events:
            journal = after_event(journal, event)
        for event in self.incident_events():
            journal = after_incident(journal, event)
        return account(steps, journal)

    def write(self, run_dir: Path) -> Path:
        """The files of a run directory."""
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "telemetry.jsonl").write_text("".join(f"{encode(one)}\n" for one in self.telemetry))  # fmt: skip
        lines = [
            {"event": one.name, "text": one.text, "node": None, "mono_s": 1.0, "time_s": one.time_s, "data": one.data}
            for one in self.events
        ]  # fmt: skip
        _write_lines(run_dir / "events.jsonl", lines)
        _write_lines(run_dir / "incidents.jsonl", self.incidents)
        nodes = [{"name": name, "slots": 2, "node_rank": i} for i, name in enumerate(("n1", "n2"))]
        (run_dir / "plan.json").write_text(json.dumps({"run_id": "x", "nodes": nodes}))
        return run_dir


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def three_attempts() -> Attempts:
    """Killed at step 150, hung at 120, back on a spare from 100 and at work in step 200."""
    run = Attempts()
    run.attempt(spares=["n3"])
    run.train(150)
    run.incident("signal-9")
    run.restart()
    run.attempt(after=100, spares=["n3"])
    run.train(20)
    run.incident("hang-data", after_s=60.0, node="n1", rank=0)
    run.restart(wait_s=8.0)
    run.attempt(after=100, nodes=("n1", "n3"), excluded=[{"node": "n2", "why": "two crashes"}])
    run.train(100)
    return run
