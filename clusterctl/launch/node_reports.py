"""What agents report: whether their nodes can run the ranks, and how the ranks progress and end."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from clusterctl.launch import deaths, journal
from clusterctl.launch.causes.kinds import Evidence, Fact, Kind, Source
from clusterctl.launch.end_cause import End
from clusterctl.launch.hang import StepClock
from clusterctl.launch.leftovers import leftover
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.positions import Notes
from clusterctl.launch.reach import another_head
from clusterctl.launch.state import Left, NodeState, RunFailed, RunState
from clusterctl.nodes import fold
from clusterctl.payload.launch.session import PASSING
from clusterctl.payload.launch.stopped import sentence
from clusterctl.remote.inbox import NodeMessage
from trainer.runlog import telemetry
from trainer.runlog.output import printable

FACT_KINDS = {str(kind): kind for kind in (Kind.OOM_KERNEL, Kind.XID)}
NOT_ASKED = "after a SIGTERM that clusterctl stop did not send"
FACTS = 50  # that are kept of a node
Lines = tuple[str, ...]


class Reports:
    """The state of a run by the messages of its agents, of which some end the run."""

    def __init__(
        self,
        plan: LaunchPlan,
        state: RunState,
        log: journal.Journal,
        taken: Mapping[str, dict[str, int]] | None = None,
    ) -> None:
        """`taken` are the positions in the nodes' files of a run that another head has started."""
        self.plan, self.state, self.journal = plan, state, log
        self.shares = {share.node.name: share for share in plan.shares}
        self.copies, self.notes = journal.Copies(plan.run_dir, log), Notes(plan.run_dir)
        self.clock = StepClock(plan.timing, time.monotonic())
        self.hellos: dict[str, dict[str, Any]] = {}
        self.addresses: list[str] = []  # of the first node, which all nodes try to reach
        self.address_errors: dict[str, dict[str, str | None]] = {}
        self.deaths: list[deaths.Death] = []
        # Of each node: messages that an agent keeps for a head, and bytes of its files.
        self.seen: Counter[str] = Counter()
        self.is_taken = taken is not None
        before = taken or {}
        self.positions = {name: dict(before.get(name, {})) for name in self.shares}
        self.lost: dict[str, str] = {}  # nodes that cannot be asked any more, and why
        self.facts: list[Fact] = []  # of kernels and cgroups
        self.left: dict[str, str] = {}  # of each node, a process that its agent could not end
        self.said: set[tuple[str, str]] = set()  # what is on record of each node once
        self.heads: dict[str, tuple[str, float]] = {}  # that nodes name: the words, and since when
        self.stopped = ""  # who has asked the ranks to save and end
        self.leaving: set[str] = set()  # nodes that go down, as they say themselves
        self.starter_ended_s = math.inf  # when a starter ended because of one of these

    def take(self, arrived: NodeMessage) -> None:
        """Raises `RunFailed`, and `Left` where another supervisor has the run."""
        name, message, share = arrived.node, arrived.data, self.shares[arrived.node]
        node = self.state.nodes[name]
        node.heard_s = time.monotonic()
        if message is None:
            if not node.is_over:
                self.fail_lost(name, self.heads[name][0] if name in self.heads else arrived.why)
            return
        if message["type"] not in (*PASSING, "supervised"):
            self.seen[name] += 1
        kind, rank = message["type"], message.get("rank", share.first_rank)
        if rank not in share.ranks:
            self.fail_lost(name, f"it sends data of rank {rank}, which is not its own")
        if kind == "hello":
            if name in self.hellos:
                self.fail_lost(name, "it reported twice that it is ready")
            self.hellos[name] = message
            node.shared, node.text = message["shared"], "ready"
            if message["ends_at_logout"]:
                self.journal.write("logout", message["ends_at_logout"], node=name)
                event = telemetry.Event("logout", f"{name}: {message['ends_at_logout']}")
                self.state.add(event)
            if not node.shared:
                self.journal.write("unshared", "its logs come over the wire", node=name)
        elif kind == "probed":
            if message["errors"].keys() != set(self.addresses) and not self.is_taken:
                self.fail_lost(name, "it tried addresses that were not requested")
            self.address_errors[name] = message["errors"]
        elif kind == "rank":
            if rank in node.pids:
                self.fail_lost(name, f"rank {rank} started twice")
            node.pids[rank] = message["pid"]
            if self.stopped and not self.is_taken:  # before it could be asked itself
                raise RunFailed(130, self.stopped)
            self.journal.write("rank", f"rank {rank} is pid {message['pid']}", node=name)
            node.text = "running"
        elif kind == "beat":
            node.ranks = {int(one): beat for one, beat in message["ranks"].items()}
            if not node.ranks.keys() <= set(share.ranks):
                self.fail_lost(name, "it sends heartbeats of ranks that are not its own")
            steps = (beat["step"] for beat in node.ranks.values())
            self.clock.beaten(max(steps, default=0), time.monotonic())
        elif kind == "telemetry":
            if share.first_rank != 0:
                self.fail_lost(name, "it sends the telemetry of a rank 0 that is not its own")
            if self._is_next(name, "telemetry", message):
                self._take_telemetry(name, node, message["text"])
        elif kind == "log":
            if self._is_next(name, str(rank), message):
                self.copies.append(f"ranks/{rank}.log", message["text"], name)
        elif kind == "unread":
            if self._is_new(kind, name):
                self.journal.write("unread", message["text"], node=name)
                self.state.add(telemetry.Event("unread", f"{name}: {message['text']}"))
        elif kind == "stopped":
            self._stopped(name, message)
        elif kind == "leaving" and not node.is_over:
            # Its ranks save as all do: they are awaited, unlike those of a node that is silent.
            self.lost[name] = message["text"]
            self.leaving.add(name)
            self.journal.write("lost", message["text"], node=name)
            raise RunFailed(3, f"{name} was lost: {message['text']}", in_order=True)
        elif kind == "supervised":
            self._named(name, message["head"])
        elif kind == "resumed":
            node.text = "running"
            self.heads.pop(name, None)
        elif kind == "rank_ended":
            if rank in node.ended:
                self.fail_lost(name, f"rank {rank} ended twice")
            node.ended.add(rank)
            node.text = "ending"
            self._rank_ended(name, message)
        elif kind == "fact":
            self._take_fact(name, message)
        elif kind == "failed":
            raise RunFailed(1, f"{name}: {message['text']}")
        elif kind == "ended":
            code = node.code = message["code"]
            if code != 0 and self.deaths:  # it ended because of a rank
                self.starter_ended_s = min(self.starter_ended_s, time.monotonic())
            elif code != 0:
                how = "has ended" if code is None else f"ended with code {code}"
                why = f"{name}: what starts its ranks {how}"
                raise RunFailed(1, why, last_lines=self._shown(message["tail"]))
        elif kind == "gone":
            node.is_over, node.text = True, "done" if node.code == 0 else "stopped"
            if message["left"]:
                self.left[name] = leftover(name, message["left"][0])

    def _named(self, name: str, head: str) -> None:
        """A node says that another head has the run."""
        doubt = another_head.doubt(head)
        self.heads.setdefault(name, (doubt, time.monotonic()))
        if self._is_new("supervised", name):
            self.journal.write("supervised", doubt, node=name)
        alive = [one for one, node in self.state.nodes.items() if not node.is_over]
        if another_head.is_elsewhere(self.plan.run_dir, self.heads, alive):
            raise Left(f"{name} is supervised by {printable(head)}")

    def check_heads(self, now: float) -> None:
        """Raise where a node is the only one that knows of another head."""
        for name, (doubt, since_s) in self.heads.items():
            is_over = self.state.nodes[name].is_over
            if not is_over and now - since_s > another_head.BELIEVED_S:
                self.fail_lost(name, doubt)

    def _is_new(self, kind: str, name: str) -> bool:
        """Whether a node says it for the first time: a node may say it without end."""
        is_new = (kind, name) not in self.said
        self.said.add((kind, name))
        return is_new

    def _is_next(self, name: str, file: str, message: Mapping[str, Any]) -> bool:
        """Whether this part of a file follows what is there; what was sent twice does not."""
        positions = self.positions[name]
        if message["at"] != positions.get(file, 0):
            return False
        target = telemetry.FILE if file == "telemetry" else f"ranks/{file}.log"
        if not self.journal.is_behind:  # what only this process has must be sent again
            self.notes.note(self.positions, None if self.state.nodes[name].shared else target)
        positions[file] = message["end"]
        return True

    def resume(self, name: str) -> dict[str, Any] | None:
        """What a head that comes back says to an agent; None before the agent has said anything."""
        if name not in self.hellos and not self.is_taken:
            return None
        return {"seen": self.seen[name], "positions": dict(self.positions[name])}

    def fail_lost(self, name: str, why: str) -> NoReturn:
        """A node that is lost, or sends what no agent sends: a run cannot rely on it."""
        if not self.state.nodes[name].is_over:
            self.lose(name, why)
        raise RunFailed(3, f"{name} was lost: {why}")

    def lose(self, name: str, why: str) -> None:
        node = self.state.nodes[name]
        node.is_over, node.text = True, "lost"
        self.lost[name] = why
        self.journal.write("lost", why, node=name)

    def _stopped(self, name: str, mark: Mapping[str, Any]) -> None:
        """The owner has ended the run. Ranks that were asked to save are left to do so."""
        self.stopped = f"{sentence(mark)} on {name}"
        if self._is_new("stopped", name):
            self.journal.write("stopped", self.stopped, node=name)
        if mark["by"] == "kill" or not any(node.pids for node in self.state.nodes.values()):
            raise RunFailed(130, self.stopped)

    def _take_telemetry(self, name: str, node: NodeState, text: str) -> None:
        if not node.shared:
            self.copies.append(telemetry.FILE, text, name)
        for line in text.splitlines():
            record = telemetry.decode(line)
            if record is None:
                continue
            self.clock.heard(record, time.monotonic())
            if isinstance(record, telemetry.StepRecord):
                self.state.step = record
            else:
                self.state.add(record)

    def _rank_ended(self, name: str, message: dict[str, Any]) -> None:
        rank, code, how = message["rank"], message["code"], message["how"]
        tail = message.get("tail", ())
        error = deaths.sentence(tail)
        why = f"{how}: {self.plan.environment.redact(error)}" if error else how
        self.journal.write("rank-ended", f"rank {rank}: {why}", node=name, code=code)
        if code != 0:
            self.deaths.append(deaths.Death(name, rank, code, why, tail, time.monotonic(), error))

    def _take_fact(self, name: str, message: Mapping[str, Any]) -> None:
        """What the kernel of a node says; a card may log thousands of lines."""
        same = [fact for fact in self.facts if fact.node == name]
        if len(same) >= FACTS:  # the last ones count: what is long ago has ended nothing
            self.facts.remove(same[0])
        evidence = Evidence(Source.KERNEL, message["text"])
        known = {"detail": message.get("detail", ""), "rank": message.get("rank")}
        at_s = time.monotonic() - message["age_s"]
        fact = Fact(FACT_KINDS[message["kind"]], name, evidence, **known, at_s=at_s)
        self.facts.append(fact)
        if len(same) < FACTS:
            more = {"rank": fact.rank, "age_s": round(message["age_s"], 1)}
            self.journal.write("fact", f"{fact.kind}: {evidence.line}", node=name, **more)

    def check_deaths(self, now: float) -> None:
        """Raise once the cause is known. After a starter has failed, an unseen end counts too."""
        if now - self.starter_ended_s > deaths.SETTLE_S:
            now = math.inf
        death = deaths.cause(self.deaths, now)
        if death is None:
            return
        if death.code == deaths.ASKED_TO_STOP and self.stopped:
            raise RunFailed(130, self.stopped)
        raise self.failure(death)

    def failure(self, death: deaths.Death) -> RunFailed:
        """How a run ends of which this death is the cause."""
        why, last_lines = f"rank {death.rank} on {death.node}: {death.how}", self._shown(death.tail)
        known: dict[str, Any] = {"failed_rank": death.rank, "last_lines": last_lines}
        if death.code == deaths.ASKED_TO_STOP:
            why, known["in_order"] = f"{why}, {NOT_ASKED}", True
        return RunFailed(1, why, **known)

    def end(self, exit_code: int, reason: str, stopped_s: float, unconfirmed: Lines) -> End:
        """What is known of a bad end. `unconfirmed` is what `prove_gone` says of silent nodes."""
        homes = {rank: name for name, share in self.shares.items() for rank in share.ranks}
        silent = {name: why for name, _, why in (line.partition(": ") for line in unconfirmed)}
        # The first one is that of the reason, where a lost node is the reason.
        lost = {**self.lost, **{name: silent[name] for name in silent if name not in self.lost}}
        return End(
            exit_code,
            reason,
            self.deaths,
            lost,
            homes=homes,
            facts=self.facts,
            stopped_s=stopped_s,
            leaving=self.leaving,
        )

    def where(self) -> str:
        """Where a run stands that was stopped: its step and its last checkpoint."""
        step, saved = self.state.step, self.state.checkpoint
        last = f"; last checkpoint: {saved}" if saved else ""
        return f" at step {step.step}{last}" if step else ""

    def _shown(self, lines: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.plan.environment.redact(line) for line in deaths.shown(lines))


