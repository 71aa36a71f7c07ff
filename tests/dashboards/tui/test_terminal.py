"""`clusterctl top` in a real terminal: tmux draws, presses keys, and tells what is left behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.runs import write_run

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """One tmux server of our own with one window."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = f"test-{uuid.uuid4().hex[:8]}"

    def tmux(self, *args: str) -> str:
        command = ["tmux", "-L", self.socket, "-f", "/dev/null", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout

    def start(self, *args: str, size: tuple[int, int] = (80, 24), env: str = "") -> None:
        """A shell in which top runs, and which stays afterwards."""
        top = shlex.join([sys.executable, "-m", "clusterctl", "top", *args])
        script = f"cd {shlex.quote(str(self.directory))}; {env} {top}; echo LEFT=$?; exec cat"
        self.tmux("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "sh", "-c", script)

    def screen(self, *options: str) -> str:
        return self.tmux("capture-pane", "-p", *options)

    def wait_for(self, text: str) -> str:
        try:
            until(lambda: text in self.screen(), 60)
        except AssertionError:
            raise AssertionError(f"{text!r} did not appear on:\n{self.screen()}") from None
        return self.screen()

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def assert_clean(self, code: int = 0) -> None:
        """The shell's own screen again, with cursor and echo, and no mouse reporting."""
        text = self.wait_for(f"LEFT={code}")
        assert "ml-64" not in text
        flags = self.tmux("display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}")
        assert flags.strip() == "001"
        tty = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        modes = subprocess.run(["stty", "-a", "-F", tty], capture_output=True, text=True).stdout
        assert re.search(r"(^| )echo( |;|$)", modes)
        assert re.search(r"(^| )icanon( |;|$)", modes)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path)
    yield one
    one.tmux("kill-server")


@pytest.mark.long
def test_keys_work_and_the_terminal_is_left_clean(terminal: Terminal) -> None:
    terminal.start("--demo")
    text = terminal.wait_for("power x10 W")
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    for name in ("001", "012", "013", "024", "banner", "015-STDiT3-XL-2"):
        assert name in text
    terminal.keys("j", "j", "j", "l", "l", "l")
    terminal.wait_for("ml-64-node-004  GPU 3")
    terminal.keys("3")
    terminal.wait_for("where a step goes")
    terminal.keys("?")
    terminal.wait_for("esc closes")
    terminal.keys("Escape")
    # Not the next key at once: escape and a digit behind it are Alt and the digit to any terminal.
    until(lambda: "esc closes" not in terminal.screen(), 60)
    terminal.keys("1")
    terminal.wait_for("power x10 W")
    terminal.tmux("resize-window", "-x", "50", "-y", "12")
    terminal.wait_for("50x12 is too small, 60x16 is needed")
    terminal.tmux("resize-window", "-x", "200", "-y", "50")
    text = terminal.wait_for("last minutes")
    assert max(map(len, text.splitlines())) <= 200
    terminal.keys("q")
    terminal.assert_clean()


@pytest.mark.slow
def test_view_ends_with_its_terminal(terminal: Terminal) -> None:
    terminal.start("--demo", env="NO_COLOR=1")
    terminal.wait_for("power x10 W")
    shell = terminal.tmux("display-message", "-p", "#{pane_pid}").strip()
    views = psutil.Process(int(shell)).children(recursive=True)
    assert views
    terminal.tmux("kill-server")
    _, alive = psutil.wait_procs(views, timeout=60)
    assert not alive


def assert_whole(screen: str, width: int, height: int) -> None:
    """No line is longer than the terminal, and every box is closed where it has to be."""
    lines = screen.splitlines()
    assert len(lines) <= height
    for line in lines:
        assert len(line) <= width, line
        if line[:1] in "│╭╰" and line:
            assert len(line) == width, line
            assert line[-1] == {"│": "│", "╭": "╮", "╰": "╯"}[line[0]], line
        assert line.count("╭") == line.count("╮"), line


@pytest.mark.long
def test_no_screen_is_broken_at_any_size(terminal: Terminal) -> None:
    terminal.start("--demo", size=(200, 50))
    terminal.wait_for("power")
    for width, height in ((200, 50), (120, 40), (80, 24)):
        terminal.tmux("resize-window", "-x", str(width), "-y", str(height))
        for key, text in (
            ("1", "low "),
            ("2", "1/24"),
            ("3", "where a step goes"),
            ("4", "first "),
            ("5", "collects the stacks"),
        ):
            terminal.keys(key)
            terminal.wait_for(text)
            try:
                until(lambda w=width, h=height: is_whole(terminal.screen(), w, h), 60)
            except AssertionError:
                assert_whole(terminal.screen(), width, height)  # says which line
                raise
    terminal.keys("q")
    terminal.assert_clean()


def is_whole(screen: str, width: int, height: int) -> bool:
    """Whether tmux has drawn all of it: a resize and a change of screens come in pieces."""
    try:
        assert_whole(screen, width, height)
    except AssertionError:
        return False
    lines = screen.splitlines()
    return any(len(line) == width for line in lines) and "1 Cluster" in lines[-1]


@pytest.mark.long
def test_without_colour_not_one_colour_code_is_sent(terminal: Terminal) -> None:
    terminal.start("--demo", env="NO_COLOR=1")
    terminal.wait_for("power x10 W")
    codes = re.findall(r"\x1b\[([\d;:]*)m", terminal.screen("-e"))
    assert codes
    numbers = {number for code in codes for number in re.split("[;:]", code) if number}
    assert numbers <= {"0", "1", "2", "4", "7", "22", "24", "27", "39", "49"}, numbers
    terminal.keys("C-c")
    terminal.assert_clean()


@pytest.mark.long
def test_sixteen_colours_are_enough(terminal: Terminal) -> None:
    terminal.start("--demo", env="env -u COLORTERM TERM=xterm-color")
    terminal.wait_for("power x10 W")
    codes = re.findall(r"\x1b\[([\d;:]*)m", terminal.screen("-e"))
    assert not any(code.startswith(("38", "48")) or ";38" in code for code in codes), codes
    terminal.keys("q")
    terminal.assert_clean()


@pytest.mark.long
def test_replay_begins_with_the_run_and_sigterm_leaves_the_terminal_clean(
    terminal: Terminal,
) -> None:
    write_run(terminal.directory / "001-x", steps=300)
    terminal.start("--replay", "001-x", "--speed", "100000")
    terminal.wait_for("300/900")
    (pid,) = re.findall(
        r"\d+", subprocess.run(["pgrep", "-P", terminal.tmux("display-message", "-p", "#{pane_pid}").strip()], capture_output=True, text=True).stdout
    )  # fmt: skip
    os.kill(int(pid), signal.SIGTERM)
    terminal.assert_clean()
