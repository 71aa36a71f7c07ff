"""Run directories that somebody else made, over every command that reads one.

Watched are what each command starts, says to addresses and changes (tests/clusterctl/hostile/audit.py),
and who opens the files of the folder to which links lead, by whatever path (opened.py).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.launch import saved_run
from clusterctl.nodes import Node
from clusterctl.serve.server import PAUSE_S
from tests.clusterctl.hostile.audit import nothing_done
from tests.clusterctl.hostile.forked import Ended, ended, import_everything, own_memory_mb
from tests.clusterctl.hostile.opened import opened_in
from tests.clusterctl.launch.test_saved_run import saved
from tests.clusterctl.runs.attempts_of import Attempts
from tests.clusterctl.serve import stand_in
from trainer.sync import upload

LIMIT_S = 5.0  # of CPU, and of waiting on a machine that has time
MOST_MB = 400  # beyond what the test itself has
FILES = (
    "telemetry.jsonl", "events.jsonl", "incidents.jsonl", "plan.json", "config.json", "latest",
    "validation.jsonl", "samples/index.json", "samples/metrics.json", "ranks/0.log", "ranks/starter-n1.log",
    ".supervisor.json", ".owner", ".positions.json", ".run-id", "supervisor.log", "stacks/hang-1/report.json",
    "epoch0-global_step10/manifest.json", "epoch0-global_step10/sampler.json",
    "prompts.txt", "wandb.json", "samples/.serve/0123456789abcdef", "wandb/offline-run-1/run-x.wandb", "samples/low4s/epoch0-global_step10/index.json",
)  # fmt: skip
FOLDERS = ("ranks", "samples", "stacks", "epoch0-global_step10", "wandb")
COMMANDS = (
    ("status",), ("status", "--json"), ("attach",), ("why",), ("why", "--json"),
    ("why", "--bundle", "b.tgz", "--force"), ("logs", "--tail", "3"), ("logs", "--since", "1h"), ("logs", "--node", "n1"),
    ("report",), ("gallery",), ("compare",), ("plan-checkpoints",), ("top", "--once", "--run"), ("watch", "--for", "0.1", "--run"),
    ("watch", "--replay"), ("export", "--once", "metrics.prom", "--interval", "0.2", "--run"),
    ("serve", "--once", "--compute-only", "--python", "STANDIN"), ("serve", "--list"), ("serve", "--stop"), ("trainer.sync",),
)  # fmt: skip
# What these may start, by words in it: the payload that samples, what knows the sizes of models.
STARTS = {"serve": ("exec python3 -I -S -c",), "plan-checkpoints": ("'-m', 'trainer.checkpoint'",)}
IMPORTS_TORCH, IMPORT_S = (
    ("plan-checkpoints",),
    130,
)  # where a checkpoint's own sizes cannot be read
# A batch that has failed is tried again, once, after a pause; the sampler is started anew.
PAUSES_S = {"serve": 2 * PAUSE_S}
SECRET = "a secret of the victim"


def supervisor(run_dir: Path, home: Path) -> bytes:
    """A file to go on from that names a node, a key and programs of its maker's choice."""
    run = saved(run_dir)
    share = replace(
        run.plan.shares[0],
        node=Node("n1", "127.0.0.1", 22, "root", identity=str(home / ".ssh/id_ed25519")),
    )
    plan = replace(run.plan, shares=(share,), python=str(home / "python"))
    path = run_dir / saved_run.FILE
    if path.is_symlink() or path.exists():
        path.rename(run_dir / "aside")
    replace(run, plan=plan).write()
    found = path.read_bytes()
    path.unlink()
    if (run_dir / "aside").is_symlink() or (run_dir / "aside").exists():
        (run_dir / "aside").rename(path)
    return found


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


