"""Files of --out, --speedscope and --diff: texts of processes, report.json, index.html, profile."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.jobs.processes import label
from clusterctl.nodes import grouped
from clusterctl.stacks.evidence import Clue
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.report import to_json
from clusterctl.stacks.verdict import Verdict


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
            _write(place / file_name(proc), text)
    document = {"schema": 1, "command": "dump-stacks", **to_json(snapshot, verdict, clues)}
    _write(folder / "report.json", json.dumps(document) + "\n")
    _write(folder / "index.html", _page(document))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def file_name(proc: Proc) -> str:
    """`0064-loader7-5862.txt`: sorted by rank, and no two alike on one node."""
    rank = "norank" if proc.rank is None else f"{proc.rank:04d}"
    index = "" if proc.index is None else str(proc.index)
    return f"{rank}-{_safe(proc.role, 40)}{index}-{proc.pid}.txt"


def _safe(name: str, most: int = 200) -> str:
    """A name from a node that does not lead out of its folder."""
    text = re.sub(r"[^\w.,:@+-]", "_", name[:most], flags=re.ASCII)
    return text if text.strip(".") else "_" + text


def process_text(proc: Proc) -> str:
    """A process as py-spy prints it, below its kernel state and progress."""
    cpu = f"{proc.cpu_share:.0%} CPU in {proc.seconds:.1f} s"
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
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
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


_STYLE = """
:root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;margin:1.5em;max-width:80em}
pre,summary,td{font-family:ui-monospace,monospace;font-size:13px}h1{font-size:1.2em}
details{border-left:3px solid #8884;margin:.3em 0;padding-left:.6em}details.bad{border-color:#c33}
input{font:inherit;width:24em}.dim{opacity:.65}pre{margin:.2em 0 .6em 1em;white-space:pre-wrap}
"""

_SCRIPT = """
const report = JSON.parse(document.getElementById('report').textContent);
const list = document.getElementById('list'), box = document.getElementById('filter');
const count = document.getElementById('count');
function line(text, tag, parent) {
  const e = document.createElement(tag); e.textContent = text; parent.appendChild(e); return e;
}
const blamed = new Set(report.verdict.suspects.map(s => s.node + ' ' + s.pid));
const groups = new Map();
for (const node of report.nodes) for (const p of node.processes) {
  const main = p.threads.find(t => t.tid === p.pid) || p.threads[0];
  const frames = main ? main.frames.map(f => f[0] + ' ' + f[1] + ':' + f[2]) : [];
  const key = [p.role, p.kind, p.progress,
    p.state === 'T' || p.state === 'D' ? p.state : '', ...frames].join('|');
  if (!groups.has(key)) groups.set(key, {p, frames, members: [], bad: false});
  const g = groups.get(key);
  g.bad = g.bad || blamed.has(node.node + ' ' + p.pid);
  g.members.push({node: node.node, p, text: JSON.stringify([node.node, p]).toLowerCase()});
}
const ordered = [...groups.values()].sort(
  (a, b) => b.bad - a.bad || a.members.length - b.members.length);
function draw() {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  list.textContent = ''; let shown = 0;
  for (const g of ordered) {
    const members = g.members.filter(m => words.every(w => m.text.includes(w)));
    if (!members.length) continue;
    shown += members.length;
    const d = document.createElement('details'); list.appendChild(d);
    if (g.bad) { d.className = 'bad'; d.open = true; }
    line(`[${members.length}] ${g.p.role} ${g.p.kind} ${g.p.progress}  ${g.p.where}`, 'summary', d);
    line(g.frames.join('\\n'), 'pre', d);
    for (const m of members.slice(0, 400)) {
      const one = document.createElement('details'); d.appendChild(one);
      const rank = m.p.rank === null ? '' : `rank ${m.p.rank} `;
      line(`${m.node}  ${rank}${m.p.role}${m.p.index === null ? '' : ' ' + m.p.index}` +
        `  pid ${m.p.pid}  state ${m.p.state}`, 'summary', one);
      one.addEventListener('toggle', () => {
        if (one.open && one.childElementCount === 1) {
          const t = m.p.threads.map(t => `Thread ${t.tid} "${t.name}" (${t.kind})\\n` +
            t.frames.map(f => `    ${f[0]} (${f[1]}:${f[2]})`).join('\\n')).join('\\n');
          const facts = {beat: m.p.beat, clip: m.p.clip, files: m.p.files, wchan: m.p.wchan,
            cpu_share: m.p.cpu_share, error: m.p.error};
          line(JSON.stringify(facts) + '\\n' + (m.p.kernel_stack || '') + '\\n' + t, 'pre', one);
        }
      });
    }
  }
  count.textContent = shown + ' processes';
}
box.addEventListener('input', draw); draw();
"""


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
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>dump-stacks</title>',
        f"<style>{_STYLE}</style>",
        f"<h1>{html.escape(verdict['kind'].upper())}: {html.escape(verdict['sentence'])}</h1>",
        f"<p>{html.escape(verdict['confidence'])} confidence</p><ul>",
        *(f"<li>{html.escape(text)}</li>" for text in evidence),
        '</ul><p><input id="filter" placeholder="filter: node, rank, function, file" autofocus> ',
        '<span id="count" class="dim"></span></p><div id="list"></div>',
        f'<script type="application/json" id="report">{data}</script>',
        f"<script>{_SCRIPT}</script></html>",
    ]
    return "\n".join(parts) + "\n"
