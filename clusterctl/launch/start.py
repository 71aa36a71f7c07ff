"""From the user's options to a plan: collect facts, choose device and ranks, check, plan."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from checks.facts import Fleet, LaunchNeeds, NodeFacts, or_none
from checks.finding import Report, Verdict
from checks.rules.gpu import no_gpu
from checks.runner import run_checks
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.launch import environment
from clusterctl.launch.inputs import LaunchLine, kept_environment
from clusterctl.launch.plan import (
    PORT_CHOICES,
    PORT_RANGE,
    LaunchPlan,
    Timing,
    assign_ranks,
    new_run_id,
)
from clusterctl.launch.run_dir import claim_run_dir, run_label
from clusterctl.ledger.history import with_history
from clusterctl.nodes import Node, fold
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.facts import read_node
from clusterctl.remote.shared_token import token_in, where_runs_would_be
from trainer.runlog.run_dir import next_run_dir


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    config: str
    overrides: tuple[str, ...] = ()
    ranks: int | None = None  # on each node; None: slots= of the hostfile, else its GPUs, else 1
    device: str = "auto"
    python: str = ""
    workdir: Path = field(default_factory=Path.cwd)
    outputs: Path = Path("outputs")
    master_addr: str | None = None
    master_port: int | None = None
    env: tuple[str, ...] = ()
    nccl: str = "none"
    facts_env: Mapping[str, str] = field(default_factory=dict)  # of --env-from-facts
    min_free_bytes: int = 20 << 30
    timing: Timing = field(default_factory=Timing)
    share: str = ""  # a group that may read the run directory


class Prepared(NamedTuple):
    device: str
    slots: Mapping[str, int]
    report: Report | None  # None: the user skipped it
    # Nodes of which nobody knows whether they have GPUs, and why.
    unsure: Mapping[str, str] = MappingProxyType({})
    needs: LaunchNeeds | None = None  # what was checked; None: nothing
    facts: tuple[NodeFacts, ...] = ()


def prepare(
    cluster: Cluster,
    options: LaunchOptions,
    line: LaunchLine,
    ledger: Path | None = None,
    *,
    prove_outputs: bool = False,
) -> Prepared:
    """One census of all nodes; the checks that a launch needs. Nothing is started.

    `ledger` is the file of what happened to the nodes. With `prove_outputs` a small file, which is
    removed again, proves that the folder of the run directories is the same one on all nodes.
    """
    started, nodes = time.monotonic(), cluster.nodes
    port = options.master_port or PORT_RANGE[0]
    workdir, outputs = options.workdir.absolute(), str(options.outputs.absolute())
    env = kept_environment(options.env, options.nccl, facts=options.facts_env)
    files, wandb = tuple(line.reads["files"]), bool(line.reads["wandb"])
    with token_in(where_runs_would_be(options.outputs) if prove_outputs else None) as (path, token):
        where = (outputs, str(workdir), files, wandb, path)
        facts = ask_nodes(cluster, options.python, port, *where)
    if ledger is not None:
        facts = with_history(ledger, facts, time.time())
    device = choose_device(options.device, facts)
    slots = choose_slots(nodes, facts, options.ranks, device)
    needs = LaunchNeeds(
        python=options.python,
        port=port,
        slots=slots,
        device="cuda" if device == "cuda" else "cpu",
        run_dir_parent=outputs,
        min_free_bytes=options.min_free_bytes,
        master=nodes[0].name,
        env=env,
        **line.reads,
    )
    # Without --master_port the agents look for a free one themselves.
    without = () if options.master_port else ("launch.port_free",)
    fleet = Fleet(facts, needs, token, token_of_run=True)
    report = run_checks(fleet, without=without, seconds=time.monotonic() - started)
    return Prepared(device, slots, report, unsure_of_gpus(facts), needs, facts)


def ask_nodes(
    cluster: Cluster,
    python: str,
    port: int,
    outputs: str,
    workdir: str,
    files: Sequence[str],
    wandb: bool,
    token: Path | None = None,
) -> tuple[NodeFacts, ...]:
    """One census for the checks of a launch; `token` is a file in the head's folder of runs."""
    args = {
        "tool_timeout_s": cluster.limits.tool_s,
        "python": python,
        "ports": [port],
        "paths": [outputs],
        "launch": True,
        "workdir": workdir,
        "files": list(files),
        "wandb": wandb,
        "token": None if token is None else str(token),
    }
    return tuple(map(read_node, cluster.ask("census", args)))


