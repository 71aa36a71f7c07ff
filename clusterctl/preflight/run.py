"""Ask every node what it is, judge the fleet: the library behind `preflight` and `launch`.

The channel of a node stays open after its answer, for questions for the time. A head that talks to
many nodes at once is itself slow to read its clock, which the error bound of each node includes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.facts import Active, Fleet, LaunchNeeds, NodeFacts
from checks.finding import Finding, Report, Verdict
from checks.parsers.kernel_log import INTERESTING
from checks.profile import Profile
from checks.runner import run_checks
from checks.units import counted
from clusterctl.errors import TransportError
from clusterctl.ledger.history import with_history
from clusterctl.nodes import Node, fold, grouped
from clusterctl.preflight import last_census
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.facts import read_node
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.payload import PayloadStream
from clusterctl.remote.shared_token import token_in

GROWTH_S = 0.7  # between two reads of counters
PINGS = 8
PING_TIMEOUT_S = 2.0


def run_preflight(
    cluster: Cluster,
    needs: LaunchNeeds | None = None,
    *,
    profile: Profile | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    sudo: bool = False,
    workdir: Path | None = None,
    shared: Path | None = None,
    outputs: Path | None = None,
    memory: Path | None = None,
    ledger: Path | None = None,
    work: Callable[[Fleet], Active | None] | None = None,
) -> Report:
    """One look at all nodes, then all checks; a node that gave no answer is in the report.

    `needs` adds what a launch asks for. `sudo` tries `sudo -n` for what this user may not read,
    `workdir` is the launch's folder, `shared` must be one folder on all nodes, `outputs` is
    where a run would write, `memory` is the file of the previous run, `ledger` that of what
    happened to the nodes. `work` may make the nodes work once they are known (`--active`).

    Raises `KeyError` for an unknown check id in `only` or `without`, `UsageError` when a token
    cannot be written into `shared`.
    """
    started, nodes = time.monotonic(), cluster.nodes
    run_checks(Fleet(()), only=only, without=without)  # a wrong id shows before nodes are asked
    known: dict[Node, NodeFacts] = {}
    costs: list[float] = []
    first = nodes[0]
    with token_in(shared or outputs) as (path, token):
        # "@" is the node's own name; all ranks connect to the first node's.
        reach = [first.address, 22 if needs is None else needs.port]
        common = {"growth_s": GROWTH_S, "sudo": sudo, "names": ["@", first.address], "reach": reach}
        if workdir is not None:
            common["workdir"] = str(workdir.absolute())
        if path is not None:
            common["token"] = str(path)
        if needs is not None:
            common |= {"paths": [needs.run_dir_parent]}
            common |= {"files": list(needs.files), "wandb": needs.wandb}
            common |= {} if needs.python is None else {"python": needs.python}

        def args(node: Node) -> dict[str, Any]:
            # Only where it will be used: names of one machine would hold the port for each other.
            return {**common, "ports": [needs.port] if needs is not None and node == first else []}

        for result in collect(cluster, args):
            known[result.node] = read_node(result)  # while the others still answer
            costs += [result.value["cpu_s"]] if result.value else []
    facts = tuple(known[node] for node in nodes)
    if memory is not None:
        facts, _ = last_census.compare(memory, nodes, facts)
    if ledger is not None:
        facts = with_history(ledger, facts, time.time())
    fleet = Fleet(facts, needs, token, token_of_run=shared is None)
    if work is not None:
        fleet = dataclasses.replace(fleet, active=work(fleet))
    seconds = time.monotonic() - started
    report = run_checks(fleet, profile, only=only, without=without, seconds=seconds)
    cpu_s = sum(costs) / len(costs) if costs else None
    return dataclasses.replace(report, node_cpu_s=cpu_s, active=fleet.active)


def collect(
    cluster: Cluster, args: Callable[[Node], Mapping[str, Any]]
) -> Iterable[NodeResult[dict[str, Any]]]:
    """Census envelopes with everything in them, as they arrive.

    `head` has `connect_s`, and `samples`, times in seconds as (sent, the node's, received).
    """
    nvml = importlib.util.find_spec("pynvml") is not None
    timeout_s, tool_s = cluster.limits.command_s, cluster.limits.tool_s
    always = {"tool_timeout_s": tool_s, "everything": True, "log": INTERESTING}
    always |= {"nvml": nvml, "pings": PINGS}

    def wanted(node: Node) -> dict[str, Any]:
        return {**always, **args(node)}

    def talk(stream: PayloadStream, connect_s: float) -> dict[str, Any]:
        answer = stream.answer(timeout_s - (time.monotonic() - stream.started_s))
        if "sections" not in answer:
            raise TransportError("parse", "the census answers a question for the time too early")
        head = {"connect_s": connect_s, "samples": _ask_time(stream)}
        return {**answer, "noise": stream.noise, "head": head}

    return cluster.converse(
        "census", wanted, talk, timeout_s=timeout_s, nvml=nvml, start_timeout_s=timeout_s
    )


def _ask_time(stream: PayloadStream) -> list[tuple[float, float, float]]:
    samples = []
    try:
        for _ in range(PINGS):
            sent = time.time()
            stream.send({"ping": 1})
            reply = stream.receive(PING_TIMEOUT_S)
            received = time.time()
            if reply is None or "time_s" not in reply:
                break
            samples.append((sent, reply["time_s"], received))
    except (EOFError, TransportError):
        pass  # its own facts have arrived; time.skew says that the offset is unknown
    return samples


MOST_NAMED = 3  # checks of one verdict in the headline


def headline(report: Report) -> str:
    """`GO: 80 checks on 24 nodes`, `NO-GO: 1 fail (clock.skew), 3 warn; drop n5 to go with 23 nodes
    (-x n5)`.

    An UNKNOWN of an advisory check stops no launch, and is counted. What bars a launch is named:
    this line is the last, and a table of many findings has scrolled off.
    """
    counts = report.counts()
    kinds = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
    words = ", ".join(
        f"{counts[kind]} {kind.value.lower()}{'' if report.go else _barring(report, kind)}"
        for kind in kinds
        if counts[kind]
    )
    if report.go:
        checks = counted(len({finding.id for finding in report.findings}), "check")
        where = counted(len(report.nodes), "node")
        return f"GO: {checks} on {where}{', ' + words if words else ''}"
    dropped, bad = report.to_drop, fold(report.to_drop)
    left = len(report.nodes) - len(dropped)
    if left and dropped:
        words += f"; drop {bad} to go with {counted(left, 'node')} (-x {bad})"
    return f"NO-GO: {words}"


def _barring(report: Report, kind: Verdict) -> str:
    """` (gpu.count, ssh.reachable and 2 more)`: checks of this verdict that stop a launch."""
    found = [one.id for one in shown(report) if one.verdict is kind]
    ids = list(
        dict.fromkeys(id for id in found if kind is Verdict.FAIL or id not in report.advisory)
    )
    if kind is Verdict.WARN or not ids:
        return ""
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f" ({', '.join(ids[:MOST_NAMED])}{more})"


def shown(report: Report, everything: bool = False) -> list[Finding]:
    """Folded findings, worst first: not PASS and not SKIP, without what only follows."""
    rows = report.folded(following=everything)
    quiet = () if everything else (Verdict.PASS, Verdict.SKIP)
    return [one for one in rows if one.verdict not in quiet]


def table_rows(report: Report) -> list[tuple[Verdict, str, str, str]]:
    """(verdict, id, node set, evidence) of the findings shown, equal ones in one row."""
    found = [((one.verdict, one.id, one.evidence), one) for one in shown(report)]
    rows = grouped((key, node) for key, one in found for node in one.nodes)
    return [(verdict, id, fold(nodes), text) for (verdict, id, text), nodes in rows.items()]


def fix_lines(report: Report) -> list[str]:
    """`fix n5: lspci | grep -i nvidia  [reboot]` for each bad finding that has one, each once.

    An unknown finding gets a `hint` instead, because its fix is unknown.
    """
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for one in shown(report):
        if one.fix:
            action = f"  [{one.action.value}]" if one.action.value != "none" else ""
            word = "hint" if one.verdict is Verdict.UNKNOWN else "fix"
            lines.setdefault((word, one.fix + action), {}).update(dict.fromkeys(one.nodes))
    return [f"{word} {fold(nodes)}: {text}" for (word, text), nodes in lines.items()]


def explain(check: Any) -> list[str]:
    """What, why, how measured, how bad, how to repair, how to silence: the lines of --explain."""
    id = check.id
    scopes = {
        "node": "each node alone",
        "launch": "each node of a launch",
        "fleet": "nodes against each other",
        "active": "nodes that were made to work: only with --active",
    }
    override = f'in clusterctl.toml: [preflight] severity = ["{id}=warn"]'
    unknown = "unknown:  is reported with exit code 3, but stops no launch"
    return [
        f"{id}: {check.summary}",
        *([f"why:      {check.why}"] if check.why else []),
        f"measured: {check.how}",
        f"verdict:  {check.bad}",
        f"fix:      {check.fix}",
        f"scope:    {scopes[check.scope]}",
        f"silence:  --skip {id}, or --severity {id}=warn|skip, or {override}",
        *([unknown] if check.advisory else []),
    ]
