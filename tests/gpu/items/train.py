"""The real loop on one GPU without a clip: both engines, a save, a resume, SIGTERM.

XL/2 of a few blocks with random weights, on features drawn at random. A checkpoint has 2 GB at
depth 2 and 21.6 GB at depth 28: each run keeps one, and it is deleted once it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.run import Figures, Options

STEPS = 2  # of a run; the resumed one goes as far again
# Losses of two engines, relative: bf16 weights are rounded from fp32 ones that both have.
SAME = {"bf16": 5e-3, "fp32": 1e-5}
CONFIG = """_base_ = {base!r}
bucket_config = dict(_delete_=True, **{buckets})
model = dict({model})
text_encoder = dict(model_max_length={tokens})
dtype = {dtype!r}
compile = False
lr = 1e-4
warmup_steps = 0
log_every = 1
ckpt_every = 0
keep_checkpoints = 1
num_workers = 1
"""
CLIPS, STILLS = 8, 32


def engines(options: Options, figures: Figures) -> str:
    """Two steps by each engine with equal losses, then two more from ColossalAI's checkpoint."""
    folder = prepare(options, depth=2)
    try:
        losses: dict[str, list[float]] = {}
        runs: list[tuple[str, list[str]]] = [
            ("native", ["--engine", "native", "--max-steps", str(2 * STEPS)]),
            ("colossal", ["--engine", "colossal", "--max-steps", str(STEPS)]),
        ]
        for name, words in runs:
            if found := figures.attempt(
                name, lambda n=name, w=words: _train(options, folder, n, w)
            ):
                losses[name] = found["losses"]
        if "colossal" in losses:
            found = figures.attempt("resumed", lambda: _resume(options, folder))
            if found is not None:
                losses["resumed"] = found["losses"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if losses.keys() < {"native", "colossal", "resumed"}:
        return f"{', '.join(losses) or 'nothing'} ran"
    wanted, given = losses["native"], losses["colossal"] + losses["resumed"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(given, wanted, strict=True))
    dtype = _dtype(options)
    figures.add("losses", native=str(wanted), colossal=str(given), worst=worst)
    figures.judge("losses", "" if worst <= SAME[dtype] else f"differ by {worst:.1e}")
    return f"losses of {len(wanted)} steps differ by {worst:.1e}, two of them after a resume"


def save(options: Options, figures: Figures) -> str:
    """One save of XL/2 beside steps: how long it takes, and how much of that the steps wait."""
    folder = prepare(options, depth=2 if options.tiny else 28)
    run = folder / "saved"
    words = ["--engine", "colossal", "--max-steps", "1000", "--ckpt-every", "2"]
    try:
        with _started(options, folder, run, words) as process:
            while process.poll() is None and not _save_times(run):
                time.sleep(0.05)
            process.kill()  # a second one would need as much room again
        if not _save_times(run):
            raise RuntimeError(f"exit code {process.returncode} and no checkpoint")
        found = _figures(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures.add("save", **found)
    return (
        f"step {found['step_s']:.2f} s; {found['checkpoint_bytes'] / 1e9:.3g} GB in "
        f"{found['save_s']:.1f} s, of which steps waited {found['stall_s']:.2f} s"
    )


def terminate(options: Options, figures: Figures) -> str:
    """SIGTERM after the second step: how long until a checkpoint stands and the process is gone."""
    folder = prepare(options, depth=2)
    run = folder / "terminated"
    try:
        with _started(options, folder, run, ["--max-steps", "1000"]) as process:
            while process.poll() is None and len(_records(run, "step")) < 2:
                time.sleep(0.05)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait()
        seconds = time.monotonic() - start
        saved = sorted(path.name for path in run.glob("epoch*") if _is_whole(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not saved:
        raise RuntimeError(f"exit code {code} and no checkpoint")
    figures.add("SIGTERM", end_s=seconds, exit_code=code, checkpoint=saved[-1])
    return f"{saved[-1]} and exit code {code} after {seconds:.1f} s"


def prepare(options: Options, depth: int) -> Path:
    """A manifest of clips that are nowhere, a config, and their features, in a new folder."""
    from tests.gpu.items.features import make_features, write_placeholders
    from trainer.config import load as configuration

    folder = options.out / "train"
    shutil.rmtree(folder, ignore_errors=True)
    channels = 64 if options.tiny else 4096
    places = write_placeholders(folder, channels)
    rows = []
    for number in range(CLIPS + STILLS):
        frames, name = (60, f"{number}.mp4") if number < CLIPS else (1, f"{number}.png")
        rows.append(f"{name},a clip with number {number},{frames},360,640,24")
    header = "path,text,num_frames,height,width,fps\n"
    (folder / "clips.csv").write_text(header + "\n".join(rows) + "\n")
    base = Path(__file__).parents[3] / "trainer" / "configs" / "stage1.py"
    small = "hidden_size=64, num_heads=2, " if options.tiny else ""
    buckets = {"144p": {1: (1.0, 4)}} if options.tiny else {"360p": {1: (1.0, 8), 51: (1.0, 2)}}
    text = CONFIG.format(
        base=str(base),
        buckets=buckets,
        model=f"{small}depth={depth}",
        tokens=20 if options.tiny else 300,
        dtype=_dtype(options),
    )
    (folder / "config.py").write_text(text)
    words = [word for pair in places.items() for word in pair]
    words += ["--data-path", str(folder / "clips.csv")]
    (folder / "words.json").write_text(json.dumps(words))
    make_features(configuration.load(folder / "config.py", words), folder / "features")
    return folder


def _train(options: Options, folder: Path, name: str, words: list[str]) -> dict[str, Any]:
    """A run from fresh weights, which depend on the seed alone; its figures."""
    run = folder / name
    _run(options, [*_command(options, folder, run), *words], name)
    return _figures(run)


def _started(
    options: Options, folder: Path, run: Path, words: list[str]
) -> subprocess.Popen[bytes]:
    """A run that its caller ends; it ends with this process, whose group it is in."""
    command = [*_command(options, folder, run), *words]
    return subprocess.Popen(command, env=_environment(options), stderr=subprocess.DEVNULL)


def _resume(options: Options, folder: Path) -> dict[str, Any]:
    checkpoint = next((folder / "colossal").glob(f"*global_step{STEPS}"))
    words = ["--engine", "colossal", "--load", str(checkpoint), "--max-steps", str(2 * STEPS)]
    return _train(options, folder, "resumed", words)


def _figures(run: Path) -> dict[str, Any]:
    steps = _records(run, "step")
    saving = [one["step_s"] for one in steps if one["seconds"].get("checkpoint", 0) > 0.001]
    plain = [one["step_s"] for one in steps[1:] if one["step_s"] not in saving]
    files = [file for path in run.glob("epoch*") for file in path.rglob("*") if file.is_file()]
    return {
        "losses": [one["loss"] for one in steps],
        "step_s": statistics.median(plain or [one["step_s"] for one in steps]),
        "first_step_s": steps[0]["step_s"],
        "step_beside_a_save_s": max(saving) if saving else None,
        "memory_bytes": max(one["memory_bytes"] or 0 for one in steps),
        "checkpoint_bytes": sum(file.stat().st_size for file in files),
        **_save_times(run),
    }


def _save_times(run: Path) -> dict[str, float]:
    """Of the first checkpoint: seconds from its first file to its rename, and those waited for."""
    for event in _records(run, "event"):
        if event["name"] == "checkpoint":
            return {"save_s": event["data"]["seconds"], "stall_s": event["data"]["stall_s"]}
    return {}


def _records(run: Path, kind: str) -> list[dict[str, Any]]:
    path = run / "telemetry.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def _is_whole(checkpoint: Path) -> bool:
    return (checkpoint / "manifest.json").is_file()


def _command(options: Options, folder: Path, run: Path) -> list[str]:
    words = json.loads((folder / "words.json").read_text())
    command = [sys.executable, "-m", "trainer.train", str(folder / "config.py"), *words]
    return [*command, "--run-dir", str(run), "--dataset.features", str(folder / "features")]


def _run(options: Options, command: list[str], name: str) -> None:
    """Raises RuntimeError with the run's own error; what it said is kept for the record."""
    done = subprocess.run(command, env=_environment(options), capture_output=True, text=True)
    if done.returncode:
        raw = options.out / "raw"
        raw.mkdir(exist_ok=True)
        (raw / f"train-{name}.txt").write_text(done.stdout[-200_000:] + done.stderr[-200_000:])
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        raise RuntimeError((errors or lines or [f"exit code {done.returncode}"])[-1])


def _environment(options: Options) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    threads = {"OMP_NUM_THREADS": "1"} if options.tiny else {}  # see run._work
    return {**os.environ, **hidden, **threads}


def _dtype(options: Options) -> str:
    return "bf16" if options.device == "cuda" else "fp32"