def check_fitness(plan: LaunchPlan, name: str, hello: Mapping[str, Any]) -> None:
    """Raise `RunFailed` when a node's report shows that it cannot run its ranks."""
    why, hint = "", ""
    if not hello["python_found"]:
        why = f"there is no {plan.python}"
        hint = "the environment must be at the same path on every node; --python names it"
    elif not hello["workdir_found"]:
        why, hint = f"there is no folder {plan.workdir}", "--workdir"
    elif hello["same_job"]:
        found = hello["same_job"][0]
        why = f"the same job runs already (run {found['run']}, pid {found['pid']})"
        hint = "stop it first, or give this one other --outputs"
    elif name == plan.master.name and hello["port"] is None:
        why = f"no free master port ({', '.join(map(str, plan.ports[:5]))} are taken)"
        hint = "--master_port PORT names another one"
    if why:
        raise RunFailed(1, f"{name}: {why}", hint=hint)


def choose_address(
    plan: LaunchPlan, addresses: Sequence[str], errors: Mapping[str, Mapping[str, str | None]]
) -> str:
    """The first address that every node reaches; else `RunFailed` names the nodes that do not.

    `errors` holds for each node and address why the node cannot connect to it, or None.
    """
    cut_off = {
        address: [node.name for node in plan.nodes if errors[node.name][address] is not None]
        for address in addresses
    }
    best, names = min(cut_off.items(), key=lambda item: len(item[1]))
    if not names:
        return best
    why = f"{fold(names)} cannot reach the first node at {best}: {errors[names[0]][best]}"
    hint = "--master_addr ADDRESS names one that every node reaches"
    raise RunFailed(1, why, hint=f"{hint}; a firewall must let the nodes reach each other")
