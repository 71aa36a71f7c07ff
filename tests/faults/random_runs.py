"""Runs with three random faults each, at random moments; none of these faults may end a run."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.clusterctl.launch.harness import command_line, parent, tagged
from tests.faults.cases.disks import newest
from tests.faults.cases.machines import HOUR_S, head_clock_can_be_set
from tests.faults.cases.nodes import reset_connections
from tests.faults.cases.owners import GOES_DOWN_S
from tests.faults.cases.ranks import decoders
from tests.faults.fault import Fault
from tests.faults.proof import step_of
from tests.faults.rig import BATCH, CLIPS, Late, Round, kill
from tests.faults.setting import Setting
from tests.lab.node import LabNode

STEPS, EVERY = 100, 10  # steps of a run, between two checkpoints
MOMENT_S = 60.0
SETTING = Setting(spares=2, steps=STEPS)
ERROR = "error in a rank"
Chance = random.Random


@dataclass(frozen=True)
class Drawn:
    """A fault and when it happens, drawn before the run so that its seed repeats it."""

    moment: str
    harm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.harm} {self.moment}"


def members(one: Round) -> list[LabNode]:
    """The nodes of the newest attempt that live."""
    names = one.events("attempt")[-1]["data"]["nodes"]
    return [n for n in one.lab.nodes if n.name in names and n.process and n.process.poll() is None]


# When.


def now(one: Round, draw: Chance) -> None:
    """After some steps of whatever attempt this is."""
    count = len(one.steps()) + draw.randrange(1, 12)
    one.until("some steps", lambda: len(one.steps()) >= count or one.is_over, MOMENT_S)


def in_save(one: Round, draw: Chance) -> None:
    known = set(one.run_dir.iterdir())
    one.until("a save", lambda: set(one.run_dir.iterdir()) - known or one.is_over, MOMENT_S)


def at_epoch_turn(one: Round, draw: Chance) -> None:
    def is_last() -> bool:
        steps = one.steps()
        epoch = CLIPS // BATCH // one.setting.world  # its steps
        return bool(steps) and steps[-1].step % epoch == 0

    one.until("the end of an epoch", lambda: is_last() or one.is_over, MOMENT_S)


def in_restart(one: Round, draw: Chance) -> None:
    """While the fault before this one is being repaired: anything after its failure."""
    seen = len(one.events("failure"))
    wanted = draw.choice(("failure", "restart", "nodes", "attempt"))
    count = len(one.events(wanted))

    def has_come() -> bool:
        return len(one.events(wanted)) > count or one.is_over

    if not seen:
        kill_rank(one, draw)
    wait(one, has_come, 25)


def at_rendezvous(one: Round, draw: Chance) -> None:
    """After the ranks of the next attempt were started, before its first step."""
    count = len(one.events("start"))
    if draw.random() < 0.7:
        kill_rank(one, draw)
    wait(one, lambda: len(one.events("start")) > count or one.is_over, 25)


def wait(one: Round, condition: Callable[[], bool], seconds: float) -> None:
    """As `until`, for what may not come."""
    try:
        one.until("", condition, seconds)
    except Late:
        if one.has_ended:
            raise


MOMENTS = {
    "after some steps": now,
    "in a save": in_save,
    "at the turn of an epoch": at_epoch_turn,
    "in a restart": in_restart,
    "at a rendezvous": at_rendezvous,
}

# What.


def kill_rank(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([ranks[draw.choice(sorted(ranks))]] if ranks else [], signal.SIGKILL)


def end_rank(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([ranks[draw.choice(sorted(ranks))]] if ranks else [], signal.SIGSEGV)


def tell_rank(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([ranks[draw.choice(sorted(ranks))]] if ranks else [], signal.SIGTERM)


def tell_starter(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([parent(ranks[draw.choice(sorted(ranks))])] if ranks else [], signal.SIGTERM)


def tell_agent(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([parent(parent(ranks[draw.choice(sorted(ranks))]))] if ranks else [], signal.SIGTERM)


def stop_rank(one: Round, draw: Chance) -> None:
    ranks = one.ranks
    kill([ranks[draw.choice(sorted(ranks))]] if ranks else [], signal.SIGSTOP)


def kill_ranks(one: Round, draw: Chance) -> None:
    kill(list(one.ranks.values()), signal.SIGKILL)


def kill_starter(one: Round, draw: Chance) -> None:
    found = [pid for pid in tagged(one.run_id) if b"trainer.starter" in command_line(pid)]
    ranks = set(one.ranks.values())
    starters = sorted(pid for pid in found if pid not in ranks)
    kill([draw.choice(starters)] if starters else [], signal.SIGKILL)


def kill_loader(one: Round, draw: Chance) -> None:
    kill(decoders(one, draw.randrange(4)), signal.SIGKILL)


def raise_error(one: Round, draw: Chance) -> None:
    one.order(draw.randrange(4), "error")


def reset(one: Round, draw: Chance) -> None:
    reset_connections(one)


def kill_node(one: Round, draw: Chance) -> None:
    draw.choice(members(one)).die()


def restart_node(one: Round, draw: Chance) -> None:
    """As a machine goes down in order: SIGTERM to all of it, some seconds later it is gone."""
    node = draw.choice(members(one))
    kill([pid for pid in node.processes() if pid != node.pid], signal.SIGTERM)
    wait(one, lambda: one.is_over, draw.uniform(0.0, GOES_DOWN_S))
    node.die()


def kill_arriving_spare(one: Round, draw: Chance) -> None:
    """A node dies, and so does the spare that takes its place, as soon as it is chosen."""
    count = len(one.events("attempt"))
    draw.choice(members(one)).die()
    wait(one, lambda: len(one.events("attempt")) > count or one.is_over, 60)
    for node in members(one):
        if node.name in one.lab.names[SETTING.nodes :] and len(one.events("attempt")) > count:
            node.die()
            return


def freeze_node(one: Round, draw: Chance) -> None:
    node = draw.choice(members(one))
    node.freeze()
    wait(one, lambda: one.is_over, draw.uniform(1.0, 6.0))
    node.thaw()


def cut_node_off(one: Round, draw: Chance) -> None:
    node = draw.choice(members(one))
    node.drop_network()
    wait(one, lambda: one.is_over, draw.uniform(1.0, 10.0))
    node.restore()


def kill_supervisor(one: Round, draw: Chance) -> None:
    end_supervisor(one, signal.SIGKILL)


def tell_supervisor(one: Round, draw: Chance) -> None:
    end_supervisor(one, signal.SIGTERM)


def end_supervisor(one: Round, how: signal.Signals) -> None:
    try:
        kill([one.supervisor], how)
    except (OSError, ValueError):
        return  # it has just ended, or the next one begins


def set_head_clock(one: Round, draw: Chance) -> None:
    one.answers.set_clock(draw.choice((-24, -1, 1, 24)) * HOUR_S)


def kill_view(one: Round, draw: Chance) -> None:
    one.view.kill()


def damage_checkpoint(one: Round, draw: Chance) -> None:
    """Of the newest checkpoint; then a rank is killed, so that somebody reads it."""
    made = [p for p in one.run_dir.glob("epoch*-global_step*") if (p / "manifest.json").exists()]
    if len(made) > 1 and step_of(newest(one).name) < STEPS:
        victim = draw.choice(sorted(p for p in newest(one).rglob("*.safetensors")))
        data = bytearray(victim.read_bytes())
        data[draw.randrange(len(data))] ^= 0x10
        victim.write_bytes(data)
    kill_rank(one, draw)


# Weighted by how often each is drawn; at most one of those that cost a node for good.
HARMS: dict[str, tuple[int, Callable[[Round, Chance], None]]] = {
    "rank killed": (3, kill_rank),
    "rank ended by SIGSEGV": (1, end_rank),
    "rank told to end": (1, tell_rank),
    "starter told to end": (1, tell_starter),
    "agent told to end": (1, tell_agent),
    "rank stopped": (1, stop_rank),
    "all ranks killed": (1, kill_ranks),
    "starter killed": (2, kill_starter),
    "loader killed": (1, kill_loader),
    ERROR: (1, raise_error),
    "connections reset": (2, reset),
    "node dead": (2, kill_node),
    "node goes down in order": (1, restart_node),
    "node and the spare for it dead": (1, kill_arriving_spare),
    "node frozen for a while": (1, freeze_node),
    "node cut off for a while": (2, cut_node_off),
    "supervisor killed": (4, kill_supervisor),
    "supervisor told to end": (1, tell_supervisor),
    "view killed": (1, kill_view),
    "clock of the head set": (1, set_head_clock),
    "checkpoint damaged": (1, damage_checkpoint),
}
COSTS = {"node dead": 1, "node goes down in order": 1, "node and the spare for it dead": 2}


def drawn(seed: int) -> list[Drawn]:
    """The three faults of a seed; they never cost more nodes than there are spares."""
    draw = random.Random(seed)
    found: list[Drawn] = []
    left = SETTING.spares
    while len(found) < 3:
        weights = [weight for weight, _ in HARMS.values()]
        harm = draw.choices(list(HARMS), weights)[0]
        # The same error twice without a checkpoint in between rightly ends a run.
        is_again = harm == ERROR and harm in [one.harm for one in found]
        if COSTS.get(harm, 0) > left or is_again:
            continue
        left -= COSTS.get(harm, 0)
        moments = list(MOMENTS) if found else list(MOMENTS)[:3]
        found.append(Drawn(draw.choice(moments), harm, draw.randrange(1 << 30)))
    return found


def random_run(seed: int) -> Fault:
    """A fault that is three; the same for the same seed."""
    plan = drawn(seed)

    def inject(one: Round) -> None:
        one.stays = True
        one.until_step(5)
        for step in plan:
            draw = random.Random(step.seed)
            MOMENTS[step.moment](one, draw)
            if one.is_over:
                return
            one.strike()
            one.made.append(f"{step} after step {max((s.step for s in one.steps()), default=0)}")
            HARMS[step.harm][1](one, draw)

    title = ", then ".join(map(str, plan))
    return Fault(
        "random",
        title,
        inject,
        cause=r"[\w-]*(, [\w-]+)*",
        setting=SETTING,
        prepare=head_clock_can_be_set,
    )
