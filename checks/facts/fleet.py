"""The nodes together, and what is to be launched on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from checks.facts.active import Active
from checks.facts.node import NodeFacts


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """What a launch needs of the nodes; the checks about it are skipped without this."""

    python: str  # path of the interpreter on the nodes
    port: int  # of the rendezvous, on the master
    slots: Mapping[str, int]  # ranks per node name
    device: Literal["cuda", "cpu", "auto"]  # auto: cuda where any node of the fleet has a GPU
    run_dir_parent: str
    min_free_bytes: int
    master: str | None = None  # node name; None: the first
    env: Mapping[str, str] = field(default_factory=dict)  # of the ranks, as far as it is decided
    files: tuple[str, ...] = ()  # data, checkpoint, model cache: there and of one size everywhere
    wandb: bool = False  # the run reports to Weights & Biases
    config: str = ""  # what is to be launched, for messages


@dataclass(frozen=True, slots=True)
class Fleet:
    """The chosen nodes, in the hostfile's order, and what is to be launched on them."""

    nodes: tuple[NodeFacts, ...]
    launch: LaunchNeeds | None = None
    token: str | None = None  # what the head wrote into the shared folder
    active: Active | None = None  # None: no test made the nodes work

    @property
    def one_machine(self) -> bool:
        """All nodes are one machine under several names: one clock, one kernel, one fabric."""
        boots = {node.boot_id for node in self.reached}
        return len(self.reached) > 1 and len(boots) == 1 and isinstance(boots.pop(), str)

    @property
    def reached(self) -> tuple[NodeFacts, ...]:
        return tuple(node for node in self.nodes if node.unreached is None)

    @property
    def device(self) -> str:
        """cuda or cpu: what the launch asks for, or what the fleet has."""
        if self.launch is not None and self.launch.device != "auto":
            return self.launch.device
        return "cuda" if any(node.gpus.has_hardware for node in self.reached) else "cpu"
