"""A sampler that stays: `python -m trainer.infer.warm` takes requests as JSON lines on stdin.

torch, the text encoder and the VAE stay loaded; a request names a run, a checkpoint of it and what
to make. `clusterctl serve` starts one for each GPU. Orders, each with an `id` that its answers
repeat:

    {"op": "warm", "request": R}    reads the encoders of a run          {"warm": true}
    {"op": "look", "request": R}    what there is to make of it          {"look": {...}}
    {"op": "make", "request": R, "first": 0, "end": 8}  videos of these prompts
                                    {"begun": true}, then {"made": ["sample_0000.mp4", ...]}
    {"op": "sheet", "request": R}   contact sheet and index of all       {"sheet": true}

Of a request with a `stamp` the validation loss is measured: one job, `losses.json`, no sheet.

The first line out is {"ready": ...}. What fails is {"error": sentence, "hint": ..., "kind": name of
the exception}. It ends with its stdin, also in the middle of a video: files appear whole.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.allocator import use_expandable_segments
from trainer.command_line import TRAINING, require
from trainer.errors import ConfigError, TrainerError, one_line
from trainer.runlog.output import configure

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)

use_expandable_segments(os.environ)

import torch  # noqa: E402 - after the allocator's variable

from trainer.config import load as configuration  # noqa: E402
from trainer.config.keys import SampleConfig  # noqa: E402
from trainer.config.load import RUN_CONFIG, Config  # noqa: E402
from trainer.device import choose_device  # noqa: E402
from trainer.engine.base import set_threads  # noqa: E402
from trainer.infer import files  # noqa: E402
from trainer.infer.lengths import LENGTHS  # noqa: E402
from trainer.infer.models import Models, without_compiling  # noqa: E402
from trainer.infer.prepare import Options, Plan, prepare  # noqa: E402
from trainer.infer.run import draw, make, unfinished, write_index  # noqa: E402
from trainer.runlog.validation import LOSSES  # noqa: E402

if TYPE_CHECKING:
    from trainer.infer.losses import Losses

Say = Callable[[Mapping[str, Any]], None]
_LEAST_SIDE = 128  # pixels of a video of the run's own size: smaller ones are enlarged


def main() -> int:
    say = _answers()
    configure()
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    device = choose_device(0)
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else "cpu"
    models = Models(device, checked=True)
    losses = None
    say({"ready": name})
    while True:
        order = orders.get()
        about = {"id": order["id"]}
        try:
            answer = partial(_say_of, say, order["id"])
            if "stamp" in order["request"] and order["op"] != "warm":
                if losses is None:
                    from trainer.infer.losses import Losses  # FSDP comes with it: 0.7 s

                    losses = Losses(models)
                _OF_LOSSES[order["op"]](order, losses, answer)
            else:
                _OPERATIONS[order["op"]](order, models, answer)
        except TrainerError as error:
            say({**about, "error": str(error), "hint": error.hint, "kind": type(error).__name__})
        except Exception as error:  # noqa: BLE001 - border of a request: it becomes its answer
            text = f"{type(error).__name__}: {one_line(error)}"
            say({**about, "error": text, "hint": None, "kind": type(error).__name__})
            sys.excepthook(*sys.exc_info())


def _answers() -> Say:
    """stdout for answers alone: what libraries print goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(out, data) :]
        except OSError:
            os._exit(0)  # nobody listens any more

    return say


def _say_of(say: Say, number: int, found: Mapping[str, Any]) -> None:
    say({"id": number, **found})


def _read(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        orders.put(json.loads(line))
    os._exit(0)


def _config(request: Mapping[str, Any]) -> Config:
    """The run's, with the request's settings in the place of its own, or on top of them."""
    config = without_compiling(configuration.load(Path(request["run_dir"]) / RUN_CONFIG))
    given = dict(request["sample"])
    if given.get("num_frames") in LENGTHS:
        given["num_frames"] = LENGTHS[given["num_frames"]]
    base = config.sample if request["own"] else SampleConfig()
    if "resolution" in given or "aspect_ratio" in given:
        given.setdefault("image_size", None)
    if isinstance(given.get("image_size"), list):
        given["image_size"] = tuple(given["image_size"])
    return replace(config, sample=replace(base, **given))


def _plan(request: Mapping[str, Any], first: int = 0, end: int | None = None) -> Plan:
    """Raises ConfigError and CheckpointError."""
    run_dir, config = Path(request["run_dir"]), _config(request)
    options = Options(
        reference_path=[],
        mask_strategy=[],
        save_dir=Path(request["save_dir"]),
        sample_name="sample",
        prompt_as_path=False,
        start_index=first,
        end_index=end,
        weights=request["weights"],
        clean_caption=None,
        upscale=request["upscale"] or _upscale(config, own=request["own"]),
        overwrite=False,
        allow_partial=False,
        run_dir=run_dir,
        preset_name=request["preset"],
        vbench=None,
        dimensions=(),
    )
    return prepare(config, run_dir / request["checkpoint"], request["prompts"], options)


def _upscale(config: Config, *, own: bool) -> int:
    size = config.sample.image_size
    return max(1, _LEAST_SIDE // min(size)) if own and size is not None else 1


def _warm(order: Mapping[str, Any], models: Models, say: Say) -> None:
    config = _config(order["request"])
    set_threads(config.threads, 1, models.device.type != "cpu")
    models.warm(config, Path(order["request"]["run_dir"]))
    say({"warm": True})


def _look(order: Mapping[str, Any], models: Models, say: Say) -> None:
    request = order["request"]
    plan = _plan(request)
    jobs = [
        {
            "file": job.path.name,
            "index": job.prompt.index,
            "finished": plan.state(job) is files.State.FINISHED,
        }
        for job in plan.jobs
    ]
    say({"look": {"batch_size": plan.settings.batch_size, "jobs": jobs}})


def _make(order: Mapping[str, Any], models: Models, say: Say) -> None:
    plan = _plan(order["request"], order["first"], order["end"])
    todo = unfinished(plan, plan.jobs)
    begun: list[bool] = []

    def progress(done: int, total: int) -> None:
        if not begun:
            begun.append(True)
            say({"begun": True})

    if todo:
        set_threads(plan.config.threads, 1, models.device.type != "cpu")
        make(plan, todo, models, progress)
    say({"made": [job.path.name for job in todo]})


def _sheet(order: Mapping[str, Any], models: Models, say: Say) -> None:
    plan = _plan(order["request"])
    missing = [job for job in plan.jobs if plan.state(job) is not files.State.FINISHED]
    if missing:
        raise ConfigError(f"{missing[0].path.name} is not there any more")
    draw(plan)
    write_index(plan)
    say({"sheet": True})


def _look_at_losses(order: Mapping[str, Any], losses: Losses, say: Say) -> None:
    job = {"file": LOSSES, "index": 0, "finished": losses.is_finished(order["request"])}
    say({"look": {"batch_size": 1, "jobs": [job]}})


def _measure(order: Mapping[str, Any], losses: Losses, say: Say) -> None:
    losses.measure(order["request"], lambda: say({"begun": True}))
    say({"made": [LOSSES]})


def _no_sheet(order: Mapping[str, Any], losses: Losses, say: Say) -> None:
    say({"sheet": False})


_OPERATIONS = {"warm": _warm, "look": _look, "make": _make, "sheet": _sheet}
_OF_LOSSES = {"look": _look_at_losses, "make": _measure, "sheet": _no_sheet}

if __name__ == "__main__":
    sys.exit(main())
