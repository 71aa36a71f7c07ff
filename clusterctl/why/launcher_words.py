"""How ranks ended, by the words of what started them: torchrun, mpirun, Slurm, a shell. Pure.

They count where no rank states an error of its own, but for the kernel's kills that Slurm and
Kubernetes count: a process that is killed writes nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.jobs.processes import fold_ranks
from clusterctl.launch.causes.kinds import Evidence, Fact, Kind, Source
from clusterctl.node_name import is_node_name
from clusterctl.nodes import grouped

NEAR_END = 20  # lines: a shell's word further up is of a process that the program survived


@dataclass(frozen=True, slots=True)
class Told:
    """An end that a launcher saw. `rank` is None where it gives only a number of its own."""

    code: int
    how: str  # "torchrun saw local rank 3 killed by signal 9"
    by: str
    rank: int | None = None
    node: str = ""
    is_of_log: bool = False  # of the program whose log it is


@dataclass(frozen=True, slots=True)
class Words:
    """`kills` are the kernel's; `stops` are of those who ended the whole job."""

    ends: tuple[Told, ...] = ()
    kills: tuple[Fact, ...] = ()
    stops: tuple[Fact, ...] = ()


# What launchers print of an end; above it is what the ranks have said. Text -> pattern around it.
_LINES = {
    part: re.escape(part)
    for part in (
        "closing signal SIG",
        "failed (exitcode",
        "ChildFailedError",
        "death signal, shutting down",
        "MPI communication peer process",
        "BAD TERMINATION OF ONE",
        "slurmstepd: error",
        "exits with return code",
        "CalledProcessError: Command",
        "Job entrypoint command failed",
        "ProcessExitedException",
        "ProcessRaisedException",
        "crashed with exit code",
        "exit with status code",
        "command terminated with exit code",
        "OOMKilled",
        "killed due to memory pressure",
    )
} | {
    "terminated normally": r"Primary job {1,2}terminated normally",
    " noticed": r"(?:mpirun|mpiexec|prterun)(?:\.real)? noticed",
    " detected": r"(?:mpirun|mpiexec|prterun)(?:\.real)? detected",
    "srun: ": r"srun: (?:error|Job step aborted|got SIG|forcing job|Terminating)",
    "Killing subprocess": r"Killing subprocess \d{1,9}$",
    "Job '": r"Job '\S{1,100}' failed",
    "exited with code": r"exited with code -?\d",
    "Container rank": r"Container rank \d{1,6} status failed",
    " terminated with ": r"\bprocess \d{1,6} terminated with ",
    "systemd[": (
        r"systemd\[\d{1,9}\]: \S{1,200}: "
        r"(?:Main process exited|.{0,60}killed by the OOM killer)"
    ),
}
_LINE = re.compile("|".join(_LINES.values()))
_TORCH = re.compile(r"torch[./]distributed")
GOES_ON = 30  # lines of a program
# Lines that are none of a program that goes on: tracebacks, C++ frames, NCCL's, launchers'.
_QUIET = re.compile(
    r"\s|Traceback|frame #|Exception raised|\[[EWIF]\d{0,4}[ \]]|\[rank\d|terminate called|"
    r"\w{0,60}Warning|"
    r"\S{1,80}:\d{1,9}:\d{1,9} \[\d{1,3}\] |[\w.]{1,100}(?:Error|Exception)\b|-{5,}|={5,}|\*{3,}|"
    r"wandb:|srun|slurmstepd|(?:ERROR|WARNING|INFO|CRITICAL)[: ]"
)
# Its parts are searched one by one, the cheap ones first.
_TORCHRUN = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,3})\) local_rank: (?P<local>\d{1,6}) "
    r"\(pid: (?P<pid>\d{1,9})\)"
)
_MPIRUN = re.compile(
    r"(?P<by>mpirun|mpiexec|prterun)(?:\.real)? noticed that process rank "
    r"(?P<rank>\d{1,6}) with PID \S{1,20} on node (?P<node>\S{1,253}) exited on"
    r"(?: signal (?P<signal>\d{1,3}))?"
)
_MPIRUN_BELOW = re.compile(r"signal (\d{1,3}) \(")  # Open MPI 5 breaks the line there
_MPIRUN_CODE = re.compile(r" {1,8}Process name: \[\S{1,60},(?P<rank>\d{1,6})\]")
_MPIRUN_NUMBER = re.compile(r" {1,8}Exit code: {1,8}(?P<code>\d{1,3})")
_HYDRA = re.compile(r"(?:EXIT STRING: .{1,60} \(signal |KILLED BY SIGNAL: )(?P<signal>\d{1,3})")
_HYDRA_CODE = re.compile(r"= {1,4}EXIT CODE: (\d{1,3})$")
_HYDRA_RANK = re.compile(
    r"= {1,4}RANK (?P<rank>\d{1,6}) PID \d{1,9} RUNNING AT (?P<node>\S{1,253})"
)
_SRUN = re.compile(
    r"srun: error: (?P<node>\S{1,253}): tasks? (?P<rank>\d{1,6})(?P<more>[-,]\S{1,200})?: "
    r"(?P<how>Out Of Memory|Exited with exit code (?P<code>\d{1,3})|[A-Z][a-z ]{2,30})"
)
_KILL = re.compile(
    r"slurmstepd: error: (?:Detected \d{1,9} oom[-_]kill|.{0,120}exceeded .{0,20}memory limit)|"
    r"srun: error: \S{1,253}: tasks? \S{1,200}: Out Of Memory|\bOOMKilled\b|"
    r"killed by the OOM killer|killed due to memory pressure"
)
_SLURM_STOP = re.compile(
    r"slurmstepd: error: \*\*\* (?P<what>\w{1,8}) \S{1,60} ON (?P<node>\S{1,253}) CANCELLED AT "
    r"\S{1,40} (?:DUE (?:TO|to) (?P<why>[A-Za-z ]{3,40}))?"
)
_SLURM_NODE = re.compile(
    r"srun: error: (?:Node failure on (?P<node>[\w.-]{1,253})|"
    r"Task launch for \S{1,60} failed on node (?P<at>[\w.-]{1,253}): (?P<how>[^\n]{1,200}))"
)
_NOT_STARTED = re.compile(
    r"(?:slurmstepd|srun): error: execve\(\): [^\n]{1,300}: No such file|"
    r"srun: error: task \d{1,6} launch failed: "
)
_DEATH = re.compile(r"Received (?:Signals\.)?(?P<signal>\d{1,3}|SIG[A-Z]{2,6}) death signal")
_RETURNED = re.compile(
    r"exits with return code = (?P<code>-?\d{1,3})|code=(?:killed|dumped), status=\d{1,3}/"
    r"(?P<unit>[A-Z0-9]{2,7})|died with <Signals\.(?P<name>SIG[A-Z0-9]{2,7})|"
    r"[Pp]rocess (?P<child>\d{1,6}) terminated with (?:signal (?P<by>SIG[A-Z0-9]{2,7})|"
    r"exit code (?P<exit>\d{1,3}))|(?:exited with code|terminated with exit code) (?P<c>\d{1,3})"
)
# Composer, Horovod, Paddle: the rank and its exit code.
_RANK_ENDED = re.compile(
    r"(?:[Rr]ank (?P<rank>\d{1,6})(?: \(PID \d{1,9}\))? (?:crashed with exit|exited with) code|"
    r"Process (?P<process>\d{1,6}) exit with status code|"
    r"Container rank (?P<container>\d{1,6}) status failed [^\n]{0,1500}?code) (?P<code>-?\d{1,3})\b"
)
_SHELL = re.compile(
    r"(?:\S{1,200}: line \d{1,7}:|zsh:|\[\d{1,4}\][+-]?)? {0,8}(?:(?P<pid>\d{1,9}) )?"
    r"(?P<word>killed|segmentation fault|bus error|aborted|floating point exception|"
    r"illegal instruction|hangup)(?: {0,4}\(core dumped\))?(?: {2,40}\S[^\n]{0,2000})?",
    re.IGNORECASE,
)
_WORDS = {
    "killed": 9,
    "out of memory": 9,
    "segmentation fault": 11,
    "bus error": 7,
    "aborted": 6,
    "floating point exception": 8,
    "illegal instruction": 4,
    "hangup": 1,
    "terminated": 15,
}


