"""What one launch needs from the nodes it will use."""

from __future__ import annotations

from collections.abc import Iterator

from checks.compare import majority
from checks.facts import NOT_ASKED, FileSeen, Fleet, LaunchNeeds, NodeFacts, Unknown, known, or_none
from checks.finding import Finding, fail, need, passed, skip, unknown, warn
from checks.registry import check
from checks.rules.gpu import by_driver


def _is_master(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> bool:
    return node.name == (launch.master or fleet.nodes[0].name)


@check("launch.port_free", "launch")
def port_free(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """The rendezvous port can be listened on, on the master.

    Bad: FAIL if the port is held
    How: bind and listen on the first node, on all its addresses
    Fix: end that process, or use another --master-port
    """
    if not _is_master(node, launch, fleet):
        return skip("not the master")
    tried = node.ports.get(launch.port, Unknown("was not tried"))
    port = need(tried, f"port {launch.port}: ", unknown)
    if port.free:
        return passed(f"port {launch.port} is free")
    return fail(f"port {launch.port}: {port.holder}")


@check("launch.gpus", "launch")
def enough_gpus(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """A GPU for each rank of the node.

    Bad: FAIL with fewer GPUs than ranks
    How: GPUs that answer against slots= or --nproc-per-node
    Fix: slots=N in the hostfile, or -x NODE
    """
    ranks = launch.slots.get(node.name) or or_none(node.gpus.count) or 1
    wanted = f"{ranks} rank{'s' * (ranks != 1)}"
    if fleet.device != "cuda":
        return skip("the launch uses no GPU")
    count = need(node.gpus.count, "number of GPUs: ", by_driver)
    if count >= ranks:
        return passed(f"{count} GPUs for {wanted}", count)
    have = node.gpus.message if count == 0 and node.gpus.message else f"{count} GPUs"
    fix = f"slots={count} in its line of the hostfile" if count else "leave the node out: -x"
    return fail(f"{have}, the launch wants {wanted} here", count, ranks, fix=fix)


@check("launch.port_range", "launch")
def port_range(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """The rendezvous port is one that nothing else takes meanwhile.

    Why: From 32768 on any outgoing connection may hold it just when the run starts again.
    Bad: WARN in the kernel's ephemeral range, FAIL below 1024
    How: the number alone
    Fix: --master-port between 1024 and 32767
    """
    port = launch.port
    if not _is_master(node, launch, fleet):
        return skip("not the master")
    if port < 1024 and node.user != "root":
        return fail(f"port {port} is for root alone", port)
    if port >= 32768:
        return warn(f"port {port} is ephemeral: any connection may take it", port)
    return passed(f"port {port}")


@check("launch.order", "launch")
def order(node: NodeFacts, hostname: str, fleet: Fleet) -> Finding:
    """Every line of the hostfile leads to the machine that it names.

    Why: Exchanged addresses put the ranks, and the blame for a fault, on the wrong node.
    Bad: WARN if a node calls itself by another line's name
    How: hostname of each node against the names of the hostfile
    Fix: exchange the two lines' addresses
    """
    names, short = {one.name for one in fleet.nodes}, hostname.split(".")[0]
    if short == node.name.split(".")[0] or not names & {hostname, short}:
        return passed(f"calls itself {hostname}")
    text = f"its host name is {hostname}, which is another line of the hostfile"
    return warn(text, hostname, node.name, fix=f"host= of the lines {node.name} and {hostname}")


@check("launch.files", "launch")
def files(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Iterator[Finding]:
    """Data, checkpoint and model cache are on every node, and the same.

    Why: A rank that finds another CSV draws other batches, without an error.
    Bad: FAIL if a file is missing, or has another size than on most nodes
    How: size of data, checkpoint and model cache on each node; of a folder all files together
    Fix: clusterctl push FILE FOLDER/ nodes.txt where this machine has it, or make or mount it there
    """
    if not launch.files:
        yield skip("the launch names no file")
    for path in launch.files:
        files = node.files
        seen = files if isinstance(files, Unknown) else files.get(path, Unknown("no answer"))
        if seen == NOT_ASKED:
            yield skip(seen)
        elif isinstance(seen, Unknown):
            yield unknown(f"{path}: {seen}", fix="mount | tail; is its server up?")
        else:
            yield _judge_file(path, seen, fleet)


def _judge_file(path: str, seen: FileSeen, fleet: Fleet) -> Finding:
    fix = f"make {path} there, or mount its folder"
    folder, _, name = path.rpartition("/")
    if name.startswith("models--") and name.count("--") == 2:  # the hub's cache of one model
        model = name.removeprefix("models--").replace("--", "/")
        cache = "" if folder == "~/.cache/huggingface/hub" else f" --cache-dir {folder}"
        fix = f"hf download {model}{cache} on the node, or on this machine and push {path}"
    if fleet.launch is not None and path in fleet.launch.near:
        fix = f"did you mean {fleet.launch.near[path]}? Or {fix}"
    if fleet.launch is not None and path in fleet.launch.on_head:
        fix = f"clusterctl push {path} {path.rpartition('/')[0]}/ nodes.txt, or mount its folder"
    if not seen.exists:
        return fail(f"{path} is missing", fix=fix)
    every = [files[path] for files in known(n.files for n in fleet.reached) if path in files]
    there = [one for one in every if one.exists]
    if any(one.has_more for one in there):
        return passed(f"{path} exists, with more files than are counted: sizes are not compared")
    size, sizes = seen.size_bytes, [one.size_bytes for one in there]
    most = majority(sizes)
    if len(set(sizes)) > 1 and size != most:
        others = "no two nodes agree" if most is None else f"{most} bytes on most nodes"
        return fail(f"{path} has {size} bytes, {others}", size, most, source="majority", fix=fix)
    return passed(f"{path} is there", size)


@check("launch.wandb", "launch")
def wandb_login(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """The run can report to Weights & Biases, if it is to: rank 0 does, on the first node.

    Bad: WARN if the run reports to W&B and no login is found
    How: WANDB_API_KEY, or api.wandb.ai in ~/.netrc: yes or no, never the key
    Fix: wandb login there, or --env WANDB_MODE=offline
    """
    off = launch.env.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if off or not launch.wandb:
        return skip("the run does not report to W&B")
    if not _is_master(node, launch, fleet):
        return skip("rank 0 is on another node")
    if launch.env.get("WANDB_API_KEY") or node.wandb is True:
        return passed("a login is there")
    need(node.wandb)
    return warn("no W&B login")
