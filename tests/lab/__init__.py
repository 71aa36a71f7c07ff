"""Real nodes for tests: namespaces with their own network, processes, hostname and sshd."""

from tests.lab.cluster import Lab, why_not
from tests.lab.node import LabNode

__all__ = ["Lab", "LabNode", "why_not"]
