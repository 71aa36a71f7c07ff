"""`python -m trainer.starter` as a person types it: ranks are what `python PROGRAM` would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.starter import preload as preloading
from trainer.starter.command import parse

REPO = Path(__file__).parents[3]
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("CLUSTERCTL_", "PYTHON"))
}


class Starters:
    """What a test starts, with its programs in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[subprocess.Popen[str]] = []

    def write(self, text: str, name: str = "program.py") -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        path = f"{REPO}:{self.folder}"
        self.made.append(
            subprocess.Popen(
                [sys.executable, "-m", "trainer.starter", *words],
                env={**CLEAN, "PYTHONPATH": path, **env},
                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
        return self.made[-1]

    def run(self, *words: str, **env: str) -> tuple[int, str]:
        process = self.start(*words, **env)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out


@pytest.fixture
def starters(tmp_path: Path) -> Iterator[Starters]:
    made = Starters(tmp_path)
    yield made
    for process in made.made:
        process.kill()
        process.communicate()


def wait_for(condition: Any, limit_s: float = 20.0) -> Any:
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


SAY = """
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
print(json.dumps([sys.argv, __name__, {name: os.environ[name] for name in names}]))
"""


@pytest.mark.long
def test_ranks_have_their_numbers_and_their_arguments(starters: Starters) -> None:
    program = starters.write(SAY)
    words = ["--nnodes", "3", "--node_rank", "2", "--nproc_per_node", "2", "--master_addr", "n1"]
    arguments = [program, "--lr", "1", "--", "-m", "x y", ""]
    code, out = starters.run(*words, *arguments)
    assert code == 0, out
    for local, line in enumerate(sorted(out.splitlines(), key=lambda text: '"RANK": "5"' in text)):
        argv, name, variables = json.loads(line)
        assert (argv, name) == (arguments, "__main__")
        assert variables == {
            "RANK": str(4 + local), "LOCAL_RANK": str(local), "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500",
        }  # fmt: skip


def test_first_rank_and_world_size_are_for_nodes_that_differ() -> None:
    words = "--nnodes 2 --node_rank 1 --first_rank 3 --world_size 4 -m a.b --nnodes 9"
    command = parse(words.split())
    assert command.variables(0)["RANK"] == "3"
    assert command.variables(0)["WORLD_SIZE"] == "4"
    assert command.program.words == ("-m", "a.b", "--nnodes", "9")


@pytest.mark.long
def test_command_without_a_program_is_refused(starters: Starters) -> None:
    code, out = starters.run("--nnodes", "1", "-m")
    assert (code, "there is no program" in out) == (2, True)


# Compared with what `python` itself does with the same program.
PROGRAMS = {
    "exit": "import sys\nsys.exit(5)",
    "message": "import sys\nsys.exit('an explanation')",
    "exception": "raise ValueError('no frames')",
    "interrupt": "raise KeyboardInterrupt",
    "atexit": "import atexit, sys\natexit.register(print, 'bye')\nprint('end', end='')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('t'))).start()",
    "syntax": "def",
    "names": "print(sorted(n for n in globals() if n != '__annotations__'), __name__, __spec__ and __spec__.name)",
    "path": "import os, sys\nprint(sys.path[0], os.getcwd(), sys.argv, sys.stdin.read())",
    "spawn": (
        "import multiprocessing\ndef work(queue): queue.put(__name__)\n"
        "if __name__ == '__main__':\n    for kind in ('spawn', 'forkserver', 'fork'):\n"
        "        context = multiprocessing.get_context(kind)\n        queue = context.Queue()\n"
        "        child = context.Process(target=work, args=(queue,))\n        child.start()\n"
        "        print(kind, queue.get())\n        child.join()\n        print(child.exitcode)\n"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rank_runs_its_program_as_python_does(
    starters: Starters, name: str, as_module: bool
) -> None:
    path = starters.write(PROGRAMS[name])
    words = ["-m", "program", "a"] if as_module else [path, "a"]
    plain = subprocess.run(
        [sys.executable, *words], cwd=starters.folder, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**CLEAN, "PYTHONPATH": f"{REPO}:{starters.folder}"}, check=False,
    )  # fmt: skip
    run_dir = {"CLUSTERCTL_RUN_DIR": str(starters.folder)}
    code, out = starters.run("--preload", "program_not_found", *words, **run_dir)
    log = (starters.folder / "ranks" / "0.log").read_text()
    assert (code, "program_not_found" in out) == (int(plain.returncode != 0), True)
    frames = (
        "File",
        "^",
        "~",
        "runpy",
        "outcome",
        "self._run",
        "exec(",
        "Traceback",
        "_run_module",
        "return _run_code",
        "mod_name, mod_spec",
    )
    shown = [line for line in log.splitlines() if not line.strip().startswith(frames)]
    expected = [line for line in plain.stdout.splitlines() if not line.strip().startswith(frames)]
    assert shown == expected


@pytest.mark.long
def test_module_that_was_imported_before_is_run_without_a_warning(starters: Starters) -> None:
    starters.write("print('run as', __name__)\n", "once.py")
    code, out = starters.run("--nproc_per_node", "2", "--preload", "once", "-m", "once")
    assert (code, sorted(out.splitlines())) == (
        0, ["run as __main__", "run as __main__", "run as once"]
    )  # fmt: skip


@pytest.mark.long
def test_imports_are_shared_and_random_numbers_are_not(starters: Starters) -> None:
    starters.write("import os\nHOME = os.getpid()\n", "shared.py")
    program = starters.write(
        "import os, random, shared, numpy\n"
        "print(shared.HOME, os.getpid(), random.random(), numpy.random.random())"
    )
    words = ["--nproc_per_node", "2", "--preload", "shared", "--preload", "numpy"]
    code, out = starters.run(*words, program)
    assert code == 0, out
    columns = [set(column) for column in zip(*map(str.split, out.splitlines()), strict=True)]
    assert [len(column) for column in columns] == [1, 2, 2, 2]


@pytest.mark.long
def test_tools_see_command_and_variables_of_a_rank(starters: Starters) -> None:
    program = starters.write("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    process = starters.start(program, "--lr", "1", PLAIN="here")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert [word.decode() for word in line] == [sys.executable, program, "--lr", "1"]
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert {"RANK=0", "WORLD_SIZE=1", "PLAIN=here"} <= set(variables)
    assert b"RANK=0" not in Path(f"/proc/{process.pid}/environ").read_bytes()


@pytest.mark.long
def test_ranks_end_with_a_killed_starter(starters: Starters) -> None:
    program = starters.write(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    process = starters.start(program)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    wait_for(lambda: _has_ended(pid))


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_lets_ranks_save_and_end(starters: Starters, number: signal.Signals) -> None:
    program = starters.write(
        "import os, signal, sys, time\n"
        "def save(*_):\n    os.write(1, b'saved\\n'); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    process = starters.start("--nproc_per_node", "2", program)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (128 + number, "saved\nsaved\n")


@pytest.mark.long
def test_peers_of_a_failed_rank_are_ended_after_a_while(starters: Starters) -> None:
    program = starters.write(
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)\n"
    )
    begun = time.monotonic()
    code, _ = starters.run("--nproc_per_node", "2", program)
    assert code == 1
    assert 4.5 < time.monotonic() - begun < 30


@pytest.mark.long
def test_rank_that_cannot_use_what_was_imported_starts_afresh(starters: Starters) -> None:
    """As with CUDA, which a module has started: torch says so in the forked process."""
    fake = "import os, types\nHOME = os.getpid()\ncuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != HOME)\n"
    starters.write(fake, "torch.py")
    program = starters.write(
        "import os, sys, torch\nprint(sys.argv, torch.HOME == os.getpid(), os.environ['RANK'])"
    )
    code, out = starters.run("--preload", "torch", program, "x")
    assert (code, out) == (0, f"{[program, 'x']} True 0\n")


@pytest.mark.long
def test_cuda_is_not_asked_where_no_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks CUDA where NVML does not answer, and then no rank can be forked."""
    seen = []
    monkeypatch.setattr(
        preloading.importlib, "import_module", lambda _: seen.append(dict(os.environ))
    )
    for drivers, hidden in ((("/not/there",), ""), (("/proc",), None)):
        monkeypatch.setattr(preloading, "_DRIVERS", drivers)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        preloading.preload(["any"], ["-m", "any"])
        assert seen.pop().get("CUDA_VISIBLE_DEVICES") == hidden
        assert "CUDA_VISIBLE_DEVICES" not in os.environ  # ranks get what the launcher gives
    monkeypatch.setattr(preloading, "_DRIVERS", ("/not/there",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    preloading.preload(["any"], ["-m", "any"])
    assert seen.pop()["CUDA_VISIBLE_DEVICES"] == "3"
