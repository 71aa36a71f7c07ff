"""Every command with each file and folder that it reads closed, missing, empty, a folder or a pipe."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusterctl.hostile.forked import ended, import_everything
from tests.clusterctl.hostile.test_given_runs import FILES, make

STRANGER = 65534
CAPABILITIES_V3, PR_SET_SECUREBITS, SECBIT_NOROOT = 0x20080522, 28, 1
FAST = ("--connect-timeout", "1", "--deadline", "5")
NODES = {
    "nodes": (), "preflight": FAST, "gpus": FAST, "clock": FAST, "fabric": FAST, "env": FAST, "top": ("--once",),
    "watch": ("--for", "0.1"), "export": ("--once", "metrics.prom", "--interval", "0.2"), "stop": ("--run", "x", "--yes", *FAST),
    "kill": ("--run", "x", "--yes", *FAST), "runs": FAST, "dump-stacks": ("--run", "x", *FAST),
}  # fmt: skip
RUNS = {
    "status": (), "attach": (), "why": (), "logs": ("--tail", "3"), "report": (), "gallery": (),
    "plan-checkpoints": (), "compare": (), "serve": ("--once", "--dry-run", "--expnums", "1"),
}  # fmt: skip
# What is read, below the current folder, and the commands that read it.
GIVEN = {
    "nodes.txt": (
        *((name, *words, "nodes.txt") for name, words in NODES.items()), ("run", "true", "nodes.txt"),
        ("push", "--yes", "clips.csv", "/nowhere/", "nodes.txt"), ("data", "probe", "nodes.txt", "clips.csv"),
        ("exclude", "list", "--hostfile", "nodes.txt"), ("launch", "tiny.py", "nodes.txt", "--yes"),
        ("serve", "outputs/001-x", "--once", "--nodes", "nodes.txt"),
    ),
    "clusterctl.toml": (("nodes",), ("status",), ("why",)),
    "exclude.toml": (("exclude", "list"), ("nodes",), ("gpus", *FAST), ("exclude", "add", "127.0.0.2", "--reason", "x")),
    "home/.ssh/config": (("nodes",), ("gpus", *FAST)),
    "home/.ssh/known_hosts": (("gpus", *FAST),),
    "home/.ssh": (("gpus", *FAST),),
    "home/.config/clusterctl/clusterctl.toml": (("nodes",), ("status",)),
    "home": (("nodes",), ("gpus", *FAST), ("status",), ("runs", *FAST), ("preflight", *FAST)),
    "profile.toml": (("gpus", "--profile", "profile.toml", *FAST), ("preflight", "--profile", "profile.toml", *FAST)),
    "clips.csv": (
        ("data", "probe", "clips.csv", *FAST), ("data", "check", "clips.csv", *FAST), ("push", "--yes", "clips.csv", "/nowhere/", *FAST),
    ),
    "tiny.py": (("launch", "tiny.py", "--yes", *FAST),),
    "tape.jsonl": (("top", "--replay", "tape.jsonl", "--once"), ("watch", "--replay", "tape.jsonl")),
    "stacks.json": (("dump-stacks", "--diff", "stacks.json", "--run", "x", *FAST),),
    "sites.toml": (("dump-stacks", "--sites", "sites.toml", "--run", "x", *FAST),),
    "presets.toml": (("serve", "outputs/001-x", "--once", "--presets", "presets.toml"),),
    "prompts.txt": (("serve", "outputs/001-x", "--once", "--prompts", "prompts.txt"),),
    "logs": (("why", "outputs/001-x", "--logs", "logs"),),
    "outputs": (
        *((name, *words) for name, words in RUNS.items() if name not in ("plan-checkpoints", "compare")), ("compare", "1", "2"),
        *((name, *words, "1") for name, words in RUNS.items() if name not in ("serve", "compare")),
        ("launch", "tiny.py", "--yes", *FAST), ("top", "--once", "--run", "outputs"), ("watch", "--for", "0.1", "--run", "outputs"),
    ),
    "outputs/001-x": (
        *((name, *words, "outputs/001-x") for name, words in RUNS.items() if name != "serve"), ("serve", "--once", "--dry-run", "outputs/001-x"),
        ("status",), ("compare", "outputs/001-x", "outputs/001-x"), ("top", "--once", "--run", "outputs/001-x"),
        ("watch", "--for", "0.1", "--run", "outputs/001-x"), ("export", "--once", "metrics.prom", "--interval", "0.2", "--run", "outputs/001-x"),
    ),
    "made": (  # written
        ("report", "1", "--out", "made/x.html"), ("gallery", "1", "--out", "made/x.html"), ("why", "1", "--bundle", "made/x.tgz"),
        ("compare", "1", "1", "--out", "made/x.html"), ("top", "--once", "--record", "made/x"), ("watch", "--for", "0.1", "--record", "made/x"),
        ("preflight", "--record", "made/x", *FAST), ("preflight", "--junit", "made/x", *FAST), ("preflight", "--write-good", "made/x", *FAST),
        ("export", "--once", "made/x.prom", "--interval", "0.2"), ("dump-stacks", "--run", "x", "--out", "made/x", *FAST), ("data", "probe", "clips.csv", "--out", "made/x.csv", *FAST),
        ("launch", "tiny.py", "--outputs", "made", "--yes", *FAST), ("serve", "1", "--once", "--copies", "made"),
    ),
}  # fmt: skip
# `plan-checkpoints` starts the trainer for these: it takes seconds.
SLOW = [("plan-checkpoints", "outputs/001-x"), ("plan-checkpoints", "1")]
OF_RUN = tuple(words for words in GIVEN["outputs/001-x"] if words not in SLOW)
# What clusterctl looks for itself. Who names a pipe has a writer for it: `<(…)` of a shell.
FOUND = (
    "clusterctl.toml", "exclude.toml", "home/.ssh/config", "home/.ssh/known_hosts", "home/.ssh",
    "home/.config/clusterctl/clusterctl.toml", "home", "outputs", "outputs/001-x",
)  # fmt: skip
# A closed one of these is not shown as good.
NEEDED = (
    "nodes.txt", "clusterctl.toml", "home/.config/clusterctl/clusterctl.toml", "profile.toml", "clips.csv", "tiny.py", "tape.jsonl",
    "stacks.json", "sites.toml", "presets.toml", "prompts.txt", "outputs", "outputs/001-x",
)  # fmt: skip


def closed(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    path.chmod(0)


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0\n[[{")


INSTEAD: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None, "empty": Path.touch, "folder": Path.mkdir, "pipe": as_pipe, "bytes": as_bytes,
    "itself": lambda path: path.symlink_to(path.name),
}  # fmt: skip


QUICK = ("closed", "pipe")


def tree(work: Path) -> None:
    """A folder in which every command finds what it reads."""
    for name in ("home/.ssh", "home/.config/clusterctl", "logs", "made", "outputs"):
        (work / name).mkdir(parents=True)
    for name in GIVEN:
        if not (work / name).exists() and not name.startswith("outputs"):
            (work / name).touch()
    (work / "nodes.txt").write_text("127.0.0.1 port=1\n")
    (work / "clips.csv").write_text("path,text,num_frames,height,width\na.mp4,x,8,64,64\n")
    (work / "tiny.py").write_text("model = dict(type='STDiT3-XL/2')\n")
    make(work / "outputs" / "001-x", work, {}, ())


def drop_capabilities() -> None:
    """From here on root reads and writes what its mode allows, as any other user."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0:
        libc.prctl(PR_SET_SECUREBITS, SECBIT_NOROOT)  # nor what is started from here
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    import_everything()


