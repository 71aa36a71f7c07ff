"""Probe or check every clip of a manifest on all nodes at once.

Each node reads a part of the files with the training environment; a lost node's part goes to
the others. The manifest is read and written here, in its order, and an interrupted run goes on.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import (
    PATH,
    Settings,
    cluster_options,
    flag,
    option,
    output_options,
    with_options,
)

TIMEOUT_S = {"probe": 30.0, "check": 120.0}
NAMES = {"probe": "probed", "check": "checked"}
TABLES = (".csv", ".parquet")
OTHER_TABLES = (".json", ".jsonl", ".ndjson", ".tsv")  # the trainer has a command for each
COUNT = click.IntRange(0)
PYTHON = "Of the training environment on the nodes. Default: the one that runs this."
WORKERS = "Processes on each node. Default: one for each core."
COLUMNS = (
    "Columns that have other names in MANIFEST, as in path=video,text=caption; or a data set by"
    " name, as `python -m trainer.data probe --help` lists them. Of probe."
)
CLIP_TIMEOUT = "Seconds for one clip. Default: 30 to probe, 120 to check."


def _in_order(values: dict[str, Any]) -> None:
    """The hostfile may also come first, as it once had to: a manifest is known by its name."""
    first, second = values["manifest"], values["hostfile"]
    if second is not None and second.suffix in TABLES and first.suffix not in TABLES:
        first, second = values["manifest"], values["hostfile"] = second, first
    if first.suffix not in TABLES:
        hint = "a manifest is .csv or .parquet: clusterctl data probe clips.csv nodes.txt"
        named = (path for path in (first, second) if path and path.suffix.lower() in OTHER_TABLES)
        if other := next(named, None):
            first = other
            tool = f"python -m trainer.data probe {shlex.quote(str(other))} clips.csv"
            hint = f"a manifest is .csv or .parquet: {tool} says how to make a csv of it"
        raise UsageError(f"{first} is not a manifest", hint=hint)


@click.command(
    "data",
    epilog="""\b
Examples:
  clusterctl data probe clips.csv nodes.txt --out manifest.csv
  clusterctl data check manifest.csv""",
)
@click.argument("verb", type=click.Choice(list(TIMEOUT_S)))
@click.argument("manifest", type=PATH)
@with_options(prepare=_in_order)
@cluster_options
@option("--out", "Default: MANIFEST with .probed or .checked in its name.", type=PATH)
@option("--columns", COLUMNS, metavar="OURS=THEIRS,…")
@option("--root", "Folder that relative paths start from, on all nodes.", type=PATH)
@option("--python", PYTHON, metavar="PATH", default=sys.executable, show_default=False)
@option("--workers", WORKERS, type=COUNT, default=0, show_default=False)
@option("--clip-timeout", "clip_timeout_s", CLIP_TIMEOUT, type=Duration(0.1))
@option("--max-wrong-rows", "Stop above this many rows that have to be left out.", type=COUNT)
@flag("--force", "Replace OUT if it exists.")
@output_options
def command(
    settings: Settings, output: Output, verb: str, manifest: Path, python: str, **options: Any
) -> int:
    """Probe or check every clip of a manifest on all nodes at once.

    probe makes a whole manifest from path and text; check decodes every clip and writes the result
    into the column `check`. Files must have the same path on every node. Exit code 1
    when rows were left out or clips are bad, 3 when a node was lost.
    """
    from clusterctl.manifests.verbs import Job, Spread

    columns = options["columns"]
    if columns is not None and verb != "probe":
        hint = "give it to probe, whose table has our names"
        raise UsageError("--columns is for probe", hint=hint)
    if not Path(python).is_absolute():
        raise UsageError(f"--python {python} is not an absolute path")
    cluster = settings.cluster(output.sweep)
    beside = manifest.with_name(f"{manifest.stem}.{NAMES[verb]}{manifest.suffix}")
    target = str(options["out"] or beside)
    timeout_s = options["clip_timeout_s"] or TIMEOUT_S[verb]
    root, most_wrong = options["root"], options["max_wrong_rows"]
    words = [str(manifest), target, "--clip-timeout-s", f"{timeout_s:g}"]
    words += ["--root", str(root)] if root else []
    words += [] if columns is None else [f"--columns={columns}"]
    words += [] if most_wrong is None else ["--max-wrong-rows", str(most_wrong)]
    words += ["--force"] if options["force"] else []
    words += ["--quiet"] if output.quiet else []
    words += ["--json"] if output.json else []
    job = Job(verb, words, python, options["workers"], timeout_s)
    outcome = Spread(job, cluster).run(lambda text: output.warn(text, "warn"))
    if output.json:
        lost, mistakes = outcome.lost, outcome.mistakes
        documents = [
            {"node": n, "answered": count, "lost": lost.get(n), "mistakes": mistakes.get(n, [])}
            for n, count in outcome.answered.items()
        ]
        report = json.loads(outcome.out) if outcome.out else None
        about = {"verb": verb, "out": target, "report": report, "exit_code": outcome.exit_code}
        output.document("data", **about, nodes=documents)
    else:
        for text in outcome.out.splitlines():
            output.line(text)
    if outcome.code == 2:
        return 2  # nothing was started
    output.note(_answers(outcome.answered, output.verbose > 0))
    if len(outcome.lost) == len(outcome.answered):
        output.warn("hint: the nodes need the training environment under the same path:", "bad")
        output.warn("  docs/guide/install.md, clusterctl push, or --python PATH")
    return outcome.exit_code


def _answers(answered: dict[str, int], each: bool) -> str:
    if each or len(answered) <= 8:
        return "answers: " + ", ".join(f"{name} {count:,}" for name, count in answered.items())
    low, high = min(answered.values()), max(answered.values())
    return f"{sum(answered.values()):,} answers of {len(answered)} nodes, {low:,} to {high:,} each"
