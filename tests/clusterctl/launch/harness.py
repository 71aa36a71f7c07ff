"""Launches of small programs over real ssh servers, and what of them can be seen from outside."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.hostfile import read_hostfile
from clusterctl.launch import environment
from clusterctl.launch.journal import EVENTS_FILE
from clusterctl.launch.plan import LaunchPlan, Timing, assign_ranks, new_run_id
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.state import RunResult, RunState
from clusterctl.launch.supervise import supervise
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.base import Limits
from clusterctl.transport.paramiko_backend import ParamikoTransport

REPO = Path(__file__).parents[3]
# The interpreter itself: a virtual environment's start is slower and nothing here imports more.
PYTHON = str(Path(__import__("sys").executable).resolve())
STARTER = (PYTHON, "-m", "trainer.starter")
QUICK = Timing(grace_s=5.0, fail_grace_s=1.0)
LIMITS = Limits(tcp_s=2.0, handshake_s=3.0, channel_s=3.0, command_s=10.0)

WAIT = "import time\nprint('up', flush=True)\ntime.sleep(60)\n"


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of `condition`; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.02)


def tagged(run_id: str) -> list[int]:
    """All processes of a run, on whatever node: this machine sees into every pid namespace."""
    return [pid for pid in _pids() if variables(pid).get("CLUSTERCTL_RUN") == run_id]


def ranks_of(run_id: str) -> dict[int, int]:
    """rank -> pid of the ranks' own processes (not what they started)."""
    ranks = {pid: variables(pid).get("RANK") for pid in sorted(tagged(run_id))}
    found: dict[int, int] = {}
    for pid, rank in ranks.items():
        if rank is not None and ranks.get(parent(pid)) != rank:
            found.setdefault(int(rank), pid)
    return found


def parent(pid: int) -> int:
    """0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (OSError, IndexError):
        return 0


def variables(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _pids() -> Iterable[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


@dataclass
class Bench:
    """Launches on the nodes of one cluster; programs and run directories lie in `directory`."""

    cluster: Any
    directory: Path
    count: int = 0
    last: LaunchPlan | None = None

    @property
    def nodes(self) -> list[Node]:
        return read_hostfile(self.cluster.hostfile)

    def plan(
        self,
        program: str,
        *arguments: str,
        slots: int = 1,
        nodes: Sequence[Node] | None = None,
        env: Sequence[str] = (),
        head_env: dict[str, str] | None = None,
        timing: Timing = QUICK,
        run_dir: Path | None = None,
        config: str | None = None,
        ports: Sequence[int] = tuple(range(29500, 29520)),
        python: str = PYTHON,
        master_addr: str | None = None,
        **more: Any,
    ) -> LaunchPlan:
        """A plan whose ranks run the Python text `program` with `arguments`."""
        self.count += 1
        script = self.directory / f"program{self.count}.py"
        script.write_text(program)
        run_dir = run_dir or self.directory / f"runs{self.count}" / "001-test"
        run_dir.mkdir(parents=True)
        nodes = self.nodes if nodes is None else nodes
        self.last = LaunchPlan(
            run_id=new_run_id(time.time(), f"{id(self) % 0xFFFF:04x}{self.count}"),
            config=config or f"test{self.count}",
            run_dir=run_dir,
            workdir=REPO,
            python=python,
            device="cpu",
            shares=assign_ranks(nodes, {node.name: slots for node in nodes}),
            environment=environment.build(
                head_env or {},
                assignments=(f"PYTHONPATH={REPO}", *env),  # where the starter is, for this PYTHON
                device="cpu",
                run_dir=run_dir,
            ),
            address=master_addr or nodes[0].address,
            address_fixed=master_addr is not None,
            ports=tuple(ports),
            program=(str(script), *arguments),
            starter=more.pop("starter", (python, *STARTER[1:])),
            timing=timing,
            **more,
        )
        return self.last

    def launch(self, plan: LaunchPlan, rules: Rules | None = None, **options: Any) -> Launch:
        """Start supervising in a thread."""
        return Launch(plan, rules, options)

    def rules(self, plan: LaunchPlan, spares: Sequence[Node] = (), **options: Any) -> Rules:
        """Restarts without a limit of their own; each spare has as many ranks as the first node."""
        slots = {share.node.name: share.slots for share in plan.shares}
        slots |= {node.name: plan.shares[0].slots for node in spares}
        first = tuple(plan.nodes)
        given = {"max_restarts": None, "patience_s": 20.0, **options}
        return Rules(nodes=first, spares=tuple(spares), slots=slots, **given)

    def run(self, program: str, *arguments: str, **options: Any) -> tuple[RunResult, LaunchPlan]:
        """Launch and wait for the end."""
        plan = self.plan(program, *arguments, **options)
        return Launch(plan).result(), plan


@dataclass
class Launch:
    """One supervised run; `stop` and `kill` are what Ctrl-C sets."""

    plan: LaunchPlan
    rules: Rules | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    kill: threading.Event = field(default_factory=threading.Event)
    state: RunState | None = None
    _result: RunResult | BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._result = supervise(
                self.plan,
                Cluster(self.plan.nodes, ParamikoTransport(), LIMITS),
                on_update=self._see,
                stop=self.stop.is_set,
                kill=self.kill.is_set,
                rules=self.rules,
                **self.options,
            )
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._result = error

    def _see(self, state: RunState) -> None:
        self.state = state

    @property
    def refused(self) -> bool:
        """Whether it has ended without having started anything."""
        return self._result is not None and not self._started

    @property
    def _started(self) -> bool:
        return any(event["event"] == "start" for event in self.events())

    def result(self, seconds: float = 40.0) -> RunResult:
        """How it ended. Nothing may be left, whatever the end was."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the launch has not ended within {seconds} s"
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result

    def pids(self, count: int) -> dict[int, int]:
        """rank -> pid, once `count` ranks have begun to log."""
        wait_until(lambda: all(self.log(rank) for rank in range(count)), 15)
        return wait_until(
            lambda: found if len(found := ranks_of(self.plan.run_id)) == count else None
        )

    def log(self, rank: int) -> str:
        with contextlib.suppress(OSError):
            return (self.plan.run_dir / "ranks" / f"{rank}.log").read_text()
        return ""

    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.plan.run_dir / EVENTS_FILE)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; none without the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
