"""What one launch needs from the nodes it will use."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown
from checks.profile import Profile
from checks.runner import check


@check("launch.port_free", scope="launch")
def port_free(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """The rendezvous port can be listened on, on the master."""
    assert fleet.launch is not None
    master = fleet.launch.master or fleet.nodes[0].name
    if node.name != master:
        yield skip("not the master")
        return
    number = fleet.launch.port
    port = node.ports.get(number, Unknown("was not tried"))
    if isinstance(port, Unknown):
        yield unknown(f"port {number}: {port.reason}")
    elif port.free:
        yield passed(f"port {number} is free")
    else:
        yield fail(f"port {number}: {port.holder}", fix="end that process, or use --master-port")


@check("launch.gpus", scope="launch")
def gpus(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """A GPU for each rank of the node."""
    assert fleet.launch is not None
    ranks = fleet.launch.slots.get(node.name, 0)
    count = node.gpus.count
    if fleet.device != "cuda":
        yield skip("the launch uses no GPU")
    elif isinstance(count, Unknown):
        yield unknown(f"number of GPUs: {count.reason}", because="gpu.driver")
    elif count < max(ranks, 1):
        have = node.gpus.message if count == 0 and node.gpus.message else f"{count} GPUs"
        yield fail(
            f"{have}, the launch wants {_ranks(ranks)} here",
            value=str(count), expected=str(ranks),
            fix=f"slots={count} in its line of the hostfile" if count else "leave the node out: -x",
        )  # fmt: skip
    else:
        yield passed(f"{count} GPUs for {_ranks(ranks)}", value=str(count))


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"
