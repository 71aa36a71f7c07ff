"""Faults of nodes and of their networks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.clusterctl.launch.harness import command_line, wait_until
from tests.faults.fault import fault
from tests.faults.rig import REPO, Round, kill
from tests.faults.setting import Setting
from tests.lab.cpu_quota import CpuQuota
from tests.lab.node import LabNode
from trainer.runlog import telemetry
from trainer.runlog.slow_ranks import SlowRank, slow_ranks

REFUSED_S = 15.0  # for another command to say that a node cannot be reached
LOST_S = 12.0  # 5 without a word and 3 without an answer, where no step comes, and the polls
SPARE = Setting(spares=1, steps=70)
FEWER = Setting(may_lose=1, steps=70)


@fault("F6", "sshd of a node down for 5 s")
def sshd_down(one: Round) -> None:
    node = one.lab.nodes[2]
    one.until_step(15)
    one.strike()
    node.kill_sshd()
    begun = time.monotonic()
    asked = one.command("run", "true", str(one.lab.hostfile), name="run")
    code, took_s = asked.wait(60), time.monotonic() - begun
    said = (one.directory / "run.txt").read_text()
    if code != 3 or "node-3" not in said or took_s > REFUSED_S:
        one.notes.append(f"clusterctl run ended with {code} after {took_s:.0f} s: {said[-200:]}")
    one.until("5 s", lambda: time.monotonic() > begun + 5)
    node.start_sshd()


def spare_was_used(one: Round) -> Iterable[str]:
    attempts = one.events("attempt")
    if len(attempts) < 2 or "node-5" not in attempts[-1]["data"]["nodes"]:
        yield "the spare was not used"


@fault(
    "F7", "node dead, a spare takes its place", "node-unreachable",
    detected_s=LOST_S, setting=SPARE, check=spare_was_used,
)  # fmt: skip
def dead_node(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.lab.nodes[1 + one.seed % 3].die()


@fault(
    "F7-first", "first node dead, a spare takes its place", "node-unreachable",
    detected_s=LOST_S, setting=SPARE, check=spare_was_used,
)  # fmt: skip
def dead_first_node(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.lab.nodes[0].die()


def second_spare_was_used(one: Round) -> Iterable[str]:
    attempts = one.events("attempt")
    if "node-6" not in attempts[-1]["data"]["nodes"]:
        yield "the second spare was not used"


@fault(
    "F7-spare", "node dead, and the spare for it dies arriving", r"node-unreachable(, \S+)+",
    detected_s=LOST_S, recovered_s=45.0, setting=Setting(spares=2, steps=70),
    check=second_spare_was_used,
)  # fmt: skip
def dead_spare(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.lab.nodes[1 + one.seed % 3].die()
    one.until("the spare is chosen", lambda: len(one.events("attempt")) > 1)
    one.lab.nodes[one.setting.nodes].die()


@fault(
    "F33", "node dead, the run continues on three", "node-unreachable",
    detected_s=LOST_S, setting=FEWER, is_same=False,
)  # fmt: skip
def fewer_nodes(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.lab.nodes[1 + one.seed % 3].die()


@fault(
    "F8", "node cut off for 60 s, a spare takes its place", "node-unreachable",
    detected_s=LOST_S, setting=Setting(spares=1, steps=300),
    check=spare_was_used,
)  # fmt: skip
def partition(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.lab.nodes[2].drop_network()
    begun = time.monotonic()
    one.until("60 s", lambda: time.monotonic() > begun + 60)
    one.lab.nodes[2].restore()


@fault(
    "F8-oneway", "nothing that a node sends to the head arrives, for 10 s",
    setting=Setting(steps=200),
)  # fmt: skip
def one_way_partition(one: Round) -> None:
    cut_from_head(one, one.lab.nodes[2:3], 10.0)


@fault("F8-head", "the head reaches no node for 20 s", setting=Setting(steps=300))
def head_cut_off(one: Round) -> None:
    cut_from_head(one, one.lab.nodes, 20.0)


def cut_from_head(one: Round, nodes: Sequence[LabNode], seconds: float) -> None:
    """What these nodes send to the head goes nowhere; among each other they are connected."""
    head = f"10.231.{one.lab.subnet}.1/32"
    one.until_step(23)
    one.strike()
    for node in nodes:
        node.exec(["ip", "route", "add", "blackhole", head])
    begun = time.monotonic()
    one.until(f"{seconds:g} s", lambda: time.monotonic() > begun + seconds)
    for node in nodes:
        node.exec(["ip", "route", "del", "blackhole", head])


def reset_connections(one: Round, nodes: Sequence[LabNode] = ()) -> int:
    """End every ssh connection of these nodes, or of all; the number of them."""
    sessions = [
        pid
        for node in nodes or one.lab.nodes
        for pid in node.processes()
        if command_line(pid).startswith((b"sshd: root", b"sshd-session: root"))
    ]
    kill(sessions, signal.SIGKILL)
    return len(sessions)


@fault("F9", "all ssh connections reset, three times", setting=Setting(steps=100))
def connections_reset(one: Round) -> None:
    for number in range(3):
        one.until_step(15 + 15 * number)
        one.strike()
        if not reset_connections(one):
            one.notes.append("there was no connection to reset")


@fault("F9-often", "ssh connections reset again and again for 10 s", setting=Setting(steps=150))
def connections_flap(one: Round) -> None:
    one.until_step(15)
    one.strike()
    draw, resets, end = random.Random(one.seed), 0, time.monotonic() + 10
    while time.monotonic() < end:
        due = time.monotonic() + draw.uniform(0.2, 1.5)
        one.until("a moment", lambda due=due: time.monotonic() > due)
        resets += reset_connections(one)
    if resets < 2 * one.setting.nodes:
        one.notes.append(f"only {resets} connections were reset")


def port_is_named(one: Round) -> Iterable[str]:
    if "29777" not in one.said():
        yield "the port is not named"


HOLD_PORT = """
import socket, time
holder = socket.create_server(("", 29777))
print("held", flush=True)
time.sleep(600)
"""


def hold_port(one: Round, program: str = HOLD_PORT) -> None:
    """A program on the first node listens."""
    node = one.lab.nodes[0]
    words = ["nsenter", "-t", str(node.pid), "-m", "-n", "-p", "--", sys.executable, "-c"]
    holder = subprocess.Popen([*words, program], stdout=subprocess.PIPE)
    one.finally_(holder.wait)
    one.finally_(holder.kill)
    assert holder.stdout is not None
    holder.stdout.readline()


@fault(
    "F24", "master port taken", exit_code=1, is_same=False, prepare=hold_port,
    setting=Setting(words=("--master_port", "29777")), check=port_is_named,
)  # fmt: skip
def port_taken(one: Round) -> None:
    one.strike()


SLOW = 2  # the rank of F26
QUOTA = 0.1  # of a CPU with 4 ranks; more ranks on this machine have less of it anyway
NAMED_S = 150.0


def told_slow(one: Round) -> list[SlowRank]:
    """What the run itself has said of slow ranks."""
    found = telemetry.read(one.run_dir)
    said = (slow_ranks(event) for event in found if isinstance(event, telemetry.Event))
    return [slow for event in said for slow in event if slow.rank is not None]


def slow_rank_is_named(one: Round) -> Iterable[str]:
    told = told_slow(one)
    if wrong := [slow.sentence() for slow in told if slow.rank != SLOW]:
        yield f"another rank is called slow: {wrong[0]}"
    if not any("quota" in slow.why for slow in told if slow.rank == SLOW):
        yield f"rank {SLOW} is not said to be held back by a quota: {[one.why for one in told]}"


@fault(
    "F26", f"a node's CPU quota is cut to {QUOTA:.0%} of one: the run names the slow rank",
    setting=Setting(steps=260), check=slow_rank_is_named,
)  # fmt: skip
def slow_node(one: Round) -> None:
    one.until_step(23)
    slower = one.setting.slower
    with CpuQuota(f"faults-{os.getpid()}-{one.seed}", QUOTA / slower) as quota:
        one.strike()
        quota.hold([one.ranks[SLOW]])
        one.until("the slow rank is named", lambda: told_slow(one), NAMED_S * slower)


def is_named(one: Round) -> Iterable[str]:
    if f"rank 2 (node-{2 // one.setting.ranks + 1})" not in one.said():
        yield "the node is not named"


@fault(
    "F27", "ranks of a node frozen in the kernel (state D), a spare takes its place",
    r"hang\S*", detected_s=12.0, setting=SPARE, check=is_named,
)  # fmt: skip
def unkillable(one: Round) -> None:
    one.until_step(23)
    group = Path("/sys/fs/cgroup/freezer") / f"faults-{os.getpid()}-{one.seed}"
    group.mkdir()

    def thaw() -> None:
        (group / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()

    pid = one.ranks[2]
    one.finally_(thaw)
    (group / "cgroup.procs").write_text(str(pid))
    one.strike()
    (group / "freezer.state").write_text("FROZEN")


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPO, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def change_code(one: Round) -> None:
    """A node has the code of another commit."""
    other = one.directory / "HEAD"
    other.write_text(git("rev-parse", "HEAD~1") + "\n")
    one.lab.nodes[2].bind(other, str(Path(git("rev-parse", "--absolute-git-dir")) / "HEAD"))


def other_commit_is_named(one: Round) -> Iterable[str]:
    if "software.git_commit  node-3 " not in one.said():
        yield "the node is not named"


@fault(
    "F29",
    "a node has the code of another commit",
    exit_code=1,
    is_same=False,
    prepare=change_code,
    check=other_commit_is_named,
)
def other_code(one: Round) -> None:
    one.strike()


SILENT = """
import socket, time
holder = socket.create_server(("127.0.0.1", 29778))
print("held", flush=True)
time.sleep(600)
"""
TRACKED = Setting(
    trainer=("--wandb", "online"),
    env=("WANDB_BASE_URL=http://127.0.0.1:29778", "WANDB_API_KEY=" + "0" * 40),
    words=("--skip-preflight",),
)


@fault(
    "F21",
    "W&B server accepts and never answers",
    prepare=lambda one: hold_port(one, SILENT),
    setting=TRACKED,
)
def silent_tracker(one: Round) -> None:
    one.until_step(5)
    one.strike()
