"""What a launch will do, as data: `--dry-run` prints it, `plan.json` keeps it. No IO."""

from __future__ import annotations

import hashlib
import itertools
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.launch.environment import Environment
from clusterctl.nodes import Node, fold
from clusterctl.payload.secrets.mask import hide_words

# Outside the kernel's ephemeral ports (32768 up), so that no outgoing connection holds one.
PORT_RANGE = range(29500, 30000)
PORT_CHOICES = 20  # that the first node tries


@dataclass(frozen=True, slots=True)
class Share:
    node: Node
    node_rank: int
    first_rank: int
    slots: int  # processes on this node

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.slots)


def assign_ranks(nodes: Sequence[Node], slots: Mapping[str, int]) -> tuple[Share, ...]:
    """Ranks in the hostfile's order; `slots` holds the number of processes by node name."""
    shares: list[Share] = []
    for node in nodes:
        first_rank = shares[-1].ranks.stop if shares else 0
        shares.append(Share(node, len(shares), first_rank, slots[node.name]))
    return tuple(shares)


class Rendezvous(NamedTuple):
    """Where the ranks meet: an address and a port of the first node."""

    address: str
    port: int


STILL_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that the supervisor and the agents wait for something."""

    start_s: float = 900.0  # from the start of the ranks to the first StepRecord; 0: no limit
    # Without a step after that, or 5 times the longest recent one; 0: no limit.
    hang_s: float = 600.0
    look_s: float = 30.0  # that a stop for one of these two may wait for the stacks; 0: none taken
    grace_s: float = 30.0  # an orderly stop: from SIGTERM to SIGKILL, time for a checkpoint
    fail_grace_s: float = 3.0  # the same after a rank has died: its peers have nothing to save
    lease_s: float = 60.0  # an agent without a message from the head for so long stops its ranks
    # A node without a message for so long is connected again, and lost where no step came meanwhile
    # (agents beat at 1 Hz).
    silent_s: float = 15.0
    hello_s: float = 20.0  # from the channel to the agent's report of the node's state

    def end_grace_s(self, is_asked: bool, stood_still: bool) -> float:
        """From SIGTERM to SIGKILL; ranks that waited for a lost or stopped one save nothing."""
        if is_asked:
            return self.grace_s
        return min(self.fail_grace_s, STILL_GRACE_S) if stood_still else self.fail_grace_s


def job_id_of(config: str, workdir: Path, run_dir: Path) -> str:
    """The same for runs that would write the same outputs from the same config."""
    text = "\0".join((config, str(workdir), str(run_dir.parent)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch. Raises `UsageError` for an argument that cannot be passed to a program."""

    run_id: str
    config: str
    run_dir: Path
    workdir: Path
    python: str
    device: str
    shares: tuple[Share, ...]
    address: str  # of the first node: the user's --master_addr, else the first choice
    address_fixed: bool  # the user's; else the first node's own addresses are tried as well
    ports: tuple[int, ...]  # candidates for the master port; one when the user gave it
    environment: Environment
    program: tuple[str, ...]  # what python runs as a rank: ("-m", "trainer.train", CONFIG, …)
    starter: tuple[str, ...]  # what starts a node's ranks: (python, "-m", "trainer.starter")
    preload: tuple[str, ...] = ()  # modules that it imports once for all ranks of a node
    timing: Timing = Timing()
    share: str = ""  # the group that may read the run directory; nobody else without
    attempt: int = 1
    checkpoint: str | None = None  # name of the one in the run directory to continue from
    # What a head says at an agent's socket. It cannot be guessed.
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        for word in self.program:
            if "\0" in word:
                raise UsageError(f"the argument {word!r} holds a zero byte")

    @property
    def rank_program(self) -> tuple[str, ...]:
        """`program`, from the attempt's checkpoint on."""
        return (*self.program, *(("--resume-from", self.checkpoint) if self.checkpoint else ()))

    @property
    def job_id(self) -> str:
        """The same for launches that would write the same outputs from the same config."""
        return job_id_of(self.config, self.workdir, self.run_dir)

    @property
    def nodes(self) -> list[Node]:
        return [share.node for share in self.shares]

    @property
    def port_word(self) -> str:
        """What the first node answers at the master port; `token` does not follow from it."""
        return hashlib.sha256(f"master port {self.token}".encode()).hexdigest()[:16]

    @property
    def world_size(self) -> int:
        return sum(share.slots for share in self.shares)

    @property
    def master(self) -> Node:
        return self.shares[0].node

    def argv(self, share: Share, meet: Rendezvous) -> list[str]:
        """The command of a node, which also works where a person types it."""
        options = {
            "--nnodes": len(self.shares),
            "--node_rank": share.node_rank,
            "--nproc_per_node": share.slots,
            "--first_rank": share.first_rank,
            "--world_size": self.world_size,
            "--master_addr": meet.address,
            "--master_port": meet.port,
        }
        words = [str(word) for option in options.items() for word in option]
        words += [word for module in self.preload for word in ("--preload", module)]
        return [*self.starter, *words, *self.rank_program]

    def agent_args(self, share: Share) -> dict[str, Any]:
        """Arguments of a node's agent payload: what it checks and prepares before the start."""
        return {
            "run": self.run_id,
            "attempt": self.attempt,
            "job": self.job_id,
            "word": self.token,
            "port_word": self.port_word,
            "group": self.share,
            "node": share.node.name,
            "run_dir": str(self.run_dir),
            "workdir": str(self.workdir),
            **_values(self, "python", "device", "address", "ports"),
            **_values(share, "first_rank", "slots"),
            **_values(self.timing, "grace_s", "fail_grace_s", "lease_s"),
        }

    def to_json(self) -> dict[str, Any]:
        """The plan without secrets; commands are those of the first choice of address and port."""
        meet = Rendezvous(self.address, self.ports[0])
        return {
            **_values(self, "run_id", "job_id", "config", "attempt", "checkpoint"),
            "run_dir": str(self.run_dir),
            "workdir": str(self.workdir),
            **_values(self, "python", "device", "world_size"),
            "master_addr": self.address,
            "master_addr_fixed": self.address_fixed,
            "ports": list(self.ports),
            "environment": self.environment.shown(),
            "program": hide_words(list(self.program)),
            "nodes": [
                {
                    **_values(share.node, "name", "host", "port", "user"),
                    **_values(share, "node_rank", "first_rank", "slots"),
                    "argv": hide_words(self.argv(share, meet)),
                }
                for share in self.shares
            ],
        }

    def render(self, *, commands: bool = True) -> Iterator[str]:
        """Lines for people. With `commands`, one per node to paste into a shell there."""
        meet = Rendezvous(self.address, self.ports[0])
        yield f"run        {self.run_id}"
        yield f"config     {shlex.join(hide_words(list(self.program)))}"
        readers = f", readable by group {self.share}" if self.share else ""
        yield f"directory  {self.run_dir}{readers}"
        yield f"python     {self.python}  in {self.workdir}"
        nodes = counted(len(self.shares), "node")
        yield f"ranks      {self.world_size} on {nodes}, device {self.device}"
        if self.device == "auto":
            undecided = "no node was asked: with GPUs it is cuda, ranks as slots= or GPUs say"
            yield f"           {undecided}"
        for slots, neighbours in itertools.groupby(self.shares, key=lambda share: share.slots):
            group = list(neighbours)
            first, last = group[0].first_rank, group[-1].ranks[-1]
            ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
            yield f"           {fold([one.node.name for one in group])}  {slots} a node, {ranks}"
        tried = [] if self.address_fixed else ["address"]
        tried += ["port"] if len(self.ports) > 1 else []
        note = f" (another {' or '.join(tried)} if it does not work)" if tried else ""
        yield f"meet       {meet.address}:{meet.port} on {self.master.name}{note}"
        yield "environment"
        for variable in self.environment.variables:
            yield f"           {variable.name}={shlex.quote(variable.shown)}  ({variable.origin})"
        if not commands:
            return
        yield "commands   (values shown as *** and auto are filled in on the nodes)"
        shown = {"CLUSTERCTL_RUN_DIR": str(self.run_dir), **self.environment.shown()}
        words = [f"{key}={value}" for key, value in shown.items() if value not in ("auto", "***")]
        prefix = f"cd {shlex.quote(str(self.workdir))} && {shlex.join(['env', *words])}"
        for share in self.shares:
            command = shlex.join(hide_words(self.argv(share, meet)))
            yield f"  {share.node.name}: {prefix} {command}"


def _values(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def new_run_id(now_s: float, token: str) -> str:
    """Sorts by time (UTC) and names one launch: 20260131-235959-a1b2c3."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s)) + "-" + token