def choose_device(device: str, facts: Sequence[NodeFacts]) -> str:
    """`auto` is cuda if any node shows a sign of a GPU: a broken driver makes no CPU node.

    One node without a usable GPU never turns the others into CPU nodes: a check refuses it.
    """
    found = "cuda" if any(node.gpus.has_hardware for node in facts) else "cpu"
    return found if device == "auto" else device


def unsure_of_gpus(facts: Sequence[NodeFacts]) -> dict[str, str]:
    """Nodes that gave no answer, or none that says whether they have GPUs, and why."""
    unsure = {}
    for node in facts:
        found = no_gpu(node.gpus)
        if node.unreached is not None:
            unsure[node.name] = str(node.unreached)
        elif found is not None and found.verdict is Verdict.UNKNOWN:
            unsure[node.name] = found.evidence
    return unsure


def choose_slots(
    nodes: Sequence[Node], facts: Sequence[NodeFacts], ranks: int | None, device: str
) -> dict[str, int]:
    """Ranks of each node: the user's number, the hostfile's slots=, its GPUs, 1 on CPU."""
    gpus = {node.name: or_none(node.gpus.count) or 1 for node in facts} if device == "cuda" else {}
    return {node.name: ranks or node.slots or gpus.get(node.name, 1) for node in nodes}


def plan_launch(
    nodes: Sequence[Node], prepared: Prepared, options: LaunchOptions, line: LaunchLine, claim: bool
) -> LaunchPlan:
    """The plan; with `claim` its run directory is made. Raises `UsageError`.

    Raises `CouldNotFindOut` where `auto` would be CPUs without knowing all nodes.
    """
    if prepared.unsure and (options.device, prepared.device) == ("auto", "cpu"):
        why = next(iter(prepared.unsure.values()))
        names = fold(prepared.unsure)
        text = f"nothing was started: whether {names} has GPUs is not known ({why})"
        hint = f"--device cpu or --device cuda decides; or leave it out: -x {names}"
        raise CouldNotFindOut(text, hint=hint)
    if not Path(options.python).is_absolute():
        raise UsageError(f"--python {options.python} is not an absolute path")
    workdir = options.workdir.absolute()
    label, outputs = run_label(line.model, options.config), options.outputs.absolute()
    file = workdir / options.config
    is_path = "/" in options.config or file.suffix  # else a short name, as the trainer has it
    config = str(file) if is_path and file.is_file() else options.config
    port = options.master_port
    ports = (port,) if port else tuple(random.sample(PORT_RANGE, PORT_CHOICES))

    def plan(run_dir: Path) -> LaunchPlan:
        return LaunchPlan(
            run_id=new_run_id(time.time(), secrets.token_hex(3)),
            config=config,
            run_dir=run_dir,
            workdir=workdir,
            python=options.python,
            device=prepared.device,
            shares=assign_ranks(nodes, prepared.slots),
            address=options.master_addr or nodes[0].address,
            address_fixed=options.master_addr is not None,
            ports=ports,
            environment=environment.build(
                os.environ,
                assignments=options.env,
                preset=options.nccl,
                facts=options.facts_env,
                device=prepared.device,
                run_dir=run_dir,
            ),
            program=("-m", "trainer.train", config, *options.overrides),
            starter=(options.python, "-m", "trainer.starter"),
            preload=("trainer.starter.train_modules",),
            timing=options.timing,
            share=options.share,
        )

    # Wrong options are refused before a directory is made.
    planned = plan(next_run_dir(outputs, label))
    return plan(claim_run_dir(outputs, label, options.share)) if claim else planned
