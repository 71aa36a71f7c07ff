"""What all nodes should share; the majority is the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.facts import Fleet, NodeFacts, Unknown
from checks.finding import Finding
from checks.profile import Profile
from checks.runner import check, compare


@check("fleet.driver_equal", scope="fleet")
def driver_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same NVIDIA driver: NCCL and CUDA behave by it."""
    yield from compare(
        fleet,
        _driver,
        "NVIDIA driver",
        fix="install the driver of the others, then reboot",
        because="gpu.driver",
    )


def _driver(node: NodeFacts) -> Any:
    if node.gpus.state in ("none", "no-tool"):
        return None
    versions = {gpu.driver for gpu in node.gpus.gpus if not isinstance(gpu.driver, Unknown)}
    if not versions:
        return Unknown(node.gpus.summary or "no GPU names its driver")
    return ", ".join(sorted(versions))
