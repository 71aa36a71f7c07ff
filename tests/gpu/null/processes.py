"""Processes of the campaign on the null GPU: run, and judged by what each of them counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.null import counters
from tests.gpu.null.environment import ROOT, environment
from tests.ports import free_port
from tests.rank_variables import OF_A_RANK

LIMIT_S = 600.0
FOLDER = ROOT / "build" / "null-gpu"


@dataclass(frozen=True)
class Card:
    """A null GPU that was built, and a place for what a test leaves."""

    folder: Path
    place: Path

    def run(
        self,
        *words: str | Path,
        devices: int = 1,
        ranks: int = 1,
        judged: bool = True,
        more: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`python WORDS`, with `ranks` under torchrun; no process may have launched what a card
        refuses, or have used a second card, and where `judged` all `devices` were used."""
        command = ["python", *(str(word) for word in words)]
        if ranks > 1:
            head = ["-m", "torch.distributed.run", "--master-port", str(free_port())]
            command = ["python", *head, "--nproc_per_node", str(ranks), *command[1:]]
        counted = self._new("counters")
        process = subprocess.Popen(
            command,
            env=self.environment(devices, counted) | dict(more or {}),
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{command} took over {LIMIT_S:g} s\n{err[-4000:]}") from None
        assert process.returncode == 0, f"{command}\n{out[-2000:]}\n{err[-6000:]}"
        found = self.judged(counted)
        if judged:
            used = {card for one in found.values() for card in one.devices_used()}
            assert used == set(range(devices)), f"of {devices} cards these were used: {used}"
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def program(
        self, name: str, *words: str | Path, more: Mapping[str, str] | None = None, **options: Any
    ) -> Any:
        """What a program of `programs` writes as JSON."""
        out, own = self._new(name) / "found.json", of_one_rank() | dict(more or {})
        self.run("-m", f"tests.gpu.null.programs.{name}", out, *words, more=own, **options)
        return json.loads(out.read_text())

    def started(self, *words: str | Path, counted: Path) -> subprocess.Popen[str]:
        """A process that its caller ends."""
        return subprocess.Popen(
            ["python", *map(str, words)],
            env=self.environment(1, counted) | of_one_rank(),
            cwd=self.place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self, devices: int, counted: Path) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
        inherited.pop("CUDA_VISIBLE_DEVICES", None)
        return inherited | environment(self.folder, devices=devices, counters=counted)

    def judged(self, counted: Path) -> dict[int, counters.Counters]:
        """By process. Fails for a refused launch, and where one process has used two cards."""
        found = counters.of_folder(counted)
        assert found, "no process loaded the null GPU"
        refused = {pid: one.refusal for pid, one in found.items() if one.bad}
        assert not refused, f"a card would refuse {refused}"
        several = {pid: one.devices_used() for pid, one in found.items()}
        assert all(len(used) <= 1 for used in several.values()), f"cards of a process: {several}"
        return found

    def _new(self, name: str) -> Path:
        number = 0
        while (place := self.place / f"{name}-{number}").exists():
            number += 1
        place.mkdir(parents=True)
        return place


def of_one_rank() -> dict[str, str]:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return rank | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Of a run's telemetry."""
    path = run / "telemetry.jsonl"
    lines: Sequence[str] = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Until `what()` is true. Fails when the process ends before, or after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while not what():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            error = process.stderr.read() if process.stderr is not None else ""
            raise AssertionError(f"exit code {process.returncode}: {error[-4000:]}")
        time.sleep(0.05)
