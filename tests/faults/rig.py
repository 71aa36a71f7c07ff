"""One run of a campaign: lab nodes, a launch by the command line, and what can be seen of it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE
from clusterctl.payload.files.private import own_folder
from tests.clusterctl.launch.harness import ranks_of, read_lines, tagged
from tests.faults.answers import Answers
from tests.faults.answers import why_not as why_no_answers
from tests.faults.setting import Setting
from tests.faults.terminal import Terminal
from tests.lab.clip_mount import ClipMount
from tests.lab.cluster import Lab
from tests.lab.node import LabNode
from trainer.runlog import telemetry
from trainer.runlog.telemetry import StepRecord

REPO = Path(__file__).parents[2]
BATCH = 4  # clips of a rank and step
CLIPS = 192  # 48 microbatches of 4 in an epoch: whole steps for 1, 2, 3, 4, 6, 8, 12, 16 ranks
CODE = ("checks", "clusterctl", "dashboards", "trainer")
CONFIG = f"""
bucket_config = {{"16px": {{8: (1.0, {BATCH})}}}}
model = dict(hidden_size=32, num_heads=2, depth=1)
dataset = dict(cache_decoded_mb=0, clip_timeout_s=3.0)
warmup_steps = 2
log_every = 1
ckpt_every = 10
"""
BEGINS_S, ENDS_S = 90.0, 180.0  # with 4 ranks
LOST = 3  # exit code of a view whose supervisor has ended
PACE_S = 0.1


class Late(Exception):
    """Something has not happened in time; the text says what."""


@dataclass
class Round:
    """A context manager: inside it the nodes run and `launch` begins the run."""

    directory: Path
    clips: Path  # the folder that its own clips are copied from
    setting: Setting
    seed: int = 0
    begun_s: float = 0.0  # unix time of the fault
    notes: list[str] = field(default_factory=list)  # what else is wrong, seen by a fault
    made: list[str] = field(default_factory=list)  # what was done, for people
    exit_code: int | None = None  # of the last command that looked at the run
    other: Any = None  # what a fault has prepared for itself
    stays: bool = False  # where its supervisor has ended, the run is attached to again

    def __post_init__(self) -> None:
        self._commands: list[subprocess.Popen[bytes]] = []
        self._repairs: list[Callable[[], object]] = []
        self._stack = contextlib.ExitStack()
        self.outputs = self.directory / "outputs"
        self.nodes_outputs = self.outputs  # the same as the nodes see it
        self.code = REPO
        self.head_env: dict[str, str] = {}  # for the commands that follow
        self.faults = self.directory / "faults"
        self.data = self.directory / "clips"  # a fault may change them
        self.csv = self.data / "digits.csv"

    def __enter__(self) -> Round:
        shutil.copytree(self.clips, self.data)
        for folder in (self.outputs, self.faults / "samples", self.faults / "orders"):
            folder.mkdir(parents=True)
        if self.setting.own_code:
            self.code = self.directory / "code"
            copy_code(self.code)
        base = f"_base_ = {str(self.code / 'trainer/configs/demo.py')!r}\n"
        (self.directory / "campaign.py").write_text(base + CONFIG + self.setting.config)
        with contextlib.ExitStack() as stack:
            if self.setting.outputs_mb is not None:
                _mount_disk(stack, self.outputs, self.setting.outputs_mb)
            if self.setting.nodes_mb is not None:
                self.nodes_outputs = self.directory / "nodes-outputs"
                self.nodes_outputs.mkdir()
                _mount_disk(stack, self.nodes_outputs, self.setting.nodes_mb)
            if self.setting.clips_hang:
                aside = self.data.rename(self.directory / "clips-aside")
                shutil.copytree(aside, self.data, ignore=shutil.ignore_patterns("clips"))
                self.mount = stack.enter_context(ClipMount(aside / "clips", self.data / "clips"))
            count = self.setting.nodes + self.setting.spares
            lab = Lab(count, self.directory / "lab", shared=[self.directory])
            self.lab = stack.enter_context(lab)
            if self.nodes_outputs != self.outputs:
                for node in self.lab.nodes:
                    node.bind(self.nodes_outputs, str(self.outputs))
            if self.setting.terminal:
                self.terminal = Terminal(self.directory / "launch.txt")
                stack.callback(self.terminal.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.repair()
        for command in self._commands:
            if command.poll() is None:
                command.kill()
                command.wait()
        with contextlib.suppress(LookupError, OSError):
            os.kill(self.supervisor, 9)
        self._stack.close()

    # What is done.

    def command(self, *words: str, name: str) -> subprocess.Popen[bytes]:
        """Start clusterctl as a user does; its output is in NAME.txt, or in that of the terminal."""
        env = self.environment()
        if self.setting.terminal:
            return self.terminal.start(words, self.code, env)
        with (self.directory / f"{name}.txt").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "clusterctl", *words],
                cwd=self.code, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Of the head's commands."""
        env = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
        env |= {"PYTHONPATH": str(self.code), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        return env | {"XDG_STATE_HOME": str(self.directory / "state"), **self.head_env}

    def words(self) -> list[str]:
        """Of a launch."""
        setting = self.setting
        inside = str(Path(__file__).parent / "inside")
        env = [
            f"FAULTS_DIR={self.faults}",
            f"FAULTS_PACE_S={PACE_S}",
            f"PYTHONPATH={inside}:{self.code}",
            *setting.env,
        ]
        spares = self.lab.names[setting.nodes :]
        return [
            "launch", str(self.directory / "campaign.py"), str(self.lab.hostfile),
            "--outputs", str(self.outputs), "--min-free", "0", "--yes", "--device", "cpu",
            "--nproc_per_node", str(setting.ranks), "--hang-timeout", "6", "--stack-timeout", "8",
            *(word for one in env for word in ("--env", one)),
            *(("--spares", ",".join(spares)) if spares else ()),
            *(("--min-nodes", str(setting.nodes - lose)) if (lose := setting.may_lose) else ()),
            *setting.words,
            "--dataset.data-path", str(self.csv), "--max-steps", str(setting.steps),
            *setting.trainer,
        ]  # fmt: skip

    def launch(self) -> None:
        self._commands.append(self.command(*self.words(), name="launch"))

    def attach(self) -> None:
        self._commands.append(self.command("attach", str(self.run_dir), name="attach"))

    def order(self, rank: int, harm: str) -> None:
        """A rank does this harm at the begin of its next step."""
        path = self.faults / "orders" / str(rank)
        part = path.with_name(f".{rank}")
        part.write_text(harm)
        part.replace(path)

    def finally_(self, work: Callable[[], object]) -> None:
        """Done before the nodes end, and before it is looked for what is left of the run."""
        self._repairs.append(work)

    def repair(self) -> None:
        while self._repairs:
            self._repairs.pop()()

    def strike(self) -> None:
        """The fault happens now."""
        self.begun_s = time.time()

    @functools.cached_property
    def answers(self) -> Answers:
        """Of the programs that get its `env`. Raises `Late` without a compiler."""
        if (reason := why_no_answers()) is not None:
            raise Late(reason)
        return Answers(self.directory / "answers")

    # What is seen.

    @property
    def view(self) -> subprocess.Popen[bytes]:
        """The last command that looks at the run."""
        return self._commands[-1]

    @property
    def run_dir(self) -> Path:
        return next(self.outputs.glob("001-*"), self.outputs / "001-none")

    @property
    def checkpoints(self) -> list[Path]:
        """Folders of steps, where the nodes write them."""
        run = next(self.nodes_outputs.glob("001-*"), self.nodes_outputs / "001-none")
        return [path for path in run.glob("epoch*-global_step*") if path.is_dir()]

    @property
    def run_id(self) -> str:
        return str(json.loads((self.run_dir / "plan.json").read_text())["run_id"])

    @property
    def supervisor(self) -> int:
        return int(json.loads((self.run_dir / ".owner").read_text())["pid"])

    @property
    def ranks(self) -> dict[int, int]:
        """rank -> pid as seen from here."""
        return ranks_of(self.run_id)

    def events(self, *names: str) -> list[dict[str, Any]]:
        every = read_lines(self.run_dir / EVENTS_FILE)
        return [one for one in every if not names or one["event"] in names]

    def incidents(self) -> list[dict[str, Any]]:
        return read_lines(self.run_dir / INCIDENTS_FILE)

    def steps(self) -> list[StepRecord]:
        """In the order written, those of attempts that were lost among them."""
        found = telemetry.read(self.run_dir) if self.run_dir.exists() else iter(())
        return [one for one in found if isinstance(one, StepRecord)]

    def samples(self) -> list[dict[str, Any]]:
        return [
            line
            for path in sorted((self.faults / "samples").iterdir())
            for line in read_lines(path)
        ]

    def said(self) -> str:
        """What the commands have printed."""
        texts = [self.directory / f"{name}.txt" for name in ("launch", "attach")]
        return "".join(path.read_text(errors="replace") for path in texts if path.exists())

    def until(self, what: str, condition: Callable[[], Any], seconds: float = BEGINS_S) -> Any:
        """The first true value of `condition`. Raises `Late`; at once when the view has ended."""
        deadline = time.monotonic() + seconds * self.setting.slower
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise Late(f"{what}: not within {seconds:g} s")
            if self.has_ended and not condition():
                raise Late(f"{what}: the command ended with {self.view.returncode} before that")
            time.sleep(0.03)
        return value

    def until_step(self, number: int) -> None:
        """A step with this number, or a later one, is done."""
        self.until(f"step {number}", lambda: any(one.step >= number for one in self.steps()))

    @property
    def has_ended(self) -> bool:
        """Whether nothing looks at the run any more."""
        code = self.view.poll() if self._commands else None
        if self.stays and code is not None and (code == LOST or code < 0) and not self.is_over:
            self.attach()
            return False
        return code is not None

    @property
    def is_over(self) -> bool:
        return bool(self.events("end"))

    def end(self, seconds: float = ENDS_S) -> int:
        """Wait for the end of the last command. Raises `Late`."""
        deadline = time.monotonic() + seconds * self.setting.slower
        while not self.has_ended:
            if time.monotonic() > deadline:
                raise Late(f"the run has not ended within {seconds:g} s")
            time.sleep(0.05)
        code = self.view.returncode
        self.exit_code = 128 + signal.SIGINT if code == -signal.SIGINT else code  # as in a shell
        return self.exit_code

    def leftovers(self, seconds: float = 10.0) -> list[str]:
        """Processes of the run on any node, and sockets of it in own folders, after `seconds`
        at the latest."""
        deadline = time.monotonic() + seconds
        while (found := list(self._left())) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _left(self) -> Iterator[str]:
        run_id = self.run_id
        for pid in tagged(run_id):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                yield f"process {pid}: {words.decode(errors='replace')[:80]}"
        for path in Path(own_folder()).glob(f"*{run_id[-24:]}*"):
            yield f"head: {path}"
        for node in self.lab.nodes:
            if node.process is not None and node.process.poll() is None:
                yield from _files_of(node, run_id)


def _files_of(node: LabNode, run_id: str) -> Iterator[str]:
    places = ["/run/clusterctl", "/dev/shm", "/tmp"]
    found = node.exec(["find", *places, "-maxdepth", "2", "-name", f"*{run_id[-24:]}*"])
    for line in found.stdout.splitlines():
        yield f"{node.name}: {line}"


def copy_code(folder: Path) -> None:
    """What is installed of this project, without the interpreter and its libraries."""
    for name in CODE:
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def _mount_disk(stack: contextlib.ExitStack, folder: Path, size_mb: int) -> None:
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder))
    stack.callback(_run, "umount", "-l", str(folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


def render_clips(folder: Path) -> None:
    words = ["--out", str(folder), "--clips", str(CLIPS), "--seed", "1"]
    subprocess.run(
        [sys.executable, "-m", "trainer.data.digits", *words],
        cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, check=True, capture_output=True,
        timeout=300,
    )  # fmt: skip


def kill(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
