"""What launchers and collectors of logs write before each line of a rank, with whom it names. Pure.

One place for all: mpirun, srun, pdsh, DeepSpeed, kubectl, Docker, Ray, vLLM, torchrun and its
logger, Determined, milabench. Every pattern is anchored, and its parts are bounded.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from clusterctl.node_name import is_node_name
from trainer.runlog.json_file import object_of


class Line(NamedTuple):
    """`rank` and `source` (host, pod or container) are what the prefix names."""

    text: str
    rank: int | None = None
    source: str = ""


# torch marks the lines of an error that nobody caught ("[rank3]: "), torchrun those of a process by
# its role ("[default3]:", "[trainer3]:"; --role names it).
_ROLE = r"(?!(?:node|host|gpu|cuda|pid|step|epoch|iter)\d)[A-Za-z]\w{0,30}?"
RANK_MARK = re.compile(rf"(?:\[(?:default|rank)\d{{1,9}}\]:? ?|\[{_ROLE}\d{{1,9}}\]: ?){{1,2}}")
OF_RANK = re.compile(rf"(?:\[{_ROLE}\d{{1,6}}\]: ?)?\[(?:default|rank)(\d{{1,6}})\]:? ?")
_OF_ROLE = re.compile(rf"\[default(\d{{1,6}})\]:? ?|\[{_ROLE}(\d{{1,6}})\]: ?")
# Group 0 is that of all ranks; in another one the number is not the rank.
_DEATH = re.compile(
    r"\](?:Traceback \(|Fatal Python error|Killed|Segmentation fault|Bus error|Aborted|"
    r"terminate called|\S{1,80}: line \d)"
)
_OF_GROUP = re.compile(
    r"ProcessGroup\w{1,20}\.cpp:\d{1,6}\] \[(?:PG (?:ID )?0[ (](?:[^\[\]]{0,200} )?)?"
    r"Rank (\d{1,6})\]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_MINUTE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# Each names itself: it is taken off wherever it stands.
_SURE = re.compile(
    # mpirun --tag-output and --timestamp-output, and Open MPI 5.
    rf"(?:{_DAY} ?)?\[(?:[\w.@-]{{1,100}}@)?\d{{1,6}},(?P<mpi>\d{{1,6}})\]<std(?:out|err)>:"
    r"(?: (?=\S| {2}))?|"
    rf" {{1,4}}\| {_TIME} \| |"  # the viewer of CloudWatch
    r"\[1,mpirank:(?P<sage>\d{1,6}),[\w.-]{1,60}\]<std(?:out|err)>: ?(?! {2})|"  # SageMaker
    # docker logs -t, kubectl logs --timestamps, a container runtime's own files.
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?|"
    # Determined: [time] container [rank=3] || text.
    rf"\[{_TIME}\] [0-9a-f]{{6,64}} (?:\[rank=(?P<det>\d{{1,6}})\] )?\|\| ?|"
    # Ray and vLLM: (Trainer pid=7, ip=10.0.0.1) text.
    r"\((?:[^()\n]{1,120}? )?(?:rank=(?P<vllm>\d{1,6}) )?pid=\d{1,9}(?:, ip=[^()\s]{1,60})?\) ?|"
    r"\((?:raylet|autoscaler|scheduler|gcs_server|dashboard)[^()\n]{0,80}\) ?|"
    r"(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{1,120}:\d{1,6}\] ?|"
    # torch's logger of errors, one line of a traceback each.
    r"E\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,9} (?:[\w.-]{1,60}/){0,12}[\w.-]{1,60}\.py:\d{1,6}\] ?"
    r"(?:\[\d{1,6}/\d{1,6}\] ?)?|"
    # journald; a line of the kernel is read as such.
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]{1,250}) (?!kernel:|systemd)"
    r"[\w./@-]{1,60}(?:\[\d{1,9}\])?: |"
    # A time before what no program writes behind one of its own.
    rf" {{0,4}}\[?{_MINUTE}\]?:? (?=\[rank\d|\[default\d|Traceback \(| {{2,20}}\S|"
    r"terminate called|\S{1,80}:\d{1,9}:\d{1,9} \[\d{1,3}\] |"
    r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt)(?:: |$))|"
    # uvicorn and other loggers, before the lines of a traceback.
    r"(?:ERROR|CRITICAL): {1,4}(?=Traceback \(| {2}File \"| {4}\S|"
    r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt)(?:: |$))|"
    # TorchX and NeMo-Run: role and replica.
    rf"[A-Za-z][\w.-]{{0,60}}/\d{{1,6}} (?=\[(?:default|rank|{_ROLE})\d)|"
    r"\[pod/(?P<pod>[\w.-]{1,250})/[\w.-]{1,63}\] |"  # kubectl logs --prefix
    r"(?:[\w.-]{1,200} )?\[std(?:err|out)\] |"  # milabench
    r"\[\d{1,9}\] (?=\[|Traceback| {2}|\w)|"  # number of a line or of a process
    r"\[?[Rr]ank[ _=]?(?P<rank>\d{1,6})(?:\]:?|:| \|) (?!Watchdog)"
)
MOST = 5  # of them one after the other

# These may stand before any sentence, so that a file has to have them before most of its lines.
_TASK = re.compile(r"^ {0,6}(?P<task>\d{1,6}): ?")  # srun --label
_HOST = re.compile(
    r"^(?P<host>[A-Za-z0-9][\w.-]{0,100}): (?=.)|^(?P<bare>[A-Za-z0-9][\w.-]{0,100}): ?$"
)
_SERVICE = re.compile(r"^(?P<service>[A-Za-z0-9][\w.-]{0,100}) {1,40}\| ?")  # Docker Compose
_STERN = re.compile(  # pod and container
    r"^(?P<pod>[a-z0-9][a-z0-9-]{0,200}-[a-z0-9]{1,10}) [a-z0-9][a-z0-9-]{0,62} (?=.)"
)
_REPLICA = re.compile(r"^(?P<replica>[A-Za-z][\w.-]{0,60}/\d{1,6}) (?=.)")  # TorchX, NeMo-Run
_LEADS = (_TASK, _SERVICE, _HOST, _STERN, _REPLICA)
# What only a program that is run by something prints, and no program before its own words.
_INSIDE = re.compile(
    r'Traceback \(most recent| {2}File "|\[rank\d|frame #\d|terminate called|'
    r"\S{1,80}:\d{1,9}:\d{1,9} \[\d{1,3}\] |[\w.]{1,100}(?:Error|Exception): "
)
_WORDS = re.compile(
    r"(?:error|warn|warning|info|debug|fatal|critical|note|hint|usage|exception|traceback|wandb|"
    r"epoch|step|iter|iteration|cuda|device|layer|batch|loss|line|stage|fold|seed|train|val|"
    r"test|eval|time|task|rank|nohup|srun|slurmstepd|torchrun|mpirun|bash|sh|python\d?|gcc|nvcc|"
    r"Files? already|Steps|Map|Loading)[._-]?\d*",
    re.IGNORECASE,
)
_ERRORS = ("Error", "Exception", "Interrupt", "Exit", "Timeout", "Failure", "Expired", "Warning")
_DIGITS = re.compile(r"\d+")


def plain(line: str) -> str:
    """A line without what stands before a rank's own words, as far as one line tells."""
    return _kept(line) if len(line) <= KEPT_LENGTH else _plain(line)