def is_one(line: str) -> bool:
    """Whether a launcher or a shell has written a line of an end, and no rank."""
    return _LINE.search(line) is not None or _SHELL.fullmatch(line) is not None


def read(lines: Sequence[str]) -> Words:
    """What the launchers say in a log, in the order of its lines."""
    ends: list[Told] = []
    kills: list[Fact] = []
    stops: list[Fact] = []
    filled = [index for index, line in enumerate(lines) if line.strip()]
    last = filled[-NEAR_END] if len(filled) >= NEAR_END else 0
    text = "\n".join(lines)
    is_told = any(part in text for part in _LINES)  # 10 times cheaper than each line's search
    is_rank = _TORCH.search(text) is None  # a task may be torchrun
    survived = _survived(lines) if is_told else 0
    for index, line in enumerate(lines):
        if is_told and _LINE.search(line):
            if index < survived:
                continue
            below = lines[index + 1 : index + 8]
            by_srun = _srun(line, is_rank=is_rank)
            own = _rank_ended(line)
            ends += filter(None, (_torchrun(line), _mpi(line, below), by_srun))
            ends += filter(None, (own or _returned(line),))
            if _KILL.search(line):
                kills.append(_fact(Kind.OOM_KERNEL, line, by_srun.node if by_srun else ""))
            stops += filter(None, (_stop(line),))
        elif index >= last and (shell := _SHELL.fullmatch(line)):
            number = _WORDS[shell["word"].lower()]
            who = f"pid {shell['pid']}" if shell["pid"] else "the program"
            how = f"the shell saw {who} killed by signal {number}"
            ends.append(Told(-number, how, "the shell", is_of_log=True))
    if any(end.by == "srun" and end.code > 0 for end in ends):  # it ends what is left by SIGTERM
        stops = [fact for fact in stops if not _DEATH.search(fact.evidence.line)]
    for facts in (kills, stops):  # those that name a node first
        facts.sort(key=lambda fact: not fact.node)
    return Words(_one_each(ends), tuple(kills[:1]), tuple(stops[:1]))


