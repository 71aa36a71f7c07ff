"""A stand-in for the warm sampler, without torch: it speaks the same lines and makes small files.

`make(folder)` writes a program that `--python` can name. Every file that it makes is a line in
`made.log` of that folder, so a video that was made twice shows.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

PROGRAM = """import json, os, sys, threading, time
FOLDER, DELAY_S, FAIL = {folder!r}, {delay_s!r}, {fail!r}
def say(**message):
    os.write(1, json.dumps(message).encode() + b"\\n")
def jobs(request):
    out = []
    for index, prompt in enumerate(request["prompts"]):
        name = "sample_%04d.mp4" % index
        there = os.path.isfile(os.path.join(request["save_dir"], name))
        out.append(dict(file=name, index=index, finished=there))
    return out
def write(request, name, text):
    path = os.path.join(request["save_dir"], name)
    part = "%s.%d.part" % (os.path.join(request["save_dir"], "." + name), os.getpid())
    with open(part, "w") as file:
        for piece in range(4):
            file.write(text[piece * len(text) // 4:(piece + 1) * len(text) // 4])
            file.flush()
            time.sleep(DELAY_S / 4)
    os.rename(part, path)
    log = os.open(os.path.join(FOLDER, "made.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, (path + "\\n").encode())
    os.close(log)
say(ready="stand-in on %s" % os.environ.get("CUDA_VISIBLE_DEVICES"))
for line in sys.stdin:
    order = json.loads(line)
    op, request, about = order["op"], order["request"], dict(id=order["id"])
    checkpoint = os.path.join(request["run_dir"], request.get("checkpoint", ""))
    if op == "warm":
        say(warm=True, **about)
    elif op in FAIL:
        error, kind = FAIL[op]
        say(error=error, hint=None, kind=kind, **about)
    elif not os.path.isfile(os.path.join(checkpoint, "manifest.json")):
        say(error="there is no checkpoint at " + checkpoint, hint=None, kind="PathError", **about)
    elif op == "look" and "stamp" in request:
        say(look=dict(batch_size=1, jobs=[dict(file="losses.json", index=0, finished=False)]), **about)
    elif op == "make" and "stamp" in request:
        os.makedirs(request["save_dir"], exist_ok=True)
        say(begun=True, **about)
        step = int(request["checkpoint"].rpartition("step")[2])
        losses = dict(model=dict(clips=4, loss=1.0 / step), ema=dict(clips=4, loss=0.5 / step))
        event = dict(name="validation", text="loss of step %d" % step, step=step,
                     time_s=request["sealed_s"], data=dict(losses, checkpoint=request["checkpoint"]))
        write(request, "losses.json", json.dumps(dict(schema=1, stamp=request["stamp"], event=event)))
        say(made=["losses.json"], **about)
    elif op == "sheet" and "stamp" in request:
        say(sheet=False, **about)
    elif op == "look":
        say(look=dict(batch_size=2, jobs=jobs(request)), **about)
    elif op == "make":
        os.makedirs(request["save_dir"], exist_ok=True)
        todo = [j for j in jobs(request)[order["first"]:order["end"]] if not j["finished"]]
        say(begun=True, **about)
        for job in todo:
            write(request, job["file"], "%s %s\\n" % (request["checkpoint"], request["prompts"][job["index"]]))
        say(made=[job["file"] for job in todo], **about)
    elif op == "sheet":
        write(request, "contact_sheet.png", "sheet")
        made = zip(jobs(request), request["prompts"])
        videos = [dict(file=j["file"], prompt=p, index=j["index"], sample=0, seed=1) for j, p in made]
        epoch, step = request["checkpoint"][5:].split("-global_step")
        index = dict(schema=1, checkpoint=request["checkpoint"], step=int(step), epoch=int(epoch),
                     weights=request["weights"], preset=request["preset"], settings="stand-in",
                     fps=8.0, frames=8, height=16, width=16, videos=videos)
        write(request, "index.json", json.dumps(index))
        say(sheet=True, **about)
"""


def make(
    folder: Path, delay_s: float = 0.0, fail: dict[str, tuple[str, str]] | None = None
) -> Path:
    """The program; `fail` has (sentence, kind) of orders that fail."""
    program, path = folder / "stand_in.py", folder / "python"
    program.write_text(PROGRAM.format(fail=fail or {}, folder=str(folder), delay_s=delay_s))
    # A first line that names an interpreter bears no space in its path.
    words = shlex.join([sys.executable, "-IS", str(program)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path


def made(folder: Path) -> list[str]:
    log = folder / "made.log"
    return log.read_text().splitlines() if log.exists() else []


def make_run(folder: Path, steps: tuple[int, ...] = (), prompts: int = 5) -> Path:
    """A run directory with sealed checkpoints, as far as the head reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = {"num_frames": 8, "image_size": [16, 16], "prompts": None}
    config = {"schema": 1, "config": {"sample": sample, "dataset": {"data_path": None}}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "telemetry.jsonl").touch()
    (folder / "prompts.txt").write_text("".join(f"digit {n}\n" for n in range(prompts)))
    for step in steps:
        seal(folder, step)
    return folder


def seal(folder: Path, step: int, epoch: int = 0) -> Path:
    """As the trainer does: made under another name, then renamed."""
    part = folder / f".tmp-epoch{epoch}-global_step{step}"
    part.mkdir()
    (part / "manifest.json").write_text('{"schema": 1, "files": {}}')
    return part.rename(folder / part.name.removeprefix(".tmp-"))
