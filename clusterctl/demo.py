"""The main job on embedded defaults: two loopback nodes, a real training run, videos, a score.

The same code path as on a real cluster: a hostfile, ssh, preflight, launch. Only the nodes are
small, and they and their keys end with this program.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import ClusterctlError, CouldNotFindOut, LaunchFailed, UsageError
from clusterctl.output import Output
from clusterctl.signal_handlers import handled_by
from trainer.runlog import telemetry
from trainer.runlog.own_modules import bound_command, environment
from trainer.runlog.validation import Point, final_points

NODES = ("demo-1", "demo-2")
NEEDS = ("torch", "colossalai", "av", "sklearn", "transformers", "matplotlib")
CLIPS = 2000
VALIDATE_EVERY = 110  # steps; 7 times in a run, each of which takes as long as 3 steps
LEASE_S = 10.0  # the ranks of a demo that was killed end soon
# Scores below these are a failed demo (chance: 0.10 and 0.25). Of 40 videos each: a model that is
# right in 0.95 of all would be below 0.9 in 1 of 20 demos, and below 0.8 in 1 of 8,000.
DIGIT_FLOOR, DIRECTION_FLOOR = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Scores, time and files of a demo; the keys of `clusterctl demo --json`."""

    digit_accuracy: float | None  # None without a score
    direction_accuracy: float | None
    train_seconds: float  # from the first rank's start to the last rank's end
    steps: int
    run_dir: str
    contact_sheet: str
    loss_curve: str
    gallery: str
    validation: list[Point]  # losses of scans that no training clip shows, by step

    @property
    def is_good(self) -> bool:
        scores = ((self.digit_accuracy, DIGIT_FLOOR), (self.direction_accuracy, DIRECTION_FLOOR))
        return all(score is None or score >= floor for score, floor in scores)


def run_demo(
    outputs: Path,
    output: Output,
    show: Callable[[DemoResult], None],
    *,
    seed: int,
    steps: int | None,
    score: bool,
    keep: bool,
) -> DemoResult:
    """Run all of it and `show` the result; with `keep` the nodes stay up then until Ctrl-C.

    Raises `UsageError` without the training environment, `LaunchFailed` when the run ends badly,
    `KeyboardInterrupt` on Ctrl-C or SIGTERM. In each case no process, port or key is left.
    """
    from clusterctl.launch.progress import Progress
    from clusterctl.transport.loopback.nodes import LoopbackCluster

    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        what = f"this Python has no {', '.join(missing)}: {sys.executable}"
        hint = "run `make demo` in a checkout; it makes an environment that has them"
        raise UsageError(f"the demo trains a model and {what}", hint=hint)
    outputs.mkdir(parents=True, exist_ok=True)
    progress = Progress(output)

    def say(line: str) -> None:
        progress.close()
        output.note(line)

    with contextlib.ExitStack() as stack:
        # SIGTERM and a closed terminal end the demo as Ctrl-C does: through every cleanup.
        stack.enter_context(handled_by(signal.default_int_handler, (signal.SIGTERM, signal.SIGHUP)))
        # 0700, for keys and the hostfile.
        folder = Path(tempfile.mkdtemp(prefix="clusterctl-demo-"))
        stack.callback(_undisturbed, shutil.rmtree, folder, ignore_errors=True)
        cluster = LoopbackCluster(NODES, folder / "nodes")
        # A Ctrl-C inside the exit of `cluster` must not leave a server behind.
        stack.callback(_undisturbed, cluster.stop)
        stack.enter_context(cluster)
        names = ", ".join(NODES)
        say(f"nodes      {names} on 127.0.0.1, each a real ssh server; {cluster.hostfile}")

        if keep:
            say(f"           {_second_terminal(cluster.hostfile)}")
        data = outputs / "demo-digits"
        _python("trainer.data.digits", "--out", data, "--clips", CLIPS, "--seed", seed)
        say(f"data       {CLIPS} mp4 clips of moving handwritten digits, {data}/digits.csv")

        overrides = ["--dataset.data-path", f"{data.absolute()}/digits.csv", "--seed", str(seed)]
        overrides += ["--validation.data-path", f"{data.absolute()}/held_out.csv"]
        overrides += ["--validation.every", str(VALIDATE_EVERY)]
        overrides += [] if steps is None else ["--max-steps", str(steps)]
        started = time.monotonic()
        run_dir, done = _train(cluster.hostfile, outputs, overrides, say, progress.update)
        seconds = time.monotonic() - started
        say(f"training   {done} steps in {units.duration(seconds)}, {run_dir}")

        samples, prompts = run_dir / "samples", data / "prompts.txt"
        words = [run_dir / "config.json", "--ckpt-path", run_dir, "--prompt-path", prompts]
        _python("trainer.infer", *words, "--save-dir", samples, "--upscale", 8)
        _python("trainer.pictures", run_dir)
        sheet = samples / "contact_sheet.png"
        say(f"samples    40 videos and {sheet}")
        gallery = _python("clusterctl", "gallery", run_dir).strip()

        scores: dict[str, float] = {}
        if score:  # digit and direction, read back from the files
            judged = ["--samples", samples, "--prompts", prompts, "--json"]
            scores = json.loads(_python("trainer.evaluate", "digits", *judged).splitlines()[-1])
        result = DemoResult(
            digit_accuracy=scores.get("digit_accuracy"),
            direction_accuracy=scores.get("direction_accuracy"),
            train_seconds=round(seconds, 1),
            steps=done,
            run_dir=str(run_dir),
            contact_sheet=str(sheet),
            loss_curve=str(run_dir / "loss_curve.png"),
            gallery=gallery,
            validation=final_points(telemetry.read(run_dir)),
        )
        show(result)
        if keep:
            say(f"the nodes are up until Ctrl-C; {_second_terminal(cluster.hostfile)}")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
            output.note("")
        return result


