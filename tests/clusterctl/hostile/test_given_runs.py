"""Run directories that somebody else made, over every command that reads one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusterctl.runs.attempts_of import Attempts

LIMIT_S = 5.0  # of CPU, beyond the begin of Python; and none waits for a pipe
FILES = (
    "telemetry.jsonl", "events.jsonl", "incidents.jsonl", "plan.json", "config.json", "latest",
    "validation.jsonl", "samples/index.json", "samples/metrics.json", "ranks/0.log", "ranks/starter-n1.log",
    ".supervisor.json", ".owner", ".positions.json", ".run-id", "supervisor.log", "stacks/hang-1/report.json",
    "epoch0-global_step10/manifest.json", "epoch0-global_step10/sampler.json",
)  # fmt: skip
FOLDERS = ("ranks", "samples", "stacks", "epoch0-global_step10")
COMMANDS = (
    ("status",), ("attach",), ("why",), ("why", "--bundle", "b.tgz", "--force"), ("logs", "--tail", "3"),
    ("logs", "--since", "1h"), ("report",), ("gallery",), ("compare",), ("plan-checkpoints",), ("top", "--once", "--run"),
)  # fmt: skip
SECRET = "a secret of the victim"


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
    "unreadable": lambda path, _: (path.write_bytes(b"x"), path.chmod(0))[0],
    **{name: (lambda path, _, text=text: path.write_bytes(text)) for name, text in TEXTS.items()},  # type: ignore[misc]
}


def make(folder: Path, home: Path, spoilt: dict[str, str], linked: tuple[str, ...]) -> Path:
    """A run of three steps, some of whose files are something else."""
    run = Attempts()
    run.attempt()
    run.train(3)
    run.end(1, "rank 1 on n1: exit code 1")
    run_dir = run.write(folder)
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


def check(run_dir: Path, home: Path, work: Path, commands: tuple[tuple[str, ...], ...]) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for words in commands:
        at = work / f"at-{words[0]}"
        at.mkdir(exist_ok=True)
        line = [sys.executable, "-m", "clusterctl", *words, str(run_dir)]
        line += [str(run_dir.parent / "whole")] if words[0] == "compare" else []
        begun_s = os.times().children_user
        found = subprocess.run(line, cwd=at, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False)  # fmt: skip
        took_s = os.times().children_user - begun_s
        said = (found.stdout + found.stderr).decode(errors="replace")
        about = f"{words} {run_dir}: {said[-1500:]}"
        assert "Traceback" not in said, about
        assert found.returncode in (0, 1, 2, 3), about
        assert took_s < LIMIT_S, f"{took_s:.1f} s: {about}"
        assert SECRET not in said, about
        for path in at.iterdir():
            assert SECRET.encode() not in path.read_bytes() if path.is_file() else True, about
    after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert after == before


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret.txt").write_text(SECRET)
    (home / "index.html").write_text("mine")
    (home / "LOCKFILE").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    return home


def test_some_given_runs(tmp_path: Path, home: Path) -> None:
    make(tmp_path / "whole", home, {}, ())
    kinds = ["pipe", "device", "hole", "link out", "step of text"]
    spoilt = {name: kinds[index % len(kinds)] for index, name in enumerate(FILES)}
    run_dir = make(tmp_path / "001-x", home, spoilt, ("samples",))
    check(run_dir, home, tmp_path, (("status",), ("why",), ("gallery",)))


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("part", range(10))
def test_campaign_of_given_runs(tmp_path: Path, home: Path, part: int) -> None:
    """300 of them: 0 commands run, files read or written elsewhere, keys sent, hangs, tracebacks."""
    make(tmp_path / "whole", home, {}, ())
    for seed in range(30 * part, 30 * part + 30):
        draw = random.Random(seed)
        names = draw.sample(FILES, draw.choice((1, 2, 5, len(FILES))))
        spoilt = {name: draw.choice(list(MAKERS)) for name in names}
        inside = [name for name in FOLDERS if not any(one.startswith(name) for one in spoilt)]
        linked = tuple(draw.sample(inside, min(len(inside), draw.choice((0, 0, 1)))))
        run_dir = make(tmp_path / f"{seed:03d}-x", home, spoilt, linked)
        check(run_dir, home, tmp_path, COMMANDS)
