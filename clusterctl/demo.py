"""The main job on embedded defaults: two loopback nodes, a real training run, videos, a score.

The same code path as on a real cluster: a hostfile, ssh, preflight, launch. Only the nodes are
small, and they and their keys end with this program.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError, CouldNotFindOut, LaunchFailed, UsageError

if TYPE_CHECKING:
    from clusterctl.transport.loopback.nodes import LoopbackCluster

NODES = ("demo-1", "demo-2")
NEEDS = ("torch", "colossalai", "av", "sklearn", "transformers", "matplotlib")
CLIPS = 2000
# Below these the demo has not shown what it promises (chance: 0.10 and 0.25).
DIGIT_FLOOR, DIRECTION_FLOOR = 0.6, 0.9


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came of it; the keys of `clusterctl demo --json`."""

    digit_accuracy: float | None  # None where nobody asked for a score
    direction_accuracy: float | None
    train_seconds: float  # from the first rank's start to the last rank's end
    steps: int
    run_dir: str
    contact_sheet: str
    loss_curve: str

    @property
    def is_good(self) -> bool:
        if self.digit_accuracy is None or self.direction_accuracy is None:
            return True
        return self.digit_accuracy >= DIGIT_FLOOR and self.direction_accuracy >= DIRECTION_FLOOR

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_demo(
    outputs: Path,
    *,
    seed: int,
    steps: int | None,
    score: bool = True,
    say: Callable[[str], None],
    on_update: Callable[[Any], None],
    while_up: Callable[[Path], None] | None = None,
) -> DemoResult:
    """Run all of it; `while_up(hostfile)` is called at the end while the nodes still stand.

    Without `score` the videos are sampled and not judged.

    Raises `UsageError` without the training environment, `LaunchFailed` when the run ends badly,
    `KeyboardInterrupt` on Ctrl-C or SIGTERM. Whatever happens, no process, port or key is left.
    """
    _refuse_without_training_environment()
    outputs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals_as_interrupt())
        session = stack.enter_context(_private_folder())
        cluster = stack.enter_context(_loopback(session))
        say(
            f"nodes      {', '.join(NODES)} on 127.0.0.1, "
            f"each a real ssh server; {cluster.hostfile}"
        )

        data = outputs / "demo-digits"
        _python("trainer.data.digits", "--out", data, "--clips", CLIPS, "--seed", seed)
        say(f"data       {CLIPS} mp4 clips of moving handwritten digits, {data}/digits.csv")

        started = time.monotonic()
        run = _train(cluster.hostfile, data, outputs, seed, steps, say, on_update)
        train_seconds = time.monotonic() - started
        say(f"training   {run.steps} steps in {train_seconds:.0f} s, {run.run_dir}")

        _sample(run, data, say)
        scores = _judge(run, data) if score else {}
        result = DemoResult(
            digit_accuracy=scores.get("digit_accuracy"),
            direction_accuracy=scores.get("direction_accuracy"),
            train_seconds=round(train_seconds, 1),
            steps=run.steps,
            run_dir=str(run.run_dir),
            contact_sheet=str(run.contact_sheet),
            loss_curve=str(run.loss_curve),
        )
        if while_up:
            while_up(cluster.hostfile)
        return result


@dataclass(frozen=True, slots=True)
class _Trained:
    run_dir: Path
    steps: int

    @property
    def samples(self) -> Path:
        return self.run_dir / "samples"

    @property
    def contact_sheet(self) -> Path:
        return self.samples / "contact_sheet.png"

    @property
    def loss_curve(self) -> Path:
        return self.run_dir / "loss_curve.png"


