"""Real nodes for tests: namespaces with their own network, processes, hostname and sshd."""

from tests.lab.cluster import Lab, LabNode, why_not

__all__ = ["Lab", "LabNode", "why_not"]