def _plain(line: str) -> str:
    text = bare(line).text
    if "]:" in text or "[rank" in text or "[default" in text:
        return RANK_MARK.sub("", text, count=1)
    return text


# A log is looked at several times in a row.
KEPT, KEPT_LENGTH = 1 << 14, 400
_kept = functools.lru_cache(KEPT)(_plain)


def bare(line: str) -> Line:
    """Without all but torch's mark, which tells an error that nobody caught; its rank is taken."""
    rank, source = None, ""
    if line.startswith('{"log":'):
        line = _of_docker(line)
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if "%|" in line and (end := _DEATH.search(line)):  # behind a progress bar
        line = line[end.start() + 1 :]
    for _ in range(MOST):
        found = None if OF_RANK.match(line) else _SURE.match(line)
        if found is None or not found.end():
            break
        told = found["mpi"] or found["det"] or found["vllm"] or found["rank"] or found["sage"]
        rank = int(told) if told is not None and rank is None else rank
        source = source or found["pod"] or found["host"] or ""
        line = line[found.end() :]
    if rank is None:
        mark = OF_RANK.match(line) or _OF_ROLE.match(line)
        mark = mark or (_OF_GROUP.search(line) if "ProcessGroup" in line else None)
        rank = int(next(filter(None, mark.groups()))) if mark else None
    return Line(line, rank, source)


def _of_docker(line: str) -> str:
    """The text of a line in Docker's own files."""
    text = object_of(line).get("log")
    return text.rstrip("\n") if isinstance(text, str) else line


def of_file(lines: Sequence[str]) -> list[Line]:
    """The lines of one file, each without its prefix."""
    found = [bare(line) for line in lines]
    lead = _lead([one.text for one in found])
    if lead is None:
        return found
    shown = []
    # A task may be the launcher of a whole node.
    is_rank = not any("torch/distributed" in one.text or "torchrun" in one.text for one in found)
    for one in found:
        mark = lead.match(one.text)
        if mark is None or (lead is _HOST and not _is_host(_name(mark))):
            shown.append(one)
            continue
        inner = bare(one.text[mark.end() :])
        task = mark["task"] if lead is _TASK and is_rank else None
        rank = inner.rank if inner.rank is not None else one.rank
        rank = int(task) if task is not None and rank is None else rank
        source = "" if lead is _TASK else _name(mark)
        shown.append(Line(inner.text, rank, one.source or source))
    return shown


def _name(mark: re.Match[str]) -> str:
    return next(text for text in mark.groups() if text)


def _lead(texts: Sequence[str]) -> re.Pattern[str] | None:
    """The prefix that most lines of a file have and that what programs print stands behind."""
    said = [text for text in texts if text.strip()]
    for lead in _LEADS:
        marks = [mark for mark in map(lead.match, said) if mark]
        if lead is _HOST:
            marks = [mark for mark in marks if _is_host(_name(mark))]
        if not marks or 2 * len(marks) < len(said):
            continue
        names = Counter(map(_name, marks))
        inside = any(_INSIDE.match(mark.string, mark.end()) for mark in marks)
        # node1: … node2: …, one line each, have one form; a list of things has not.
        forms = {_DIGITS.sub("#", name) for name in names}
        is_alike = lead is _HOST and len(forms) == 1 and forms != set(names)
        repeats = 2 * len(names) <= len(marks) or is_alike
        if inside and repeats:
            return lead
    return None


def _is_host(name: str) -> bool:
    is_word = name.isdigit() or name.endswith(_ERRORS) or _WORDS.fullmatch(name)
    return not is_word and is_node_name(name)