TEXTS = {
    "empty": b"", "zeros": b"\0" * 5000, "long line": b"[" * (3 << 20), "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "list": b"[1, 2]\n", "null": b"null\n", "text": b'"x"\n', "latin": b"\xff\xfe\n",
    "many lists": b"[" + b"[]," * 300_000 + b"[]]\n",
    "step of text": b'{"kind":"step","step":"x","steps_total":null,"epoch":[],"samples":1,"tokens":1,"loss":"nan","grad_norm":{},"lr":0,"step_s":"1","time_s":"2"}\n',
    "huge step": b'{"kind":"step","step":' + b"9" * 400 + b',"steps_total":1,"epoch":0,"samples":1,"tokens":1,"loss":0.1,"grad_norm":1,"lr":0,"step_s":1,"time_s":2}\n',
    "event of lists": b'{"kind":"event","name":[],"text":{},"data":7,"step":"x","time_s":[]}\n',
    "odd events": b'{"event":"attempt","time_s":1e300,"data":{"attempt":"x","nodes":7}}\n{"event":"attempt","time_s":5,"data":{"attempt":1,"nodes":[{}],"spares":3,"excluded":[[1]]}}\n',
    "odd incident": b'{"incident":"hang","time_s":1,"stacks":"/etc","root":[],"consequences":{"a":1}}\n',
    "odd plan": b'{"nodes":[{"name":7,"slots":"x"},null],"shares":{},"run_dir":7,"config":[]}\n',
    "odd samples": b'{"schema":1,"videos":[{"file":"../x.mp4"},7,{"file":"/etc/passwd"}],"step":[],"fps":"x"}\n',
    "odd owner": b'{"host":[],"pid":1e999,"since_s":-1e308}\n{"host":"n1","pid":1e999,"since_s":1e999,"presets":{},"log":7}\n',
    "odd prompts": b'{"sample": {"prompts": "/etc/passwd"}, "seed": 1}\n',
    "odd positions": b'{"n1": {"telemetry": "../../x"}, "../x": {"0": -1}, "n2": [9e99]}\n',
    "slow telemetry": b'{"kind":"step","step":1,' + b',"step_s":1' * 20_000 + b"\n",
}  # fmt: skip
MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "hole": lambda path, _: hole(path),
    "folder": lambda path, _: path.mkdir(),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "full": lambda path, _: path.symlink_to("/dev/full"),
    "itself": lambda path, _: path.symlink_to(path.name),
    "link out": lambda path, home: path.symlink_to(home / "secret.txt"),
    "link to the key": lambda path, home: path.symlink_to(home / ".ssh/id_ed25519"),
    "prompts out": lambda path, home: (
        path.write_text(json.dumps({"sample": {"prompts": str(home / "secret.txt")}})),
        None,
    )[1],
    "supervisor": lambda path, home: path.write_bytes(supervisor(path.parent, home)),
    "unreadable": lambda path, _: (path.write_bytes(b"x"), path.chmod(0))[0],
    **{name: (lambda path, _, text=text: path.write_bytes(text)) for name, text in TEXTS.items()},  # type: ignore[misc]
}


TRAINED = {
    "model": {"type": "STDiT3"}, "max_steps": 9, "epochs": 1, "ckpt_every": 1, "keep_checkpoints": 3, "keep_every": 0,
    "async_io": True, "outputs": "outputs",
}  # fmt: skip


def make(folder: Path, home: Path, spoilt: dict[str, str], linked: tuple[str, ...]) -> Path:
    """A run of three steps, some of whose files are something else."""
    run = Attempts()
    run.attempt()
    run.train(3)
    run.end(1, "rank 1 on n1: exit code 1")
    run_dir = stand_in.make_run(folder, (10,))
    whole = json.loads((run_dir / "config.json").read_text())
    whole["config"] |= TRAINED
    (run_dir / "config.json").write_text(json.dumps(whole))
    run.write(run_dir)
    for name in FILES:
        path = run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() and not name.startswith("."):
            path.write_text("{}\n")
    for name, kind in spoilt.items():
        (run_dir / name).unlink(missing_ok=True)
        MAKERS[kind](run_dir / name, home)
    for name in linked:
        os.rename(run_dir / name, folder.parent / f"{folder.name}-{name}")  # noqa: PTH104
        (run_dir / name).symlink_to(home)
    return run_dir


def called(words: tuple[str, ...], run_dir: Path, work: Path) -> Ended:
    """A command in a folder of its own, with a home and an agent of its own."""
    at = Path(tempfile.mkdtemp(prefix=f"{words[0]}-", dir=work))
    (at / "home/.ssh").mkdir(parents=True)
    python = str(work.parent / "python")
    given = (*(python if word == "STANDIN" else word for word in words), str(run_dir)) + (
        (str(run_dir.parent / "whole"),) * (words[0] == "compare")
    )
    of_trainer = words[0] == "trainer.sync"
    allowed = (f"{at}/home/.ssh/", "/etc/passwd 2000000", *STARTS.get(words[0], ()))

    def prepare() -> None:
        os.environ["SSH_AUTH_SOCK"] = "/nonexistent/agent"  # to speak to it would be noticed

    return ended(
        (*given[1:], "--dry-run") if of_trainer else given, at, at / "said",
        run=upload.main if of_trainer else cli.run, prepare=prepare, limit_s=IMPORT_S if words[0] in IMPORTS_TORCH else 40,
        watched=nothing_done(allowed, own=(str(at), str(run_dir), "/dev/null", "/dev/tty", "/proc/self/", "/dev/shm/clusterctl-", "/run/clusterctl")),
    )  # fmt: skip