def _survived(lines: Sequence[str]) -> int:
    """The line from which on a launcher's words count: of those that many lines of a program
    follow the program has survived, or was started again."""
    count = 0
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        count += bool(line.strip()) and not (_QUIET.match(line) or is_one(line))
        if count >= GOES_ON:
            return index
    return 0


def _one_each(ends: Sequence[Told]) -> tuple[Told, ...]:
    """The first of each rank; of those without one, only the first: a launcher repeats itself.

    Of many that the same signal killed none is named: the launcher ends what is left by it.
    """
    first: dict[int | None, Told] = {}
    for one in ends:
        first.setdefault(one.rank, one)
    found: list[Told] = []
    for (by, code), alike in grouped(((one.by, one.code), one) for one in first.values()).items():
        ranks = [one.rank for one in alike if one.rank is not None]
        if len(ranks) > 1 and code < 0:
            nodes = {one.node for one in alike}
            node = nodes.pop() if len(nodes) == 1 else ""
            found.append(_told(by, f"ranks {fold_ranks(ranks)}", code, None, node))
        else:
            found += alike
    return tuple(found)


def _torchrun(line: str) -> Told | None:
    found = _TORCHRUN.search(line)
    if found is None:
        return None
    who = f"local rank {found['local']} (pid {found['pid']})"
    return _told("torchrun", who, int(found["code"]))


