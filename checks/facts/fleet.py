"""The nodes together, what is to be launched on them, and tests that made them work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from checks.facts.node import NodeFacts
from checks.facts.unknown import NOT_ASKED, Maybe


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Matrix products of one device, all devices of all nodes at once; the better of two tries."""

    device: str  # cuda:0, cpu
    model: str
    tflops: float
    finite: bool = True  # products of finite numbers that are not finite: a broken device


@dataclass(frozen=True, slots=True)
class Difference:
    """How two results differ that should be equal; None where too many values differ to look."""

    values: int  # without `bits` there may be more
    bits: int | None = None  # flipped ones
    at: int | None = None  # the first value: its position in the flat result


@dataclass(frozen=True, slots=True)
class RepeatedProduct:
    """One product of matrices, again and again on one device."""

    kind: str  # bf16, fp16, fp32, tf32
    count: int
    others: int  # how many of these differ from the usual one, which came most often
    sum: str  # checksum of the usual one
    differs: Difference | None = None  # the first of the others from the usual one
    from_majority: Difference | None = None  # the usual one from that of the other devices


@dataclass(frozen=True, slots=True)
class DeviceProducts:
    """Seeded products of one device; comparable bit by bit with devices of equal `kin`."""

    device: str  # cuda:0, cpu
    kin: str = ""  # model and versions of the libraries
    products: Maybe[tuple[RepeatedProduct, ...]] = NOT_ASKED
    side: int = 0  # of the square matrices
    memory_bytes: Maybe[int] = NOT_ASKED  # the most that the process held on the GPU


@dataclass(frozen=True, slots=True)
class WrongCopy:
    """A copy that differs from its source."""

    step: str  # host to device, pinned; cuda:0 to cuda:3
    differs: Difference


@dataclass(frozen=True, slots=True)
class DeviceCopies:
    """Copies of a pattern to a device, within it and back; or `between` the node's devices."""

    device: str  # cuda:0, cpu, between
    steps: Maybe[int] = NOT_ASKED  # how many copies were compared
    wrong: tuple[WrongCopy, ...] = ()
    sum: str = ""  # checksum of the pattern that the host made
    kin: str = ""


@dataclass(frozen=True, slots=True)
class BadLink:
    """Two nodes that work with others, and not with each other."""

    first: str
    second: str
    why: str


@dataclass(frozen=True, slots=True)
class Collectives:
    """All-reduce inside each node, by pairs, of all together, and by halves where that failed."""

    nodes: tuple[str, ...]  # that took part
    bad_nodes: Mapping[str, str] = field(default_factory=dict)
    bad_links: tuple[BadLink, ...] = ()
    # One of these nodes is bad, and why nobody can say which.
    unclear: tuple[tuple[tuple[str, ...], str], ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)  # nodes that could not be tried
    rounds: int = 0
    pair_bytes_s: Maybe[float] = NOT_ASKED  # bus bandwidth of the middle pair
    inside_bytes_s: Mapping[str, float] = field(default_factory=dict)  # of each node's own GPUs


@dataclass(frozen=True, slots=True)
class PortSeen:
    """The port where ranks meet, opened on one node, and which nodes reached it."""

    port: int | None  # None: it could not be opened
    holder: str = ""  # why
    reached_by: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # node -> why it did not reach it


@dataclass(frozen=True, slots=True)
class SharedSeen:
    """What a node sees of a file that another one has just written into the shared folder."""

    seen_s: Maybe[float] = NOT_ASKED  # since the writer had it on disk
    read_bytes_s: Maybe[float] = NOT_ASKED
    hung: bool = False  # no answer at all: a dead mount


@dataclass(frozen=True, slots=True)
class Active:
    """All that the active tests found; a part that was not asked for is empty or Unknown."""

    device: Literal["cuda", "cpu"]
    speeds: Mapping[str, Maybe[tuple[DeviceSpeed, ...]]] = field(default_factory=dict)
    collectives: Maybe[Collectives] = NOT_ASKED
    meeting_ports: Mapping[str, Maybe[PortSeen]] = field(default_factory=dict)
    shared: Mapping[str, SharedSeen] = field(default_factory=dict)
    writer: str = ""  # the node that wrote into the shared folder
    write_error: str = ""
    products: Mapping[str, Maybe[tuple[DeviceProducts, ...]]] = field(default_factory=dict)
    copies: Mapping[str, Maybe[tuple[DeviceCopies, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """What a launch needs of the nodes; the checks about it are skipped without this."""

    python: str | None  # path of the interpreter on the nodes; None: no environment was named
    port: int  # of the rendezvous, on the master
    slots: Mapping[str, int]  # ranks per node name; 0: one for each GPU, else one
    device: Literal["cuda", "cpu", "auto"]  # auto: cuda where any node of the fleet has a GPU
    run_dir_parent: str
    min_free_bytes: int
    master: str | None = None  # node name; None: the first
    env: Mapping[str, str] = field(default_factory=dict)  # of the ranks, as far as it is decided
    files: tuple[str, ...] = ()  # data, checkpoint, model cache: there and of one size everywhere
    on_head: tuple[str, ...] = ()  # those of them that are on the machine that asks
    near: Mapping[str, str] = field(default_factory=dict)  # of others a path here of a like name
    at_first: tuple[str, ...] = ()  # files that nobody reads once the run has a checkpoint
    wandb: bool = False  # the run reports to Weights & Biases


@dataclass(frozen=True, slots=True)
class Fleet:
    """The chosen nodes, in the hostfile's order, and what is to be launched on them."""

    nodes: tuple[NodeFacts, ...]
    launch: LaunchNeeds | None = None
    token: str | None = None  # what the head wrote into the shared folder
    token_of_run: bool = False  # that folder is the one of the run directories
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
