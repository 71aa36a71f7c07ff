"""Check all nodes before a launch: go or no-go, and the line that fixes it."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks import units
from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.output import Cell, Output
from clusterctl.param_types import Duration, Number
from clusterctl.settings import FILE, PATH, Settings, cluster_command, with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.facts import Active, Fleet, LaunchNeeds
    from checks.finding import Report
    from checks.profile import Profile
    from clusterctl.exclude.leave_out import Chosen
    from clusterctl.nodes import Node
    from clusterctl.remote.cluster import Cluster

NOTES = 4  # lines behind the verdict
STYLES = {"FAIL": "bad", "UNKNOWN": "warn", "WARN": "warn", "PASS": "good", "SKIP": "dim"}


def _ids(_context: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> list[str]:
    """The ids in `gpu,ssh.reachable` of each use of an option."""
    return [id for word in words for id in word.split(",") if id]


_needs_options = with_options(
    click.option("--launch", metavar="LINE", help="What is to be launched: \"CONFIG --dataset.data-path X\"; its files are looked for on every node."),
    click.option("--env", "env", multiple=True, metavar="K[=V]", help="A variable of the ranks, as for launch; NCCL_* are compared with the nodes."),
    click.option("--nccl", default="none", show_default=True, metavar="PRESET", help="NCCL environment, as for launch: h100-ib, ethernet, none."),
    click.option("--python", "python", metavar="PATH", help="Interpreter that training will run on, on the nodes: its environment is checked. Default with --launch or --active: this one; else no environment is looked at."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="What ranks will compute on; auto: cuda where any node has a GPU."),
    click.option("--nproc-per-node", "--nproc_per_node", "ranks", type=click.IntRange(1), help="Ranks on each node. Default: slots= of the hostfile, else its GPUs, else 1."),
    click.option("--master-port", "--master_port", "port", type=click.IntRange(1, 65535), default=29500, show_default=True, help="Rendezvous port on the first node."),
    click.option("--workdir", type=PATH, default=Path(), help="Folder that ranks start in: its commit is compared. Default: this one."),
    click.option("--outputs", type=PATH, default=Path("outputs"), show_default=True, help="Folder of the run directories."),
    click.option("--shared", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR", help="Prove that DIR is one folder on all nodes, with a small file that is removed again."),
    click.option("--min-free", "min_free_gib", type=Number(0), default=20.0, show_default=True, help="GiB that must be free in --outputs."),
    click.option("--check", "checks", metavar="IDS", multiple=True, callback=_ids, help="Only these checks or subjects: gpu,ssh.reachable. (--only names nodes.)"),
    click.option("--skip", "--skip-check", "skipped", metavar="IDS", multiple=True, callback=_ids, help="Leave these checks or subjects out."),
    click.option("--severity", "severity", metavar="ID=WORD", multiple=True, help="Another verdict for a check that did not pass: warn, fail, skip."),
    click.option("--profile", type=FILE, metavar="FILE", help="Thresholds and expected values; without it the majority is right."),
    click.option("--record", type=FILE, metavar="FILE", help="Write what all nodes agree on as a profile."),
    click.option("--write-good", type=FILE, metavar="FILE", help="Write a hostfile of the nodes that may go."),
    click.option("--junit", type=FILE, metavar="FILE", help="Write a JUnit file, a suite for each node."),
    click.option("--sudo", is_flag=True, help="Try `sudo -n`, which never asks, for what you may not read: the kernel's log."),
    click.option("--explain", metavar="ID", help="Say what a check does, why, and how to silence it; asks no node."),
    click.option("--list", "list_all", is_flag=True, help="List all checks; asks no node."),
)  # fmt: skip


_active_options = with_options(
    click.option("--active", is_flag=True, help="Also make the nodes work, after asking: ports, shared folder, matrix products, copies, all-reduce. Refused where GPUs are busy."),
    click.option("--yes", is_flag=True, help="Do not ask before --active."),
    click.option("--dry-run", is_flag=True, help="Say what --active would do and how long it would take; look at the nodes only."),
    click.option("--patience", "patience_s", type=Duration(2), default=15.0, show_default=True, help="Seconds that a group of nodes gets for an all-reduce of --active."),
)  # fmt: skip


@cluster_command(
    "preflight",
    _needs_options,
    _active_options,
    keeps_answers=True,
    examples="""
  clusterctl preflight --launch "stage1 --dataset.data-path clips.csv" --nccl h100-ib nodes.txt
  clusterctl preflight --active --shared /data nodes.txt""",
)
def command(
    settings: Settings, output: Output, record: Path | None, write_good: Path | None, **options: Any
) -> int:
    """Exit code 0 go (warnings allowed), 1 a check failed, 3 something could not be found out,
    4 active tests were declined or refused.
    """
    from checks.runner import record as recorded
    from clusterctl.hostfile import hostfile_line
    from clusterctl.ledger.entries import path_beside
    from clusterctl.ledger.write import enter_checks
    from clusterctl.preflight import files

    if options["explain"] or options["list_all"]:
        return _explain(output, options["explain"])
    limits = files.read_profile(options["profile"], _severities(options["severity"]))
    cluster, chosen = settings.cluster_for_run(output)
    nodes = cluster.nodes
    ledger = path_beside(settings.hostfile)
    report = _run(cluster, output, limits, ledger, options)
    if output.interrupted.is_set():  # what is not known of the others is nobody's fault
        _show(output, report, chosen)
        return report.exit_code
    good = [hostfile_line(node) for node in nodes if node.name in report.good_nodes]
    if write_good is not None:
        files.write(write_good, "".join(f"{line}\n" for line in good))
    if options["junit"] is not None:
        files.write(options["junit"], files.junit(report))
    if record is not None:
        files.write(record, files.profile_text(recorded(report)))
    _show(output, report, chosen)
    if not (options["python"] or options["launch"] or options["active"]):
        output.note("no training environment was looked at: --launch or --python names one", "dim")
    if why := enter_checks(ledger, report, settings.hostfile, time.time()):
        output.warn(why, "warn")
    if write_good is not None:
        output.note(f"{counted(len(good), 'node')} written to {write_good}")
    if record is not None:
        output.note(f"profile written to {record}")
    cost = "" if report.node_cpu_s is None else f", {report.node_cpu_s:.2f} CPU s per node"
    output.note(
        f"{counted(len(report.nodes), 'node')} in {units.duration(report.seconds)}{cost}", "dim"
    )
    return report.exit_code


def _run(
    cluster: Cluster, output: Output, profile: Profile, ledger: Path, options: dict[str, Any]
) -> Report:
    from clusterctl.preflight.last_census import default_path
    from clusterctl.preflight.run import run_preflight
    from clusterctl.remote.shared_token import where_runs_would_be

    checks, skipped, shared = options["checks"], options["skipped"], options["shared"]

    def work(fleet: Fleet) -> Active | None:
        from clusterctl.preflight.active import plan, run

        if output.interrupted.is_set():
            return None
        tests, patience_s = plan.chosen_tests(checks, skipped), options["patience_s"]
        made = plan.make_plan(fleet, shared=shared, tests=tests, patience_s=patience_s)
        if not made.nodes or not made.tests:
            output.note(f"active tests: {'no node to test' if made.tests else 'none chosen'}")
            for line in made.left_out_lines() if made.tests else ():
                output.note(line)
            return None
        for line in made.lines():
            output.note(line)
        if options["dry_run"]:
            return None
        question = f"Run these tests on {counted(len(made.nodes), 'node')}?"
        output.confirm(question, "nothing was tested", yes=options["yes"])
        machines, say = plan.machines(fleet), partial(output.note, style="dim")
        return run.run_active(made, cluster, profile=profile, machines=machines, say=say)

    if not options["active"]:
        asked = [f"--check {id}" for id in checks if id.split(".")[0] == "active"]
        alone = ["--yes"] * options["yes"] + ["--dry-run"] * options["dry_run"] + asked
        if alone:
            raise UsageError(f"{alone[0]} goes with --active")
    is_proven = options["launch"] and len(cluster.nodes) > 1
    outputs = where_runs_would_be(options["outputs"]) if is_proven else None
    try:
        return run_preflight(
            cluster,
            _needs(cluster.nodes, options),
            profile=profile,
            only=checks,
            without=skipped,
            sudo=options["sudo"],
            workdir=options["workdir"],
            shared=shared,
            outputs=outputs,
            memory=default_path(),
            ledger=ledger,
            work=work if options["active"] else None,
        )
    except KeyError as error:
        raise _unknown_check(error.args[0]) from None


def _needs(nodes: Sequence[Node], options: dict[str, Any]) -> LaunchNeeds:
    """What the launch that is meant asks of the nodes."""
    from checks.facts import LaunchNeeds
    from clusterctl.launch.inputs import kept_environment, parse_line, resolve

    env = kept_environment(options["env"], options["nccl"])
    asked: dict[str, Any] = {}
    if options["launch"]:
        config, overrides = parse_line(options["launch"])
        asked = resolve(config, overrides, workdir=options["workdir"].absolute(), env=env).reads
    is_named = options["launch"] or options["active"]
    return LaunchNeeds(
        python=options["python"] or (sys.executable if is_named else None),
        port=options["port"],
        slots={node.name: options["ranks"] or node.slots or 0 for node in nodes},
        device=options["device"],
        run_dir_parent=str(options["outputs"].absolute()),
        min_free_bytes=int(options["min_free_gib"] * (1 << 30)),
        master=nodes[0].name,
        env=env,
        **asked,
    )


def _show(output: Output, report: Report, chosen: Chosen) -> None:
    from clusterctl.nodes import fold
    from clusterctl.preflight.run import fix_lines, headline, shown, table_rows

    verdict = headline(report)
    if output.json:
        excluded = [entry.to_json(is_over=False) for entry in chosen.excluded]
        output.document("preflight", headline=verdict, **report.to_json(), excluded=excluded)
        return
    rows: list[list[str | Cell]] = []
    columns = ["VERDICT", "CHECK", "NODES", "EVIDENCE"]
    if output.verbose:
        columns[3:] = ["VALUE", "EXPECTED", "EVIDENCE"]
        for one in shown(report, everything=True):
            expected = f"{one.expected} ({one.source})" if one.expected else "-"
            cells = [one.id, fold(one.nodes), one.value or "-", expected, one.evidence]
            rows.append([Cell(one.verdict.value, STYLES[one.verdict.value]), *cells])
    else:
        for kind, *cells in table_rows(report):
            rows.append([Cell(kind.value, STYLES[kind.value]), *cells])
    if not output.quiet:
        fixes = fix_lines(report)
        page = output.page()
        if rows and page is not None and _height(rows, fixes, page.columns) + NOTES >= page.lines:
            rows, fixes = rows[::-1], fixes[::-1]  # the worst last: the first ones scroll off
        if rows or output.verbose:
            output.table(columns, rows)
        for text in fixes:
            output.line(text)
    output.line(verdict, "good" if report.go else "bad")


def _height(rows: Sequence[Sequence[str | Cell]], fixes: Sequence[str], columns: int) -> int:
    """About how many lines of a terminal a table takes with its header, and what follows it."""
    cells = [[len(cell.text if isinstance(cell, Cell) else cell) for cell in row] for row in rows]
    before = sum(max(row[column] for row in cells) + 2 for column in range(len(cells[0]) - 1))
    last = max(1, columns - before)  # columns of what is wrapped
    texts = [(row[-1], last) for row in cells] + [(len(text), columns) for text in fixes]
    return 1 + sum(max(1, -(-length // width)) for length, width in texts)


def _explain(output: Output, id: str | None) -> int:
    """The text of one check, or one line for each."""
    from checks.runner import all_checks
    from clusterctl.preflight.run import explain

    checks = all_checks()
    if id is not None and id not in checks:
        raise _unknown_check(id)
    if output.json:
        chosen = list(checks.values()) if id is None else [checks[id]]
        keys = {"what": "summary", "why": "why", "how": "how", "verdict": "bad", "fix": "fix"}
        keys |= {"id": "id", "scope": "scope", "advisory": "advisory"}
        documents = [{key: getattr(one, name) for key, name in keys.items()} for one in chosen]
        output.document("preflight", checks=documents)
    elif id is not None:
        for line in explain(checks[id]):
            output.line(line)
    else:
        output.table(["CHECK", "WHAT"], [[one.id, one.summary] for one in checks.values()])
    return 0


def _severities(pairs: tuple[str, ...]) -> dict[str, str]:
    """`gpu.temperature=warn` words of --severity. Raises `UsageError`."""
    from checks.runner import all_checks

    found = {}
    for pair in pairs:
        id, equals, word = pair.partition("=")
        if not equals or word.lower() not in ("pass", "warn", "fail", "skip", "off"):
            raise UsageError(f"--severity {pair!r} is not ID=warn, ID=fail or ID=skip")
        if id not in all_checks():
            raise _unknown_check(id)
        found[id] = word
    return found


def _unknown_check(name: str) -> UsageError:
    import difflib

    from checks.runner import all_checks

    ids = list(all_checks())
    subjects = sorted({id.split(".")[0] for id in ids})
    near = difflib.get_close_matches(name, ids + subjects, n=1)
    hint = f"did you mean {near[0]}?" if near else "--list shows all checks"
    return UsageError(f"no check is called {name!r}", hint=hint)
