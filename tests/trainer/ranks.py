"""Real training runs for tests: ranks as processes over gloo, several runs in each set of processes.

Importing torch and ColossalAI takes 8 s, a tiny run 1 s: so ranks are forked from a process that has
them (`warm.py`), each does runs one after another and writes what they did to a file, and many
assertions share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.ports import free_port

if TYPE_CHECKING:
    from trainer.data.loader.microbatch import Batch

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 300  # a guard, not a measure: machines may be busy

# The one of multiprocessing has imported what its first user asked for, and that may be a trial of
# trainer.bench: each rank would then import ColossalAI itself.
_server = forkserver.ForkServer()
_server.set_forkserver_preload(["tests.trainer.warm"])

TINY = f"""
_base_ = {str(REPO / "trainer/configs/demo.py")!r}
bucket_config = {{"16px": {{8: (1.0, 4)}}}}
model = dict(hidden_size=32, num_heads=2, depth=1)
ckpt_every = 4
warmup_steps = 2
max_steps = 8
log_every = 1
"""


@dataclass(frozen=True)
class Done:
    """One run of one rank: exit code, rows of each step in order, what was printed.

    `tensors` has SHA-256 over all that a batch gives to the model, pixels and captions.
    """

    code: int
    rows: list[list[int]]
    seen: list[tuple[int, int]]  # cursor (epoch, consumed) after each batch
    out: str
    err: str
    tensors: list[str]


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("CLUSTERCTL_")},
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPO),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def fork(work: Callable[..., None], *args: Any, env: Mapping[str, str], log: Path) -> BaseProcess:
    """A process of its own session and of just this environment; what it prints goes to `log`."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_begin, args=(work, args, dict(env), log))
    connect = _server.connect_to_new_process
    with mock.patch.object(forkserver, "connect_to_new_process", connect):
        process.start()
    return process


def _begin(
    work: Callable[..., None], args: tuple[Any, ...], env: dict[str, str], log: Path
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    work(*args)


def wait(processes: Sequence[BaseProcess], limit_s: float) -> list[int | None]:
    """Exit codes; None of what had not ended and is ended here."""
    deadline = time.monotonic() + limit_s
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            if process.is_alive() and process.pid:
                with contextlib.suppress(ProcessLookupError):  # no session of its own yet
                    os.killpg(process.pid, signal.SIGKILL)  # its loaders, too
                process.kill()
                process.join(10)


def start(
    runs: Sequence[Sequence[str]], world: int, folder: Path, env: Mapping[str, str] | None = None
) -> list[BaseProcess]:
    """`world` processes that each do all `runs` (arguments of trainer.train) in order.

    A word `harm=NAME` is none of trainer.train's: that run goes through `tests.trainer.harms`. With
    `evaluate` as its first word it is one of trainer.evaluate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = [free_port() for _ in runs]
    (folder / "runs.json").write_text(json.dumps(list(zip(map(list, runs), ports, strict=True))))
    return [
        fork(_runs, folder, env=environment(rank, world, ports[0]) | (env or {}), log=folder / f"{rank}.log")
        for rank in range(world)
    ]  # fmt: skip


def finish(
    processes: list[BaseProcess], folder: Path, limit_s: float = LIMIT_S
) -> list[list[Done]]:
    """Per run, per rank. Fails with the logs when a process does not end well."""
    codes = wait(processes, limit_s)
    assert codes == [0] * len(codes), f"{codes}\n{_logs(folder, len(codes))}"
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(processes))]
    return [[Done(**rank[run]) for rank in ranks] for run in range(len(ranks[0]))]


def train(
    runs: Sequence[Sequence[str]],
    world: int,
    folder: Path,
    env: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> list[list[Done]]:
    return finish(start(runs, world, folder, env), folder, limit_s)


def _logs(folder: Path, world: int) -> str:
    return "\n".join((folder / f"{r}.log").read_text(errors="replace") for r in range(world))


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256(repr(batch.text).encode())
    for name in ("video", "fps", "height", "width", "num_frames"):
        digest.update(getattr(batch, name).numpy().tobytes())
    return digest.hexdigest()


def _runs(folder: Path) -> None:
    """One rank."""
    import contextlib
    from collections.abc import Iterator

    from tests.trainer import harms
    from trainer import train as command
    from trainer.data.loader import loader
    from trainer.evaluate import __main__ as evaluate

    done, rows, seen, tensors = [], [], [], []
    plain = loader.Loader.__iter__

    def recorded(self: loader.Loader) -> Iterator[loader.Batch]:
        for batch in plain(self):
            rows.append([int(row) for row in batch.rows])
            seen.append((self.cursor.epoch, self.cursor.consumed))
            tensors.append(_digest(batch))
            yield batch

    loader.Loader.__iter__ = recorded  # type: ignore[method-assign]
    for words, port in json.loads((folder / "runs.json").read_text()):
        os.environ["MASTER_PORT"] = str(port)
        rows, seen, tensors = [], [], []
        paths = [folder / f"{os.environ['RANK']}.{kind}" for kind in ("out", "err")]
        harm = [word.partition("=")[2] for word in words if word.startswith("harm=")]
        words = [word for word in words if not word.startswith("harm=")]
        with (
            paths[0].open("w") as out,
            paths[1].open("w") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            getattr(harms, harm[0])() if harm else contextlib.nullcontext(),
        ):
            if words[0] == "evaluate":
                code = evaluate.main(words[1:])
            else:
                code = command.main(words)
        said = [path.read_text() for path in paths]
        done.append({"code": code, "rows": rows, "seen": seen, "tensors": tensors, "out": said[0], "err": said[1]})  # fmt: skip
        print(words, code, said[1], flush=True)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(done))
