"""Another user of the same nodes and the same head, who runs the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterctl.launch.journal import EVENTS_FILE
from tests.clusterctl.launch.harness import read_lines
from tests.faults.fault import fault
from tests.faults.rig import REPO, Late, Round, kill
from tests.faults.setting import Setting
from tests.lab.node import WORKER, LabNode, passwd

UID = 64200  # of WORKER
COMMAND_S = 60.0
# The head has this user for these commands alone, with the right to read the interpreter below a
# closed /root, and nothing else of root's rights.
WITH_USER = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount --bind "$1" /etc/passwd && shift && exec "$@"',
    "sh",
]
AS_WORKER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
AS_WORKER += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


def let_read(node: LabNode) -> None:
    """The interpreter, its libraries and the code can be reached by every user of the node."""
    wanted = [Path(name) for name in (sys.prefix, sys.base_prefix, REPO)]
    closed = {up for path in wanted for up in path.parents if not up.stat().st_mode & 0o001}
    for folder in (up for up in closed if not closed & set(up.parents)):
        below = [path for path in wanted if folder in path.parents]
        lines = ["set -e"]
        for number, path in enumerate(below):
            lines += [f"mkdir -p /run/open/{number}", f"mount --rbind '{path}' /run/open/{number}"]
        lines += [f"mount -t tmpfs -o mode=755 tmpfs '{folder}'"]
        for number, path in enumerate(below):
            lines += [f"mkdir -p '{path}'", f"mount --rbind /run/open/{number} '{path}'"]
        done = node.exec(["sh", "-c", "\n".join(lines)])
        assert done.returncode == 0, done.stderr


class Colleague:
    """Has the same configuration, nodes and data, and a home of their own."""

    def __init__(self, one: Round) -> None:
        self.one, self.home = one, one.directory / "colleague"
        self.outputs, self.faults = self.home / "outputs", self.home / "faults"
        for folder in (self.outputs, self.faults / "samples", self.faults / "orders"):
            folder.mkdir(parents=True)
        identity = self.home / "identity"
        shutil.copy(one.lab.identity, identity)
        identity.chmod(0o600)
        text = one.lab.hostfile.read_text().replace("user=root", f"user={WORKER}")
        self.hostfile = self.home / "nodes.txt"
        self.hostfile.write_text(text.replace(str(one.lab.identity), str(identity)))
        self.passwd = self.home / "passwd"
        self.passwd.write_text(passwd())
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, UID, UID)

        one.finally_(self.end)

    def end(self) -> None:
        """The supervisor, too, which no launch takes along."""
        with contextlib.suppress(OSError, ValueError):
            kill([int(json.loads((self.run_dir / ".owner").read_text())["pid"])], signal.SIGKILL)

    def start(self, words: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        env = {**self.one.environment(), "HOME": str(self.home), "LOGNAME": WORKER, "USER": WORKER}
        env["XDG_STATE_HOME"] = str(self.home / "state")
        with (self.home / f"{name}.txt").open("ab") as out:
            command = subprocess.Popen(
                [*WITH_USER, str(self.passwd), *AS_WORKER, sys.executable, "-m", "clusterctl", *words],
                cwd=REPO, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self.one.finally_(command.wait)
        self.one.finally_(command.kill)
        return command

    def ask(self, *words: str) -> tuple[int, str]:
        code = self.start(words, words[0]).wait(COMMAND_S)
        return code, (self.home / f"{words[0]}.txt").read_text()

    def launch(self) -> None:
        """What the first user launches, until somebody ends it."""
        mine = {
            str(self.one.outputs): str(self.outputs),
            f"FAULTS_DIR={self.one.faults}": f"FAULTS_DIR={self.faults}",
            str(self.one.lab.hostfile): str(self.hostfile),
            str(self.one.setting.steps): "1000000",
        }
        words = [mine.get(word, word) for word in self.one.words()]
        self.command = self.start(words, "launch")

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        """As for the first user's run. Raises `Late`, at once where the launch has ended."""
        self.one.until(what, lambda: condition() or self.command.poll() is not None)
        if self.command.poll() is not None:
            said = (self.home / "launch.txt").read_text()
            raise Late(f"{what}: the launch ended with {self.command.returncode}: {said[-600:]}")

    @property
    def run_dir(self) -> Path:
        return next(self.outputs.glob("001-*"), self.outputs / "001-none")

    @property
    def run_id(self) -> str:
        return str(json.loads((self.run_dir / "plan.json").read_text())["run_id"])

    def events(self, *names: str) -> list[dict[str, Any]]:
        every = read_lines(self.run_dir / EVENTS_FILE)
        return [one for one in every if one["event"] in names]

    def steps(self) -> int:
        found = [read_lines(path) for path in (self.faults / "samples").iterdir()]
        return max((line["step"] for lines in found for line in lines), default=0)


def trains_first(one: Round) -> None:
    """The other user's run takes steps before root launches the same."""
    for node in one.lab.nodes:
        let_read(node)
    other = one.other = Colleague(one)
    other.launch()
    other.until("the other run takes steps", lambda: other.steps() >= 3)


def root_asks(one: Round, *words: str) -> str:
    one.command(*words, str(one.lab.hostfile), name=words[0]).wait(COMMAND_S)
    return (one.directory / f"{words[0]}.txt").read_text()


def is_in(text: str, run: Round | Colleague) -> bool:
    """By its id or its directory, as commands name it."""
    return run.run_id in text or str(run.run_dir) in text


def mixed_up(one: Round, other: Colleague) -> Iterator[str]:
    """What of the other's run counts as one's own."""
    for verb, more in (("runs", ()), ("kill", ("--dry-run",))):
        theirs = other.ask(verb, str(other.hostfile), *more)[1]
        ours = root_asks(one, verb, *more)
        if not is_in(theirs, other) or not is_in(ours, one):
            yield f"{verb} does not know one's own run: {theirs[-300:]} {ours[-300:]}"
        if is_in(theirs, one):
            yield f"{verb} of a user has root's run: {theirs[-300:]}"
        if is_in(ours, other):
            yield f"{verb} of root has the user's run: {ours[-300:]}"


@fault(
    "F38", "another user runs the same on the same nodes, from the same head: a rank of one is killed,"
    " the other run is killed by its user", "signal-9", recovered_s=60.0, prepare=trains_first,
    setting=Setting(steps=200),
)  # fmt: skip
def other_user(one: Round) -> None:
    other = one.other
    one.until_step(23)
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)
    one.until("the next attempt", lambda: len(one.events("start")) > 1)
    before = other.steps()
    other.until("the other run goes on", lambda: other.steps() > before)
    if disturbed := other.events("failure", "incident", "restart"):
        one.notes.append(f"the other run was disturbed: {disturbed[0]['text']}")
    one.notes += mixed_up(one, other)
    code, said = other.ask("kill", str(other.hostfile), "--yes")
    if code:
        one.notes.append(f"kill of the other user ended with {code}: {said[-300:]}")
    one.until("the other run is over", lambda: other.command.poll() is not None)