def check(
    run_dir: Path, home: Path, work: Path, commands: tuple[tuple[str, ...], ...], note: list[str]
) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for words in commands:
        with opened_in(home, home / ".ssh") as opened:
            found = called(words, run_dir, work)
        limit_s = IMPORT_S if words[0] in IMPORTS_TORCH else LIMIT_S
        about = f"{words} {run_dir}: exit {found.code}: {found.said[-1500:]}"
        note.append(f"{found.wall_s:6.2f} s {found.cpu_s:6.2f} s of CPU {found.memory_mb:5.0f} MB {words}")  # fmt: skip
        assert found.code in (0, 1, 2, 3, 4), about
        assert "Traceback" not in found.said, about
        assert found.cpu_s < limit_s, f"{found.cpu_s:.1f} s: {about}"
        # Beside other programs it takes its CPU time a few times over.
        wait_s = limit_s + 5 * found.cpu_s + PAUSES_S.get(words[0], 0.0)
        assert found.wall_s < wait_s, f"{found.wall_s:.1f} s: {about}"
        assert found.memory_mb < own_memory_mb() + MOST_MB, about
        assert SECRET not in found.said, about
        assert not opened, f"{opened}: {about}"
        assert not set(found.said) & set("\x1b\x07\x9b\u202e"), about
    for path in work.rglob("*"):
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(run_dir):
            assert SECRET.encode() not in path.read_bytes(), path
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    import_everything()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which links lead."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in ("secret.txt", ".ssh/id_ed25519", "x.mp4", "0.log"):
        (home / name).write_text(SECRET)
    (home / "index.html").write_text("mine")
    (home / "LOCKFILE").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "other"))  # of the run's maker
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    stand_in.make(tmp_path)
    return tmp_path / "work"


def test_who_opens_a_file_is_noticed(tmp_path: Path, home: Path) -> None:
    (tmp_path / "link").symlink_to(home / "secret.txt")
    with opened_in(home, home / ".ssh") as opened:
        (tmp_path / "link").read_text()
        list(home.iterdir())
    assert str(home / "secret.txt") in opened
    assert str(home) in [one.rstrip("/") for one in opened]


@pytest.mark.long
def test_some_given_runs(tmp_path: Path, home: Path, work: Path) -> None:
    """Each kind in turn at each file, each command with some of them."""
    make(tmp_path / "whole", home, {}, ())
    kinds = list(MAKERS)
    for number in range(6):
        spoilt = {name: kinds[(5 * number + at) % len(kinds)] for at, name in enumerate(FILES)}
        linked = (FOLDERS[number % len(FOLDERS)],)
        spoilt = {name: kind for name, kind in spoilt.items() if not name.startswith(linked)}
        run_dir = make(tmp_path / f"{number:03d}-x", home, spoilt, linked)
        some = tuple(words for words in COMMANDS[number::6] if words[0] not in IMPORTS_TORCH)
        check(run_dir, home, work, some, [])


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("part", range(10))
def test_campaign_of_given_runs(tmp_path: Path, home: Path, work: Path, part: int) -> None:
    """300 of them: 0 commands run, files read or written elsewhere, keys sent, hangs, tracebacks."""
    make(tmp_path / "whole", home, {}, ())
    note: list[str] = []
    for seed in range(30 * part, 30 * part + 30):
        draw = random.Random(seed)
        names = draw.sample(FILES, draw.choice((1, 2, 5, len(FILES))))
        spoilt = {name: draw.choice(list(MAKERS)) for name in names}
        inside = [name for name in FOLDERS if not any(one.startswith(name) for one in spoilt)]
        linked = tuple(draw.sample(inside, min(len(inside), draw.choice((0, 0, 1)))))
        run_dir = make(tmp_path / f"{seed:03d}-x", home, spoilt, linked)
        some = tuple(one for one in COMMANDS if seed % 5 == 0 or one[0] not in IMPORTS_TORCH)
        check(run_dir, home, work, some, note)
        shutil.rmtree(run_dir)  # a folder of 30 of them takes long to look through
    print(f"given runs: 30 with {len(note)} commands; the slowest:", *sorted(note)[-5:], sep="\n")
