"""What is known about nodes: frozen facts that parsers make and rules read.

A value that could not be read is `Unknown` with its reason, never 0 and never a guess. Bytes,
watts, seconds, degrees Celsius. All other packages import from `checks.facts`, not from its files.
"""

# mypy: implicit-reexport
# ruff: noqa: F401, I001

from checks.facts.fleet import Active, BadLink, Collectives, DeviceSpeed, PortSeen, SharedSeen
from checks.facts.fleet import DeviceCopies, DeviceProducts, Difference, Fleet, LaunchNeeds
from checks.facts.fleet import RepeatedProduct, WrongCopy
from checks.facts.gpu import THROTTLE_REASONS, Gpu, GpuFacts, GpuHealth, GpuProcess, GpuState
from checks.facts.gpu import KernelModule, NvLinks
from checks.facts.machine import Blocked, ChronyTracking, Clock, Disk, Exchange, FileSeen, GitState
from checks.facts.machine import Interpreter, KernelEvent, KernelLog, Machine, Memory, Mount
from checks.facts.machine import ProcessTable, PythonEnv, ShellLimits, System, TimeSource, TorchGpus
from checks.facts.network import Fabric, Gid, IbPort, Interface, Network, Port
from checks.facts.node import History, NodeFacts, PastFault, Previous, Unreached
from checks.facts.ras import RasAnswer, RasComm, RasMissing, RasRank
from checks.facts.unknown import NOT_ASKED, Maybe, Section, Unknown, known, or_none, then
from checks.facts.unknown import to_json