def _mpi(line: str, below: Sequence[str]) -> Told | None:
    if found := _MPIRUN.search(line):
        text = found["signal"] or next(
            (more[1] for more in map(_MPIRUN_BELOW.match, below[:1]) if more), None
        )
        code = -int(text) if text else 1
        return _told(found["by"], "", code, int(found["rank"]), _node(found["node"]))
    rank = next(filter(None, map(_MPIRUN_CODE.match, below)), None)
    number = next(filter(None, map(_MPIRUN_NUMBER.match, below)), None)
    if rank and number and "detected that one or more processes" in line:
        return _told("mpirun", "", int(number["code"]), int(rank["rank"]))
    if "BAD TERMINATION" in line:
        place = next(filter(None, map(_HYDRA_RANK.search, below)), None)
        by = next(filter(None, map(_HYDRA.search, below)), None)
        if by is not None:
            own = (int(place["rank"]), _node(place["node"])) if place else (None, "")
            return _told("mpirun", "" if place else "a process", -int(by["signal"]), *own)
        number = next(filter(None, map(_HYDRA_CODE.match, below)), None)
        if number is not None:
            return _told("mpirun", "a process", int(number[1]))
    return None


def _srun(line: str, *, is_rank: bool) -> Told | None:
    found = _SRUN.search(line)
    if found is None:
        return None
    node, more = _node(found["node"]), found["more"]
    rank = int(found["rank"]) if is_rank and not more else None
    who = f"task{'s' if more else ''} {found['rank']}{more or ''}" if rank is None else ""
    if found["code"]:
        return _told("srun", who, int(found["code"]), rank, node)
    number = _WORDS.get(found["how"].strip().lower())
    return _told("srun", who, -number, rank, node) if number else None


def _rank_ended(line: str) -> Told | None:
    found = _RANK_ENDED.search(line)
    if found is None or not int(found["code"]):
        return None
    rank = next(int(found[name]) for name in ("rank", "process", "container") if found[name])
    return _told("its launcher", "", int(found["code"]), rank)


def _returned(line: str) -> Told | None:
    """DeepSpeed, Accelerate, torch.multiprocessing, Docker Compose, kubectl exec."""
    found = _RETURNED.search(line)
    if found is None:
        return None
    name, code = found["name"] or found["by"], found["code"] or found["exit"] or found["c"]
    name = f"SIG{found['unit']}" if found["unit"] else name
    if name is not None:
        number = _number(name)
        return _told("its launcher", _child(found["child"]), -number) if number else None
    return _told("its launcher", _child(found["child"]), int(code)) if int(code) else None


def _child(number: str | None) -> str:
    return f"process {number}" if number else "a process"


def _told(by: str, who: str, code: int, rank: int | None = None, node: str = "") -> Told:
    code = 128 - code if 128 < code <= 192 else code  # as a shell and srun count
    who = who or f"rank {rank}"
    end = f"killed by signal {-code}" if code < 0 else f"end with exit code {code}"
    how = f"{by} saw {who} {end}"
    return Told(code, how, by, rank, node)


def _stop(line: str) -> Fact | None:
    """Somebody ended the whole job: its terminal, its service manager, the batch system."""
    if found := _DEATH.search(line):
        line = line[found.start() :]  # a progress bar may stand before it
        text = found["signal"]
        number = int(text) if text.isdigit() else _number(text)
        if number == signal.SIGINT:
            return _fact(Kind.USER_STOP, line)
        return _fact(Kind.SIGNAL, line, detail=str(number)) if number else None
    if found := _SLURM_NODE.search(line):
        is_gone = found["node"] or "onnection" in found["how"] or "timed out" in found["how"]
        kind = Kind.NODE_UNREACHABLE if is_gone else Kind.ENVIRONMENT
        return _fact(kind, line, _node(found["node"] or found["at"]))
    if _NOT_STARTED.search(line):
        return _fact(Kind.ENVIRONMENT, line)
    if found := _SLURM_STOP.search(line):
        if not found["why"] and found["what"] != "JOB":
            return None  # srun ends a step where one of its tasks has failed
        if (found["why"] or "").lower().startswith("node fail"):
            return _fact(Kind.NODE_UNREACHABLE, line)  # which is not the one that says so
        return _fact(Kind.SIGNAL, line, detail="15")
    return None


def _fact(kind: Kind, line: str, node: str = "", detail: str = "") -> Fact:
    return Fact(kind, node, Evidence(Source.STARTER_LOG, line.strip()[-400:]), detail)


def _number(name: str) -> int:
    return int(getattr(signal, name, 0))


def _node(name: str) -> str:
    return name if is_node_name(name) else ""
