"""Modules that others put into the current folder, a run directory or a temporary folder never run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusterctl.launch.harness import STARTER, wait_until
from tests.clusterctl.payload.agents import Agent
from tests.clusterctl.serve import stand_in
from tests.dashboards.gallery.test_page import put, two
from tests.trainer.data.clips import write_clip
from trainer.runlog.own_modules import HOME, bound_command, environment, module_command

# Of the standard library, of dependencies, of our own, and what Python's start reads.
FILES = [
    "abc",
    "argparse",
    "ast",
    "asyncio",
    "base64",
    "click",
    "code",
    "collections",
    "contextlib",
    "copy",
    "ctypes",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "getpass",
    "hashlib",
    "heapq",
    "inspect",
    "io",
    "itertools",
    "json",
    "logging",
    "marshal",
    "mmap",
    "operator",
    "os",
    "pathlib",
    "pickle",
    "queue",
    "random",
    "re",
    "resource",
    "runpy",
    "secrets",
    "select",
    "shlex",
    "shutil",
    "signal",
    "site",
    "socket",
    "stat",
    "string",
    "struct",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "uuid",
    "warnings",
    "weakref",
    "zipfile",
    "sitecustomize",
    "usercustomize",
    "pytest_plugin",
    "stage1",
    "demo",
]
PACKAGES = [
    "ClusterShell",
    "PIL",
    "aiohttp",
    "av",
    "checks",
    "clusterctl",
    "colossalai",
    "dashboards",
    "diffusers",
    "duckdb",
    "einops",
    "ftfy",
    "importlib",
    "encodings",
    "matplotlib",
    "multiprocessing",
    "numpy",
    "paramiko",
    "pyarrow",
    "rich",
    "textual",
    "textual_serve",
    "torch",
    "trainer",
    "transformers",
    "urllib",
    "wandb",
]
assert len(FILES) + len(PACKAGES) > 50


def plant(folder: Path, marker: Path) -> None:
    """Each writes its name to `marker`; a config without suffix as well."""
    text = f"open({str(marker)!r}, 'a').write(__file__ + '\\n')\n"
    for name in FILES:
        (folder / f"{name}.py").write_text(text)
    for name in ("stage1", "demo"):
        (folder / name).write_text(text.replace("__file__", repr(name)))
    for name in PACKAGES:
        (folder / name).mkdir(exist_ok=True)
        for file in ("__init__.py", "__main__.py"):
            (folder / name / file).write_text(text)
    (folder / "planted.pth").write_text(f"import os; {text}")
    (folder / "pyvenv.cfg").write_text(f"home = {folder}\n")


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Path]:
    folder, marker = tmp_path / "planted", tmp_path / "it-ran"
    folder.mkdir()
    plant(folder, marker)
    yield folder
    assert not marker.exists(), marker.read_text()


def ours(*words: object) -> list[str]:
    """A command of clusterctl, for which a PYTHONPATH with an empty part is set."""
    code = f"import os, sys; os.environ['PYTHONPATH'] = os.pathsep + {HOME!r}; "
    code += "from clusterctl.cli import main; main()"
    begin = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", code]
    return [*begin, *map(str, words)]


def run(command: list[str], cwd: Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(TMPDIR=str(cwd)),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_fixture_would_notice(tmp_path: Path) -> None:
    plant(tmp_path, tmp_path / "it-ran")
    for words in (["-m", "secrets"], ["-c", "import wandb"]):
        subprocess.run([sys.executable, *words], cwd=tmp_path, check=False, capture_output=True)
        assert (tmp_path / "it-ran").exists()
        (tmp_path / "it-ran").unlink()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("launch stage1 NODES --dry-run --skip-preflight", 0, "-m trainer.train stage1"),
        pytest.param("plan-checkpoints demo --step-time 1", 0, "fit", marks=pytest.mark.slow),
        ("gallery RUN", 0, "index.html"),
        pytest.param(
            "serve RUN --python STANDIN --once --compute-only",
            0,
            "5 videos",
            marks=pytest.mark.slow,
        ),
        ("serve RUN --python STANDIN --once --compute-only --detach", 0, "server"),
    ],
)
def test_command_runs_nothing_of_the_current_folder(
    planted: Path, tmp_path: Path, words: str, code: int, says: str
) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("node-1\n")
    run_dir = stand_in.make_run(planted / "001-run", (10,))
    plant(run_dir, tmp_path / "it-ran")
    names = {"NODES": nodes, "RUN": run_dir, "STANDIN": stand_in.make(tmp_path)}
    given = [str(names.get(word, word)) for word in words.split()]
    done = run(ours(*given), planted)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr


@contextlib.contextmanager
def serving(planted: Path, *words: object) -> Iterator[str]:
    """The address of a page that a command serves."""
    command = ours(*words, "--web", "--port", "0", "-q")
    env = environment(TMPDIR=str(planted))
    process = subprocess.Popen(command, cwd=planted, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield line.split()[0].rstrip("/")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.mark.long
def test_served_gallery_runs_nothing(planted: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    run_dir = stand_in.make_run(planted / "001-run", (10,))
    plant(run_dir, tmp_path / "it-ran")
    put(run_dir, "a", 1, two("a cat", "a dog"))
    plant(run_dir / "samples", tmp_path / "it-ran")
    with serving(planted, "gallery", run_dir) as url, urllib.request.urlopen(f"{url}/") as page:
        assert b"a cat" in page.read()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_demo_runs_nothing(planted: Path) -> None:
    """Its nodes, agents, ranks, loaders, saves and samples, started in the folder."""
    done = run(
        ours("demo", "--steps", "4", "--no-score", "--outputs", "outputs"), planted, timeout_s=800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(planted.glob("outputs/0*/samples/**/*.mp4"))


@pytest.mark.slow
@pytest.mark.slow
def test_programs_of_the_trainer_and_their_children_run_nothing(planted: Path) -> None:
    write_clip(planted / "good.mp4", 12)
    (planted / "clips.csv").write_text("path,text\ngood.mp4,a caption\n")
    for words in (
        ["clean-captions", "clips.csv", "clean.csv", "--workers", "2"],  # multiprocessing's spawn
        ["probe", "clips.csv", "probed.csv", "--workers", "2"],  # decoders
    ):
        done = run(module_command("trainer.data", *words), planted)
        assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_bound_process_runs_nothing_and_gets_its_words(planted: Path) -> None:
    done = run(bound_command("trainer.config", "show", "demo", "--json"), planted)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")


@pytest.mark.long
def test_ranks_import_nothing_from_the_folder_in_which_they_start(
    planted: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.mkdir()
    text = "import os, secrets, subprocess, sys\nprint(os.getcwd(), flush=True)\n"
    if sys.version_info >= (
        3,
        11,
    ):  # 3.10 has nothing that a child started so would obey: SECURITY.md
        text += "subprocess.run([sys.executable, '-m', 'uuid'], check=True)\n"
    one = Agent(tmp_path, "python3", workdir=str(planted))
    try:
        env = {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{HOME}{os.pathsep}"}
        one.order(text, program, env=env, starter=STARTER)
        assert one.hear("rank_ended")["code"] == 0
        log = one.run_dir / "ranks" / "0.log"
        wait_until(lambda: str(planted) in log.read_text())
    finally:
        one.disconnect()