def _second_terminal(hostfile: Path) -> str:
    clusterctl = typed_command()
    return f"in a second terminal: {clusterctl} gpus {hostfile}, {clusterctl} status"


def typed_command() -> str:
    """What starts this program from this shell: its name, or its path where the name does not."""
    started, found = Path(sys.argv[0]), shutil.which("clusterctl")
    if found is not None and (started.name != "clusterctl" or started.samefile(found)):
        return "clusterctl"
    if started.name != "clusterctl":  # python -m clusterctl
        return f"{typed_python()} -m clusterctl"
    return _typed(started)


def typed_python() -> str:
    """The Python that the demo trains with, for this shell."""
    return _typed(Path(sys.executable))


def _typed(path: Path) -> str:
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def _undisturbed(cleanup: Callable[..., object], *args: Any, **options: Any) -> None:
    """Call `cleanup`, which a second Ctrl-C must not cut short; each has its own deadline."""
    with handled_by(signal.SIG_IGN):
        cleanup(*args, **options)


def _train(
    hostfile: Path,
    outputs: Path,
    overrides: Sequence[str],
    say: Callable[[str], None],
    on_update: Callable[[Any], None],
) -> tuple[Path, int]:
    """Preflight, then launch, as `clusterctl launch demo HOSTFILE`; (run directory, steps)."""
    from clusterctl.hostfile import read_hostfile
    from clusterctl.launch.head import supervisor
    from clusterctl.launch.inputs import resolve
    from clusterctl.launch.plan import Timing
    from clusterctl.launch.restart.rules import Rules
    from clusterctl.launch.run_dir import write_layout
    from clusterctl.launch.saved_run import SavedRun
    from clusterctl.launch.start import LaunchOptions, plan_launch, prepare
    from clusterctl.preflight.run import fix_lines, headline, table_rows
    from clusterctl.remote.cluster import Cluster
    from clusterctl.runs import owner
    from clusterctl.transport.paramiko_backend import ParamikoTransport

    options = LaunchOptions(
        config="demo",
        overrides=tuple(overrides),
        ranks=1,
        device="cpu",
        python=sys.executable,
        outputs=outputs,
        min_free_bytes=1 << 30,
        timing=Timing(lease_s=LEASE_S),
    )
    cluster = Cluster(read_hostfile(hostfile), ParamikoTransport())
    reads = resolve("demo", overrides, workdir=Path.cwd(), env={})
    prepared = prepare(cluster, options, reads, prove_outputs=True)
    report = prepared.report
    assert report is not None
    say(f"preflight  {headline(report)}")
    if not report.go:
        for verdict, check, names, text in table_rows(report):
            say(f"  {verdict.value} {check}  {names}  {text}")
        for line in fix_lines(report):
            say(f"  {line}")
        raise CouldNotFindOut("preflight says no-go, so nothing was started")
    plan = plan_launch(cluster.nodes, prepared, options, reads, claim=True)
    steps = 0

    def update(state: Any) -> None:
        nonlocal steps
        steps = state.step.step if state.step is not None else 0
        on_update(state)

    # A run like any other for status, attach, why and stop.
    write_layout(plan.run_dir, plan.run_id, plan.to_json())
    run = SavedRun(plan, Rules(nodes=tuple(plan.nodes)))
    lock = owner.take(plan.run_dir)
    try:
        run.write()
        result = supervisor.supervise_here(run, lock, on_update=update)
    except BaseException:  # its nodes end with this program: nobody can go on with it
        _undisturbed(supervisor.forget, run)
        _undisturbed(owner.give_back, plan.run_dir, lock)
        raise
    if not result.ok:
        lines = [f"  | {line}" for line in result.last_lines]
        raise LaunchFailed(result.reason, hint=f"logs: {plan.run_dir}/ranks", more=lines)
    return plan.run_dir, steps


def _python(module: str, *words: object) -> str:
    """Run one of our modules as its own process; returns stdout.

    It dies with this program and does not see the terminal's Ctrl-C: this program ends it.
    Raises `ClusterctlError` with its last lines.
    """
    child = subprocess.Popen(
        bound_command(module, *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
        start_new_session=True,
    )
    try:
        out, err = child.communicate()
    except BaseException:
        with handled_by(signal.SIG_IGN):
            if child.poll() is None:  # it may end while communicate() handles the interrupt
                os.killpg(child.pid, signal.SIGKILL)
            # An interrupt at the start of communicate() lets a second one fail.
            for pipe in (child.stdout, child.stderr):
                if pipe:
                    pipe.close()
            child.wait()
        raise
    if child.returncode:
        lines = (err or out).strip().splitlines()[-12:]
        raise ClusterctlError(f"{module} ended with code {child.returncode}", more=lines)
    return out
