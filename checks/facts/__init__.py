"""What is known about nodes: frozen facts that parsers make and rules read.

The lowest vocabulary of the house, not only of the checks. A value that could not be had is
`Unknown` with its reason, never 0 and never a guess. Bytes, watts, seconds, degrees Celsius.
This is the one door: everybody imports from `checks.facts`, the files are sorted by subject.
"""

from checks.facts.active import Active, BadLink, Collectives, DeviceSpeed, DoorSeen, SharedSeen
from checks.facts.clock import ChronyTracking, Clock, Exchange, TimeSource
from checks.facts.fleet import Fleet, LaunchNeeds
from checks.facts.gpu import Gpu, GpuFacts, GpuHealth, GpuProcess, GpuState, NvLinks
from checks.facts.machine import (
    Blocked,
    KernelEvent,
    KernelLog,
    Machine,
    Memory,
    ProcessTable,
    ShellLimits,
    System,
)
from checks.facts.network import Fabric, Gid, IbPort, Interface, Network, Port
from checks.facts.node import NodeFacts, Previous, Unreached
from checks.facts.software import GitState, Interpreter, PythonEnv
from checks.facts.storage import Disk, FileSeen, Mount
from checks.facts.unknown import NOT_ASKED, Maybe, Section, Unknown, to_json

__all__ = [
    "NOT_ASKED",
    "Active",
    "BadLink",
    "Blocked",
    "ChronyTracking",
    "Clock",
    "Collectives",
    "DeviceSpeed",
    "Disk",
    "DoorSeen",
    "Exchange",
    "Fabric",
    "FileSeen",
    "Fleet",
    "Gid",
    "GitState",
    "Gpu",
    "GpuFacts",
    "GpuHealth",
    "GpuProcess",
    "GpuState",
    "IbPort",
    "Interface",
    "Interpreter",
    "KernelEvent",
    "KernelLog",
    "LaunchNeeds",
    "Machine",
    "Maybe",
    "Memory",
    "Mount",
    "Network",
    "NodeFacts",
    "NvLinks",
    "Port",
    "Previous",
    "ProcessTable",
    "PythonEnv",
    "Section",
    "SharedSeen",
    "ShellLimits",
    "System",
    "TimeSource",
    "Unknown",
    "Unreached",
    "to_json",
]