def spoil(path: Path, kind: str) -> None:
    if kind == "closed":
        closed(path)
        return
    aside = path.with_name(f"{path.name}.before")
    path.rename(aside)
    INSTEAD[kind](path)


def wrong(
    work: Path, commands: tuple[tuple[str, ...], ...], about: str, *, is_needed: bool = False
) -> list[str]:
    found = []
    for words in commands:
        one = ended(words, work, work.parent / "said", prepare=drop_capabilities)
        code, said = one.code, one.said
        known = (1, 2, 3, 4) if is_needed else (0, 1, 2, 3, 4)
        if "Traceback" in said or code not in known or (code and not said.strip()):
            found.append(f"{about}: {' '.join(words)}: {code}\n{said[-3000:]}")
    return found


SOME = [
    *QUICK,
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in INSTEAD if kind not in QUICK),
]


@pytest.mark.long
@pytest.mark.parametrize("kind", SOME)
def test_no_command_fails_in_other_than_words(tmp_path: Path, kind: str) -> None:
    found = []
    for index, (name, commands) in enumerate(GIVEN.items()):
        if kind == "pipe" and name not in FOUND:
            continue
        work = tmp_path / str(index) / "work"
        work.mkdir(parents=True)
        tree(work)
        spoil(work / name, kind)
        asked = tuple(words for words in commands if words not in SLOW)
        is_needed = kind == "closed" and name in NEEDED
        found += wrong(work, asked, f"{name} {kind}", is_needed=is_needed)
    assert not found, "\n".join(found)


# Pipes in a run directory are in tests/clusterctl/hostile/test_given_runs.py, too.
@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [SOME[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in (*INSTEAD,))]
)
def test_no_file_of_a_run_fails_in_other_than_words(tmp_path: Path, kind: str) -> None:
    """One after the other: a command may end at the first."""
    found = []
    for index, name in enumerate(FILES):
        work = tmp_path / str(index) / "work"
        work.mkdir(parents=True)
        tree(work)
        path = work / "outputs" / "001-x" / name
        if not path.exists():
            path.touch()
        spoil(path, kind)
        readers = OF_RUN if kind not in QUICK else OF_RUN[index % 6 :: 6]
        found += wrong(work, readers, f"{name} {kind}")
    assert not found, "\n".join(found)
