"""What one launch needs from the nodes it will use."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import NOT_ASKED, FileSeen, Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, majority


@check(
    "launch.port_free",
    scope="launch",
    bad="FAIL if the port is held",
    how="bind and listen on the first node, on all its addresses",
    fix="another --master-port",
)
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


@check(
    "launch.gpus",
    scope="launch",
    bad="FAIL with fewer GPUs than ranks",
    how="GPUs that answer against slots= or --nproc-per-node",
    fix="slots=N in the hostfile, or -x NODE",
)
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
            value=str(count),
            expected=str(ranks),
            fix=f"slots={count} in its line of the hostfile" if count else "leave the node out: -x",
        )
    else:
        yield passed(f"{count} GPUs for {_ranks(ranks)}", value=str(count))


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


@check(
    "launch.port_range",
    scope="launch",
    bad="WARN in the kernel's ephemeral range, FAIL below 1024",
    how="the number alone",
    fix="--master-port between 1024 and 32767",
)
def port_range(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """The rendezvous port is one that nothing else takes meanwhile.

    From 32768 on any outgoing connection may sit on it just when the run starts again.
    """
    assert fleet.launch is not None
    number = fleet.launch.port
    fix = "--master-port 29500"
    if node.name != (fleet.launch.master or fleet.nodes[0].name):
        yield skip("not the master")
    elif number < 1024 and node.user != "root":
        yield fail(f"port {number} is for root alone", value=str(number), fix=fix)
    elif number >= 32768:
        yield warn(
            f"port {number} is ephemeral: any connection may take it", value=str(number), fix=fix
        )
    else:
        yield passed(f"port {number}")


@check(
    "launch.order",
    scope="launch",
    bad="WARN if a node calls itself by another line's name",
    how="hostname of each node against the names of the hostfile",
    fix="exchange the two lines' addresses",
)
def order(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """Every line of the hostfile leads to the machine that it names.

    Two addresses that were exchanged put the ranks, and the blame for a fault, on the wrong node.
    """
    said = node.hostname
    if isinstance(said, Unknown):
        yield unknown(said.reason)
        return
    others = {one.name for one in fleet.nodes} - {node.name}
    short = said.split(".")[0]
    if (
        said != node.name
        and (said in others or short in others)
        and short != node.name.split(".")[0]
    ):
        yield warn(
            f"it calls itself {said}, which is another line of the hostfile",
            value=said,
            expected=node.name,
            fix=f"host= of the lines {node.name} and {said}",
        )
    else:
        yield passed(f"calls itself {said}")


@check(
    "launch.files",
    scope="launch",
    bad="FAIL if a file is missing, or has another size than on most nodes",
    how="size of data, checkpoint and model cache on each node; of a folder all files together",
    fix="clusterctl push FILE, or mount the shared folder",
)
def files(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """Data, checkpoint and model cache are on every node, and the same.

    A rank that finds another CSV draws other batches, and no error says so.
    """
    assert fleet.launch is not None
    if not fleet.launch.files:
        yield skip("the launch names no file")
        return
    for path in fleet.launch.files:
        files = node.files
        seen = files if isinstance(files, Unknown) else files.get(path, Unknown("no answer"))
        if seen == NOT_ASKED:
            yield skip(NOT_ASKED.reason)
        elif isinstance(seen, Unknown):
            yield unknown(f"{path}: {seen.reason}", fix="mount | tail; is its server up?")
        else:
            yield _judge_file(path, seen, fleet)


def _judge_file(path: str, seen: FileSeen, fleet: Fleet) -> Finding:
    fix = f"clusterctl push {path}, or mount its folder"
    if not seen.exists:
        return fail(f"{path} is missing", fix=fix)
    sizes: dict[str, int] = {}
    has_more = False
    for one in fleet.reached:
        other = None if isinstance(one.files, Unknown) else one.files.get(path)
        if other is not None and other.exists:
            sizes[one.name] = other.size_bytes
            has_more = has_more or other.has_more
    if has_more:
        return passed(
            f"{path} is there, with more files than are looked at: sizes are not compared"
        )
    most = majority(sizes)
    if len(set(sizes.values())) > 1 and seen.size_bytes != most.value:
        expected = (
            "no two nodes agree" if most.value is None else f"{most.value} bytes on most nodes"
        )
        return fail(
            f"{path} has {seen.size_bytes} bytes, {expected}",
            value=str(seen.size_bytes),
            expected=None if most.value is None else str(most.value),
            source="majority",
            fix=fix,
        )
    return passed(f"{path} is there", value=str(seen.size_bytes))


@check(
    "launch.wandb",
    scope="launch",
    bad="WARN if the run reports to W&B and no login is found",
    how="WANDB_API_KEY, or api.wandb.ai in ~/.netrc: yes or no, never the key",
    fix="wandb login on that node, or WANDB_MODE=offline",
)
def wandb(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """The run can report to Weights & Biases, if it is to: rank 0 does, on the first node."""
    assert fleet.launch is not None
    env = fleet.launch.env
    if not fleet.launch.wandb or env.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        yield skip("the run does not report to W&B")
    elif node.name != (fleet.launch.master or fleet.nodes[0].name):
        yield skip("rank 0 is on another node")
    elif env.get("WANDB_API_KEY") or node.wandb is True:
        yield passed("a login is there")
    elif isinstance(node.wandb, Unknown):
        asked = node.wandb != NOT_ASKED
        yield (unknown if asked else skip)(node.wandb.reason)
    else:
        yield warn("no W&B login", fix="wandb login there, or --env WANDB_MODE=offline")