def _refuse_without_training_environment() -> None:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo trains a model and this Python has no {', '.join(missing)}: "
            f"{sys.executable}",
            hint="run `make demo` in a checkout; it makes an environment that has them",
        )


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo like Ctrl-C does: through every cleanup."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """0700, for keys and the hostfile; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-demo-"))
    try:
        yield folder
    finally:
        with _undisturbed():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _loopback(folder: Path) -> Iterator[LoopbackCluster]:
    from clusterctl.transport.loopback.nodes import LoopbackCluster

    cluster = LoopbackCluster(NODES, folder / "nodes")
    try:
        with cluster:
            yield cluster
    finally:
        with _undisturbed():
            cluster.stop()  # a Ctrl-C inside its own exit must not leave a server behind


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """An impatient second Ctrl-C must not cut a cleanup short; each has its own deadline."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _train(
    hostfile: Path,
    data: Path,
    outputs: Path,
    seed: int,
    steps: int | None,
    say: Callable[[str], None],
    on_update: Callable[[Any], None],
) -> _Trained:
    """Preflight, then launch: what `clusterctl launch demo HOSTFILE` does."""
    from clusterctl.launch.start import LaunchOptions, plan_launch, prepare
    from clusterctl.launch.supervise import supervise
    from clusterctl.nodes import read_hostfile
    from clusterctl.preflight.run import fix_lines, headline, table_rows
    from clusterctl.transport.base import Limits
    from clusterctl.transport.paramiko_backend import ParamikoTransport

    overrides = ["--dataset.data-path", str(data.absolute() / "digits.csv"), "--seed", str(seed)]
    if steps is not None:
        overrides += ["--max-steps", str(steps)]
    options = LaunchOptions(
        config="demo",
        overrides=tuple(overrides),
        ranks=1,
        device="cpu",
        python=sys.executable,
        outputs=outputs,
        min_free_bytes=1 << 30,
    )
    nodes, transport, limits = read_hostfile(hostfile), ParamikoTransport(), Limits()
    prepared = prepare(nodes, transport, limits, options, width=len(nodes))
    report = prepared.report
    assert report is not None
    say(f"preflight  {headline(report)}")
    if not report.go:
        for verdict, check, names, text in table_rows(report):
            say(f"  {verdict.value} {check}  {names}  {text}")
        for line in fix_lines(report):
            say(f"  {line}")
        raise CouldNotFindOut("preflight says no-go, so nothing was started")
    plan = plan_launch(nodes, prepared, options, claim=True)
    stop = threading.Event()
    last: list[Any] = []

    def update(state: Any) -> None:
        last[:] = [state]
        on_update(state)

    result = supervise(plan, transport, on_update=update, stop=stop, limits=limits)
    if not result.ok:
        raise LaunchFailed(
            "\n".join([result.reason, *(f"  | {line}" for line in result.last_lines)]),
            hint=f"logs: {plan.run_dir}/ranks",
        )
    step = last[0].step if last else None
    return _Trained(plan.run_dir, step.step if step is not None else 0)


def _sample(run: _Trained, data: Path, say: Callable[[str], None]) -> None:
    """A video for every prompt, the sheet of them and the loss curve."""
    _python(
        "trainer.infer",
        run.run_dir / "config.json",
        "--ckpt-path",
        run.run_dir,
        "--prompt-path",
        data / "prompts.txt",
        "--save-dir",
        run.samples,
        "--upscale",
        8,
    )
    _python("trainer.pictures", run.run_dir)
    say(f"samples    40 videos and {run.contact_sheet}")


def _judge(run: _Trained, data: Path) -> dict[str, float]:
    """Read digit and direction back from the files; accuracies between 0 and 1 by name."""
    words = ["--samples", run.samples, "--prompts", data / "prompts.txt", "--json"]
    found = _python("trainer.evaluate", "digits", *words)
    scores: dict[str, float] = json.loads(found.splitlines()[-1])
    return scores


def _python(module: str, *words: object) -> str:
    """Run a module of the trainer as its own process; returns stdout.

    It dies with this program and does not see the terminal's Ctrl-C: this program ends it.
    Raises `ClusterctlError` with its last lines.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    try:
        out, err = child.communicate()
    except BaseException:
        with _undisturbed():
            os.killpg(child.pid, signal.SIGKILL)
            # An interrupt at the start of communicate() lets a second one fail.
            for pipe in (child.stdout, child.stderr):
                if pipe:
                    pipe.close()
            child.wait()
        raise
    if child.returncode:
        lines = (err or out).strip().splitlines()[-12:]
        raise ClusterctlError("\n".join([f"{module} ended with code {child.returncode}", *lines]))
    return out


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
