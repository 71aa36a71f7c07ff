"""The real loop on one GPU: clips, encoded features, both engines, saves, a resume, SIGTERM.

XL/2 with random weights, over four bucket shapes with stills. Every item uses what the items
before it left in OUT/train, so --only works once `clips and features` has run.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.run import Item, Options

BUDGET_S = 540.0
STEPS, SAVE_EVERY = 12, 4
CLIPS, STILLS = 12, 24
CONFIG = """_base_ = "{base}"
bucket_config = dict(_delete_=True, **{buckets})
text_encoder = dict(
    type="tiny_t5", model_max_length={tokens}, d_model={channels}, from_pretrained=None
)
ckpt_every = {every}
log_every = 1
"""


def items(options: Options) -> Iterator[Item]:
    yield Item("clips and features", prepare, (), 150.0)
    for engine in ("colossal", "native"):
        yield Item(f"{engine} {STEPS} steps, {STEPS // SAVE_EVERY} saves", train, (engine,), 120.0)
    if not options.tiny:  # a minute of a CPU's compiler
        yield Item("colossal compiled", train, ("colossal", "--compile"), 150.0)
    yield Item(f"colossal resumed at step {STEPS - SAVE_EVERY}", resume, (), 90.0)
    yield Item("SIGTERM", terminate, (), 90.0)


def prepare(options: Options) -> dict[str, Any]:
    """Clips and stills as files, weights of the VAE at random, then `trainer.data encode`."""
    folder = options.out / "train"
    folder.mkdir(parents=True, exist_ok=True)
    height, width, frames = (16, 16, 10) if options.tiny else (360, 640, 60)
    rows = []
    for number in range(CLIPS + STILLS):
        count = frames if number < CLIPS else 1
        name = f"{number}.mp4" if count > 1 else f"{number}.png"
        _write_clip(folder / name, count, height, width, number)
        rows.append(f"{name},a clip with number {number},{count},{height},{width},24")
    header = "path,text,num_frames,height,width,fps\n"
    (folder / "clips.csv").write_text(header + "\n".join(rows) + "\n")
    shapes = {
        "base": "demo.py" if options.tiny else "stage1.py",
        "buckets": {"16px": {1: (1.0, 8), 8: (1.0, 4)}}
        if options.tiny
        else {"144p": {1: (1.0, 8), 51: (1.0, 2)}, "360p": {1: (0.5, 4), 51: (0.5, 1)}},
        "tokens": 6 if options.tiny else 300,
        "channels": 64 if options.tiny else 4096,
        "every": SAVE_EVERY,
    }
    configs = Path(__file__).parents[2] / "trainer" / "configs"
    shapes["base"] = str(configs / str(shapes["base"]))
    (folder / "config.py").write_text(CONFIG.format(**shapes))
    words = ["--data-path", str(folder / "clips.csv"), *_vae(options, folder)]
    start = time.monotonic()
    _run(options, "trainer.data", "encode", folder / "config.py", folder / "features", *words)
    seconds = time.monotonic() - start
    return {"encode_s": seconds, "headline": f"{len(rows)} files encoded in {seconds:.1f} s"}


def train(options: Options, engine: str, *more: str) -> dict[str, Any]:
    """A run from its own fresh weights, which depend on the seed alone."""
    name = "-".join((engine, *(word.strip("-") for word in more)))
    run = options.out / "train" / name
    _train(options, run, "--engine", engine, "--max-steps", str(STEPS), *more)
    return _figures(run)


def resume(options: Options) -> dict[str, Any]:
    """The last steps of the run again, from its checkpoint before them: the same losses?"""
    before = options.out / "train" / "colossal"
    checkpoint = next(before.glob(f"*global_step{STEPS - SAVE_EVERY}"))
    run = options.out / "train" / "resumed"
    _train(options, run, "--load", str(checkpoint), "--max-steps", str(STEPS))
    found = _figures(run)
    wanted = _figures(before)["losses"][-SAVE_EVERY:]
    worst = max(abs(a - b) / b for a, b in zip(found["losses"], wanted, strict=True))
    headline = f"losses of {SAVE_EVERY} steps differ by {worst:.1e} from those of the first run"
    return {**found, "wanted": wanted, "worst": worst, "headline": headline}


def terminate(options: Options) -> dict[str, Any]:
    """SIGTERM after the second step: how long until a checkpoint stands and the process is gone."""
    run = options.out / "train" / "terminated"
    command = _command(options, "trainer.train", *_words(options, run), "--max-steps", "1000")
    process = subprocess.Popen(command, env=_environment(options))
    while process.poll() is None and len(_steps(run)) < 2:
        time.sleep(0.05)
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait()
    seconds = time.monotonic() - start
    saved = sorted(path.name for path in run.glob("epoch*") if (path / "manifest.json").is_file())
    if not saved:
        raise RuntimeError(f"exit code {code} and no checkpoint")
    headline = f"{saved[-1]} and exit code {code} after {seconds:.1f} s"
    return {"seconds": seconds, "exit_code": code, "checkpoints": saved, "headline": headline}


def _figures(run: Path) -> dict[str, Any]:
    steps = _steps(run)
    saving = [one["step_s"] for one in steps if one["seconds"].get("checkpoint", 0) > 0.001]
    plain = [one["step_s"] for one in steps[2:] if one["step_s"] not in saving]
    memory = max(one["memory_bytes"] or 0 for one in steps)
    found = {
        "losses": [one["loss"] for one in steps],
        "step_s": statistics.median(plain or saving),
        "first_step_s": steps[0]["step_s"],
        "step_beside_a_save_s": statistics.median(saving) if saving else None,
        "memory_bytes": memory,
        "steps": steps,
        "events": _records(run, "event"),
    }
    headline = f"step {found['step_s']:.2f} s, first {found['first_step_s']:.1f} s, "
    headline += f"{memory / 1e9:.1f} GB, loss {steps[0]['loss']:.3f} to {steps[-1]['loss']:.3f}"
    return {**found, "headline": headline}


def _steps(run: Path) -> list[dict[str, Any]]:
    return _records(run, "step")


def _records(run: Path, kind: str) -> list[dict[str, Any]]:
    path = run / "telemetry.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def _train(options: Options, run: Path, *words: str) -> None:
    _run(options, "trainer.train", *_words(options, run), *words)


def _words(options: Options, run: Path) -> list[str | Path]:
    folder = options.out / "train"
    words: list[str | Path] = [folder / "config.py", "--run-dir", run]
    words += ["--data-path", folder / "clips.csv", "--dataset.features", folder / "features"]
    return [*words, *_vae(options, folder)]


def _vae(options: Options, folder: Path) -> list[str]:
    """Options for a VAE of the published sizes, its weights written at the first call."""
    if options.tiny:
        return []  # the demo's pixels are its latents
    place = folder / "vae"
    if not (place / "model.safetensors").is_file():
        import torch
        from safetensors.torch import save_file

        from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

        place.mkdir()
        torch.manual_seed(0)
        network = OpenSoraVAE(VideoVAESettings())
        (place / "config.json").write_text("{}")
        save_file(network.state_dict(), place / "model.safetensors")
    return ["--vae.from-pretrained", str(place)]


def _run(options: Options, module: str, *words: str | Path) -> None:
    command = _command(options, module, *words)
    done = subprocess.run(command, env=_environment(options), capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        raise RuntimeError((errors or lines or [f"exit code {done.returncode}"])[-1])


def _command(options: Options, module: str, *words: str | Path) -> list[str]:
    return [sys.executable, "-m", module, *map(str, words)]


def _environment(options: Options) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    return {**os.environ, **hidden}


def _write_clip(path: Path, frames: int, height: int, width: int, seed: int) -> None:
    """Noise that moves: 8 x 8 blocks of random colours, shifted by a pixel a frame."""
    import av
    import numpy as np
    from PIL import Image

    colours = np.random.default_rng(seed).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3))
    picture = np.kron(colours, np.ones((8, 8, 1))).astype(np.uint8)[:height, :width]
    if frames == 1:
        Image.fromarray(picture).save(path)
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for number in range(frames):
            image = av.VideoFrame.from_ndarray(np.roll(picture, number, 1), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())
