"""Files of --out, --speedscope and --diff: texts of processes, report.json, index.html, profile."""

from __future__ import annotations

import functools
import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import UsageError
from clusterctl.jobs.processes import label
from clusterctl.nodes import grouped
from clusterctl.stacks.clues import Clue
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.report import to_json
from clusterctl.stacks.verdict import Verdict
from trainer.runlog.json_file import MAX_BYTES
from trainer.runlog.json_file import parse as parse_json
from trainer.runlog.run_files import read_chosen


def write_folder(
    folder: Path,
    snapshot: JobSnapshot,
    verdict: Verdict,
    clues: Sequence[Clue],
    native: Mapping[str, str],
) -> None:
    """DIR/NODE/RANK-ROLE-PID.txt for every process, report.json and index.html. Raises OSError."""
    for node in snapshot.nodes:
        place = folder / _safe(node.name)
        place.mkdir(parents=True, exist_ok=True)
        if node.silent is not None:
            _write(place / "no-answer.txt", node.silent + "\n")
        for proc in node.procs:
            text = process_text(proc)
            more = native.get(f"{proc.node} {proc.pid}")
            text += f"\nnative:\n{more}\n" if more else ""
            # `0064-loader7-5862.txt`: sorted by rank, and no two alike on one node.
            rank = "norank" if proc.rank is None else f"{proc.rank:04d}"
            index = "" if proc.index is None else str(proc.index)
            _write(place / f"{rank}-{_safe(proc.role, 40)}{index}-{proc.pid}.txt", text)
    document = {"schema": 1, "command": "dump-stacks", **to_json(snapshot, verdict, clues)}
    _write(folder / "report.json", json.dumps(document) + "\n")
    _write(folder / "index.html", _page(document))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _safe(name: str, most: int = 200) -> str:
    """A name from a node that does not lead out of its folder."""
    text = re.sub(r"[^\w.,:@+-]", "_", name[:most], flags=re.ASCII)
    return text if text.strip(".") else "_" + text


def process_text(proc: Proc) -> str:
    """A process as py-spy prints it, below its kernel state and progress."""
    cpu = f"{proc.cpu_share:.0%} CPU in {units.duration(proc.seconds)}"
    lines = [
        f"{proc.label}  pid {proc.pid} on {proc.node}: {proc.program}",
        f"state {proc.state}  {proc.kind}  {proc.progress}  {cpu}  by {proc.how}",
    ]
    if proc.error:
        lines.append(f"error: {proc.error}")
    if beat := proc.beat:
        lines.append(f"heartbeat: step {beat['step']}, {beat['phase']}, {beat['age_s']} s old")
    if proc.clip:
        lines.append(f"decodes {proc.clip['path']} for {proc.clip['age_s']} s")
    lines += [f"open: {path}" for path in proc.files]
    if proc.wchan or proc.kernel_stack:
        lines.append(f"kernel: {proc.wchan or ''}")
        lines += [f"    {line}" for line in (proc.kernel_stack or "").splitlines()]
    for thread in proc.threads:
        gil = ", GIL" if thread.owns_gil else ""
        lines.append(f'Thread {thread.tid} ({thread.kind}{gil}): "{thread.name}"')
        lines += [f"    {f.function} ({f.path}:{f.line})" for f in thread.stack.frames]
    return "\n".join(lines) + "\n"


def native_text(threads: Sequence[Mapping[str, Any]]) -> str:
    """Threads of --native-suspects as text, innermost frame first."""
    lines = []
    for thread in threads:
        lines.append(f'Thread {thread["tid"]} "{thread["name"]}"')
        for frame in thread["frames"]:
            line = f":{frame['line']}" if frame["line"] else ""
            lines.append(f"    {frame['name']} ({frame['where']}{line})")
    return "\n".join(lines)


def write_speedscope(path: Path, snapshot: JobSnapshot) -> None:
    """A sampled profile whose weights are processes: the widest tower is where most are."""
    frames: dict[tuple[str, str, int], int] = {}
    weights: Counter[tuple[int, ...]] = Counter()
    for proc in snapshot.procs:
        chain = [(proc.role, "", 0)]
        chain += [(f.function, f.path, f.line) for f in reversed(proc.stack.frames)]
        weights[tuple(frames.setdefault(frame, len(frames)) for frame in chain)] += 1
    rows = [
        {"name": name, **({"file": file, "line": line} if file else {})}
        for name, file, line in frames
    ]
    samples = {"samples": list(weights), "weights": list(weights.values())}
    scale = {"unit": "none", "startValue": 0, "endValue": weights.total()}
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "clusterctl dump-stacks",
        "shared": {"frames": rows},
        "profiles": [{"type": "sampled", "name": "processes", **scale, **samples}],
    }
    _write(path, json.dumps(document) + "\n")


def read_report(path: Path) -> dict[str, Any]:
    """A --json file or the report of an --out folder. Raises `UsageError`."""
    file = path / "report.json" if path.is_dir() else path
    try:
        document = parse_json(read_chosen(file, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from None
    if not isinstance(document, dict) or "nodes" not in document or "classes" not in document:
        raise UsageError(f"{file} is not a report of dump-stacks")
    return document


def compare_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, str]]:
    """Processes that moved, are new or gone, or did not move from one report to the other."""
    old, new = _places(before), _places(after)

    def change(was: str | None, now: str | None) -> tuple[str, str]:
        if was is None:
            return "+", f"new, {now}"
        if now is None:
            return "-", f"gone, was in {was}"
        return ("=", now) if was == now else ("~", f"{was}  ->  {now}")

    changes = grouped((change(old.get(who), new.get(who)), who) for who in {**old, **new})
    found = []
    for (mark, text), names in changes.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        found.append({"mark": mark, "who": names[0] + more, "text": text})
    return sorted(found, key=lambda entry: ("~+-=".index(entry["mark"]), entry["who"]))


def _places(report: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for node in report["nodes"]:
        for proc in node["processes"]:
            mains = [t for t in proc["threads"] if t["tid"] == proc["pid"]] or proc["threads"]
            frames = mains[0]["frames"] if mains else []
            place = " <- ".join([f"{f[0]} {f[1].rpartition('/')[2]}:{f[2]}" for f in frames[:2]])
            who = label(proc["rank"], proc["role"], proc["index"])
            found[f"{who} pid {proc['pid']} ({node['node']})"] = (
                f"{proc['kind']} {place or '(no stack)'}"
            )
    return found


def _page(report: Mapping[str, Any]) -> str:
    """A page without other files; every text of the cluster is data in it, never markup."""
    verdict = report["verdict"]
    data = json.dumps(report).replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")
    silent = [node["node"] for node in report["nodes"] if node["silent"]]
    evidence = [
        *verdict["evidence"],
        *(f"{clue['source']}: {clue['text']}" for clue in report["clues"]),
        *(f"next: {text}" for text in verdict["next"]),
        *(f"no answer: {name}" for name in silent),
    ]
    values = {
        "headline": html.escape(f"{verdict['kind'].upper()}: {verdict['sentence']}"),
        "confidence": html.escape(verdict["confidence"]),
        "evidence": "\n".join(f"<li>{html.escape(text)}</li>" for text in evidence),
        "data": data,
    }
    return re.sub("@([a-z]+)@", lambda marker: values[marker[1]], template())


@functools.cache
def template() -> str:
    return Path(__file__).with_name("report.html").read_text(encoding="utf-8")
