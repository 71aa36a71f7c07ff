"""Tools on a node: deadlines, hanging process groups, bounded output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusterctl.payload import tools
from clusterctl.remote import payload as ship
from tests.clusterctl.launch.harness import REPO
from tests.clusterctl.payload.local import LocalConnection


def run_shell(command: str, timeout_s: float = 10, max_bytes: int = 1 << 20, env=None) -> dict:
    args = {"command": command, "timeout_s": timeout_s, "max_bytes": max_bytes}
    answer = ship.probe(LocalConnection(env), "shell", args, timeout_s + 20, lease=True)
    return answer["sections"]["command"]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_output_and_exit_status_come_home() -> None:
    result = run_shell("echo out; echo err >&2; exit 5")
    assert (result["state"], result["rc"]) == ("ended", 5)
    assert (result["out"], result["err"]) == ("out\n", "err\n")


def test_signal_is_a_negative_status() -> None:
    assert run_shell("kill -9 $$")["rc"] == -9


def test_bytes_that_are_no_text_stay_readable() -> None:
    assert run_shell("printf 'a\\377b'")["out"] == "a\\xffb"


def test_hanging_tool_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = run_shell(
        f"trap '' TERM; sleep 600 & echo $! >{pids}; echo $$ >>{pids}; echo begun; wait; sleep 600",
        timeout_s=0.5,
    )
    assert result["state"] == "timeout"
    assert result["rc"] is None
    assert result["out"] == "begun\n"
    assert "killed" in result["err"]
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 2
    assert wait_until(lambda: not any(map(is_alive, left)))


@pytest.mark.long
def test_background_process_that_keeps_the_pipe_does_not_hold_the_answer(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    begun = time.monotonic()
    result = run_shell(f"sleep 600 & echo $! >{pid_file}; echo done")
    pid = int(pid_file.read_text())
    try:
        assert time.monotonic() - begun < 5
        assert (result["rc"], result["out"]) == (0, "done\n")
        assert is_alive(pid)  # what the user put in the background lives on
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_output_is_bounded_and_says_so() -> None:
    result = run_shell("head -c 3000000 /dev/zero | tr '\\0' x", max_bytes=1000)
    assert len(result["out"]) == 1000
    assert result["truncated"] is True
    assert result["rc"] == 0


def test_tool_gets_no_stdin() -> None:
    assert run_shell("cat; echo end")["out"] == "end\n"


def test_end_of_the_lease_kills_the_command(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    args = {"command": f"echo $$ >{pid_file}; sleep 600", "timeout_s": 600, "max_bytes": 1000}
    stream = ship.stream(LocalConnection(), "shell", args)
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    pid = int(pid_file.read_text())
    assert is_alive(pid)
    stream.channel.close_stdin()
    assert stream.channel.wait(10) == 0
    assert not is_alive(pid)
    stream.close()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_to_the_payload_kills_the_command(tmp_path: Path, name: str) -> None:
    pid_file = tmp_path / "pid"
    args = {"command": f"echo $$ >{pid_file}; sleep 600", "timeout_s": 600, "max_bytes": 1000}
    stream = ship.stream(LocalConnection(), "shell", args)
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    pid = int(pid_file.read_text())
    os.kill(stream.channel.process.pid, getattr(signal, name))
    assert stream.channel.wait(10) is not None
    assert not is_alive(pid)
    stream.close()


def test_a_signal_that_another_thread_gets_does_not_wait_for_the_tool() -> None:
    """As one that arrives just before the main thread waits: only its next bytecode handles it."""
    from clusterctl.payload.tools import call

    main = threading.get_ident()
    seen: list[float] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))

    def work() -> str:
        waits = {"join", "_wait_for", "_wait_for_tstate_lock"}
        assert wait_until(lambda: sys._current_frames()[main].f_code.co_name in waits)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        sent = time.monotonic()
        assert wait_until(lambda: bool(seen))
        return str(seen[0] - sent)

    try:
        result = call("busy", work, 20.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result["state"] == "ended", result
    assert float(result["out"]) < 2.0


def test_fault_of_a_section_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AttributeError("partially initialized module")

    monkeypatch.setattr(tools, "_run_tool", broken)
    found = tools.section("", ["/bin/true"], 5.0)
    assert (found["state"], found["rc"]) == ("error", None)
    assert found["err"] == "AttributeError: partially initialized module"


def test_threads_find_what_tools_need_imported() -> None:
    """Python 3.13.0 gives a half-imported module to one of two threads that import it at once:
    three of six runs of preflight on a busy machine failed to ask a node's nvidia-smi."""
    program = (
        "import sys\nfrom clusterctl.payload.tools import together\n"
        "before = 'subprocess' in sys.modules\nseen = []\n"
        "together([lambda: seen.append('subprocess' in sys.modules)] * 3)\nprint(before, *seen)\n"
    )
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys\nsys.path.insert(0, {str(REPO)!r})\n{program}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["False", "True", "True", "True"]
