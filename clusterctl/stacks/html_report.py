"""index.html of --out, one file: the verdict, classes that fold, processes that filter."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

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


def page(report: Mapping[str, Any]) -> str:
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
