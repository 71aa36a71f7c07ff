"""InfiniBand and RoCE ports, network interfaces, and the port where ranks meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checks.facts.unknown import NOT_ASKED, Maybe, Unknown


@dataclass(frozen=True, slots=True)
class Port:
    """Whether a port can be listened on, and by whom it is held."""

    free: bool
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table."""

    index: int
    gid: str
    type: Maybe[str]  # "RoCE v2", "IB/RoCE v1"
    netdev: Maybe[str] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class IbPort:
    """One port of an InfiniBand or RoCE card, from sysfs; `ibdev2netdev` shows the IP side only."""

    device: str  # mlx5_0
    port: int
    state: Maybe[str]  # ACTIVE, ARMED, INIT, DOWN
    phys_state: Maybe[str]  # LinkUp, Polling, Disabled
    rate_gbps: Maybe[float]
    link_layer: Maybe[str]  # InfiniBand, Ethernet
    netdev: Maybe[str] = NOT_ASKED
    lid: Maybe[int] = NOT_ASKED
    sm_lid: Maybe[int] = NOT_ASKED
    counters: Mapping[str, int] = field(default_factory=dict)  # since the driver was loaded
    growth: Maybe[Mapping[str, int]] = NOT_ASKED  # of error counters between two reads
    firmware: Maybe[str] = NOT_ASKED
    guid: Maybe[str] = NOT_ASKED
    board_id: Maybe[str] = NOT_ASKED
    model: Maybe[str] = NOT_ASKED  # hca_type
    gids: tuple[Gid, ...] = ()
    numa_node: Maybe[int] = NOT_ASKED

    @property
    def name(self) -> str:
        """mlx5_0:1, as NCCL_IB_HCA may write it."""
        return f"{self.device}:{self.port}"

    @property
    def is_active(self) -> bool | None:
        """None where it is not known."""
        both = ((self.state, "ACTIVE"), (self.phys_state, "LinkUp"))
        if any(isinstance(value, str) and value != good for value, good in both):
            return False
        return None if any(isinstance(value, Unknown) for value, _ in both) else True


@dataclass(frozen=True, slots=True)
class Fabric:
    """The InfiniBand and RoCE ports of a node; none is an answer too."""

    ports: tuple[IbPort, ...] = ()
    peermem: Maybe[bool] = NOT_ASKED  # kernel module nvidia_peermem
    growth_s: Maybe[float] = NOT_ASKED  # seconds between the two reads of the counters
    bridges: tuple[str, ...] = ()  # cards that manage NVSwitches and carry no traffic of ranks


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface and its addresses with prefix length."""

    name: str
    up: bool
    mtu: Maybe[int]
    speed_mbps: Maybe[int]
    addresses: tuple[str, ...] = ()
    is_hardware: bool = False  # not a bridge, tunnel or container's cable


@dataclass(frozen=True, slots=True)
class Network:
    interfaces: tuple[Interface, ...]
    names: Mapping[str, Maybe[tuple[str, ...]]] = field(default_factory=dict)  # name -> addresses
    reach: Maybe[str] = NOT_ASKED  # the port where ranks meet: connected, refused, or why not
    unlisted: Unknown | None = None  # why no interface has its addresses here
