"""Running gloo jobs for tests, their ranks spread over the names of nodes that are this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from clusterctl.jobs.processes import Pick
from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.stacks.shared_lock import SharedLock
from tests.ports import free_port

HERE = Path(__file__).parent
REPO = HERE.parents[2]


class GlooJob:
    """Ranks of gloo_trainer.py; `order` tells them what to do wrong."""

    script = "gloo_trainer.py"

    def __init__(self, folder: Path, nodes: list[str], world: int, workers: int = 2, more: dict[int, dict[str, str]] | None = None) -> None:  # fmt: skip
        self.folder, self.world = folder, world
        self.run_id = f"stacks-{os.getpid()}-{folder.name}"
        self.nodes = [nodes[rank * len(nodes) // world] for rank in range(world)]
        self.beats = folder / "beats"
        self.beats.mkdir()
        os.mkfifo(folder / "gil")
        os.mkfifo(folder / "fifo")
        self.order("go")
        port = str(free_port())
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / self.script), str(folder)],
                env={
                    **os.environ, "PYTHONPATH": str(REPO), "RANK": str(rank), "WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                    "WORKERS": str(workers), "GLOO_SOCKET_IFNAME": "lo",
                    "CLUSTERCTL_RUN": self.run_id, "CLUSTERCTL_NODE": self.nodes[rank],
                    "CLUSTERCTL_HEARTBEATS": str(self.beats), **(more or {}).get(rank, {}),
                },
                stdout=(folder / f"{rank}.log").open("wb"), stderr=subprocess.STDOUT, start_new_session=True,
            )
            for rank in range(world)
        ]  # fmt: skip

    @property
    def pick(self) -> Pick:
        return Pick((self.run_id,), user=None)

    def wait_until_up(self) -> None:
        wait_until(
            lambda: all((self.folder / f"up-{rank}").exists() for rank in range(self.world)), 90
        )

    def order(self, text: str) -> None:
        part = self.folder / "order.part"
        part.write_text(text)
        part.replace(self.folder / "order")

    def beat(self, rank: int) -> dict:
        return json.loads((self.beats / f"{rank}.json").read_text())

    def phase_of(self, rank: int, phase: str, still_s: float = 0.2) -> bool:
        """Whether a rank has been in a phase for a while: a fault has taken hold."""
        beat = self.beat(rank)
        return beat["phase"] == phase and time.monotonic() - beat["mono_s"] > still_s

    def still(self, rank: int, for_s: float) -> bool:
        """Whether a rank has not beaten for a while."""
        return time.monotonic() - self.beat(rank)["mono_s"] > for_s

    def block(self, rank: int) -> None:
        """From now on every `__getitem__` of a rank blocks."""
        (self.folder / f"block-{rank}").touch()

    def unblock(self, rank: int) -> None:
        (self.folder / f"block-{rank}").unlink()
        self.open_fifo()

    def open_fifo(self) -> None:
        """Let whoever waits in the fifo go on; opening it fails when nobody does."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.folder / "fifo", os.O_WRONLY | os.O_NONBLOCK))

    def workers(self, rank: int) -> list[int]:
        """Loader processes of a rank in order of their number."""
        children = Path(f"/proc/{self.ranks[rank].pid}/task/{self.ranks[rank].pid}/children")
        return sorted(int(pid) for pid in children.read_text().split())

    def end(self) -> None:
        for rank in self.ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            rank.wait()


class DdpJob(GlooJob):
    """Ranks of ddp_trainer.py, a standard program: all that it says is its log."""

    script = "ddp_trainer.py"

    def __init__(self, folder: Path, nodes: list[str], world: int, more: dict[int, dict[str, str]]) -> None:  # fmt: skip
        self._still: dict[int, tuple[tuple[int, int], float]] = {}
        self._held = SharedLock(folder / "held", fresh=True)
        self._held.take()
        super().__init__(folder, nodes, world, more=more)

    def wait_until_up(self) -> None:
        wait_until(lambda: all(self.steps(rank) > 2 for rank in range(self.world)), 90)

    def steps(self, rank: int) -> int:
        text = (self.folder / f"{rank}.log").read_text()
        assert "Traceback" not in text, text
        return text.count("step ")

    def begin(self, fault: str, rank: int) -> None:
        (self.folder / f"{fault}-{rank}").touch()

    def finish(self, fault: str, rank: int) -> None:
        """End a fault and wait until all ranks take steps again."""
        (self.folder / f"{fault}-{rank}").unlink()
        before = [self.steps(rank) for rank in range(self.world)]
        self._held.give()

        def has_stepped() -> bool:
            self.open_fifo()
            return all(self.steps(rank) > before[rank] + 2 for rank in range(self.world))

        wait_until(has_stepped, 60)
        self._held.take()

    def rested_s(self, rank: int) -> float:
        """How long a rank's main thread has been seen neither to run nor to wake."""
        folder = Path(f"/proc/{self.ranks[rank].pid}/task/{self.ranks[rank].pid}")
        words = (folder / "stat").read_text().rpartition(")")[2].split()
        switches = (folder / "status").read_text().rpartition("\nvoluntary_ctxt_switches:")[2].split()[0]  # fmt: skip
        now = (int(words[11]) + int(words[12]), int(switches))
        if self._still.get(rank, (None, 0.0))[0] != now:
            self._still[rank] = (now, time.monotonic())
        return time.monotonic() - self._still[rank][1]
