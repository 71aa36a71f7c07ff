"""A training job of three ranks on three lab nodes, and what can be done to it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clusterctl.launch.harness import command_line, parent, variables
from tests.lab.clip_mount import ClipMount
from tests.lab.cluster import Lab
from tests.lab.node import LabNode

HERE = Path(__file__).parent
REPO = HERE.parents[1]
WORLD = 3
BEGINS_S, SETTLES_S, ENDS_S = 240.0, 60.0, 60.0
DUMP_S = 120.0
REST_S = 2.0  # without a step of any rank: it hangs
PORT = 29671
DISK_BYTES = 256 << 20


class Late(Exception):
    """Something has not happened in time; the text says what."""


@dataclass(frozen=True)
class Loader:
    """How the program's DataLoader is made."""

    name: str
    workers: int = 2
    variables: Mapping[str, str] = field(default_factory=dict)


LOADERS = {
    one.name: one
    for one in (
        Loader("none", 0),
        Loader("workers"),
        Loader("pinned", 2, {"PIN": "1"}),
        Loader("persistent", 2, {"PERSISTENT": "1"}),
    )
}


class Site:
    """A context manager: three nodes, each with a file system for its clips that can hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounts: list[ClipMount] = []

    def __enter__(self) -> Site:
        with contextlib.ExitStack() as stack:
            for rank in range(WORLD):
                source = self.folder / f"clips-{rank}"
                source.mkdir(parents=True)
                (source / "clip.bin").write_bytes(os.urandom(64))
                self.mounts.append(
                    stack.enter_context(ClipMount(source, self.folder / f"mount-{rank}"))
                )
            self._make_disk(stack)
            paths = [Path(one) for one in sys.path if Path(one).is_dir()]
            lab = Lab(WORLD, self.folder / "lab", shared=[self.folder, *paths])
            self.lab = stack.enter_context(lab)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make_disk(self, stack: contextlib.ExitStack) -> None:
        """What ranks save is on a file system of its own, which can be frozen."""
        self.disk, image = self.folder / "disk", self.folder / "disk.img"
        self.disk.mkdir()
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(self.disk))
        stack.callback(_run, "umount", "-l", str(self.disk))

    @contextlib.contextmanager
    def frozen_disk(self) -> Iterator[None]:
        """Whoever writes to it sleeps in the kernel."""
        _run("fsfreeze", "-f", str(self.disk))
        try:
            yield
        finally:
            _run("fsfreeze", "-u", str(self.disk))


class Job:
    """A context manager; inside it all ranks take steps."""

    def __init__(self, site: Site, folder: Path, program: str, loader: Loader) -> None:
        self.site, self.lab, self.folder, self.loader = site, site.lab, folder, loader
        self.program = f"{program}.py"
        self.out = site.disk / folder.parent.name / folder.name
        self.may_end: set[int] = set()  # ranks
        self._ranks: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        for path in (self.out, self.folder):
            path.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            for rank in range(WORLD):
                self.data(rank).mkdir()
                os.mkfifo(self.data(rank) / "stream")
                self.read_from(rank, self.site.folder / f"mount-{rank}" / "clip.bin")
                self._ranks.append(self._start(rank))
            self.until("the first steps", lambda: min(map(self.steps, range(WORLD))) > 7, BEGINS_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        node = self.node(rank)
        env = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
        env |= {
            "RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "NODE_RANK": str(rank),
            "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(PORT),
            "MASTER_ADDR": self.node(0).address, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
            "DATA": str(self.data(rank)), "OUT": str(self.out), "WORKERS": str(self.loader.workers),
            "ACCELERATE_USE_CPU": "1", "DS_ACCELERATOR": "cpu", **dict(self.loader.variables),
        }  # fmt: skip
        inside = ["nsenter", "-t", str(node.pid), "-m", "-n", "-p", "-u", "--"]
        with self.log(rank).open("wb") as log:
            return subprocess.Popen(
                [*inside, sys.executable, str(HERE / "programs" / self.program)],
                env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _end(self) -> None:
        for rank in range(WORLD):
            for pid in self._of(rank):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._ranks:
            process.kill()
            process.wait()

    # What is done.

    def read_from(self, rank: int, path: Path) -> None:
        """The clip of a rank is this file from now on."""
        part = self.data(rank) / "part"
        part.symlink_to(path)
        part.replace(self.data(rank) / "clip.bin")

    # What is seen.

    def node(self, rank: int) -> LabNode:
        return self.lab.nodes[rank]

    def data(self, rank: int) -> Path:
        return self.folder / f"data-{rank}"

    def log(self, rank: int) -> Path:
        return self.folder / f"{rank}.log"

    def steps(self, rank: int) -> int:
        return self.log(rank).read_bytes().count(b"step ")

    def rank_pid(self, rank: int) -> int:
        """As seen from here. Raises `Late` where it has ended."""
        own = self._of(rank)
        found = [pid for pid in own if parent(pid) not in own]
        if not found:
            raise Late(f"rank {rank} has ended: {self.log(rank).read_text()[-400:]}")
        return found[0]

    def workers(self, rank: int) -> list[int]:
        """Loader processes."""
        own = self.rank_pid(rank)
        return [pid for pid in self._of(rank) if parent(pid) == own]

    def _of(self, rank: int) -> list[int]:
        name = self.program.encode()
        return [
            pid
            for pid in self.node(rank).processes()
            if name in command_line(pid)
            and variables(pid).get("RANK") == str(rank)
            and not command_line(pid).startswith(b"nsenter")
        ]

    def until(self, what: str, condition: Callable[[], Any], seconds: float) -> None:
        """Raises `Late`, at once where a rank has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Late(f"{what}: not within {seconds:g} s")
            for rank, process in enumerate(self._ranks):
                if process.poll() is not None and rank not in self.may_end:
                    raise Late(f"{what}: rank {rank} ended: {self.log(rank).read_text()[-400:]}")
            time.sleep(0.05)

    def until_it_rests(self) -> None:
        """No rank takes a step any more."""
        seen, since = None, time.monotonic()

        def rests() -> bool:
            nonlocal seen, since
            now = [self.steps(rank) for rank in range(WORLD)]
            if now != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since > REST_S

        self.until("the hang", rests, SETTLES_S)

    def until_it_goes_on(self) -> None:
        before = [self.steps(rank) for rank in range(WORLD)]
        self.until(
            "steps after the fault",
            lambda: all(self.steps(rank) > before[rank] + 2 for rank in range(WORLD)),
            ENDS_S,
        )

    def dump(self) -> dict[str, Any]:
        return dump(self.lab, self.program)


def dump(lab: Lab, program: str) -> dict[str, Any]:
    """What `dump-stacks` says, with the verdict's exit code as `code`."""
    words = ["dump-stacks", str(lab.hostfile), "--match", program]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "clusterctl", *words, "--json", "--interval", "1"],
            cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=DUMP_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Late(f"dump-stacks: not within {DUMP_S:g} s") from None
    try:
        return {**json.loads(done.stdout), "code": done.returncode}
    except ValueError:
        raise Late(f"dump-stacks: {done.stderr.strip()[-300:]}") from None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)
