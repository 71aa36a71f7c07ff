"""Say which rank hangs, where, and since when."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks.units import counted
from clusterctl.commands.kill import make_pick, pick_options
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.nodes import grouped
from clusterctl.output import Output
from clusterctl.param_types import Duration, HostPort
from clusterctl.settings import FILE, Settings, cluster_command, with_options

if TYPE_CHECKING:
    from clusterctl.jobs.processes import Pick
    from clusterctl.remote.cluster import Cluster
    from clusterctl.stacks.diagnose import Diagnosis

_stack_options = with_options(
    click.option("--samples", type=click.IntRange(1, 100), default=2, show_default=True, help="How often each process is looked at."),
    click.option("--interval", "interval_s", type=Duration(0.1), default=2.0, show_default=True, help="Seconds between samples."),
    click.option("--all", "everything", is_flag=True, help="All classes, threads and evidence."),
    click.option("--speedscope", type=FILE, metavar="FILE", help="Also write a profile for speedscope.app: stacks weighted by processes."),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Also write NODE/RANK-ROLE-PID.txt, report.json and index.html."),
    click.option("--diff", nargs=2, type=click.Path(path_type=Path, exists=True), metavar="A B", help="Compare two reports (--json files or --out folders) instead."),
    click.option("--native-suspects", is_flag=True, help="C stacks of the suspects; stops each for some seconds."),
    click.option("--watch", is_flag=True, help="Repeat until something is stuck."),
    click.option("--py-spy", metavar="PATH", help="py-spy on the nodes. Default: the job's own if no other user could have made it, else it is carried there and removed."),
    click.option("--dump-timeout", "limit_s", type=Duration(0.1), default=5.0, show_default=True, help="Seconds for one process."),
    click.option("--blocking", is_flag=True, help="Stop each process while it is read: exact, but fails on stopped ones."),
    click.option("--ras", "ras", type=HostPort(), metavar="HOST:PORT", help="Where NCCL's RAS listens on the nodes. Default: the job's NCCL_RAS_ADDR, else port 28028 of the node itself."),
    click.option("--no-ras", is_flag=True, help="Do not ask NCCL's RAS."),
    click.option("--sites", "sites_file", type=FILE, metavar="FILE", help="More wait sites, TOML."),
)  # fmt: skip


@cluster_command(
    "dump-stacks",
    pick_options,
    _stack_options,
    examples="""
  clusterctl dump-stacks nodes.txt
  clusterctl dump-stacks nodes.txt --match --sudo --out dumps/hang-1 --native-suspects""",
)
def command(
    settings: Settings,
    output: Output,
    watch: bool,
    speedscope: Path | None,
    out: Path | None,
    **options: Any,
) -> int:
    """Exit code 0 when all ranks move, 1 when a rank hangs, 3 when that is unknown.
    docs/guide/stacks.md says how to read a verdict.
    """
    from clusterctl.stacks.diagnose import DumpOptions, diagnose
    from clusterctl.stacks.files import write_folder, write_speedscope
    from clusterctl.stacks.wait_sites import Sites, read_sites

    if options["diff"]:
        return _show_difference(output, *options["diff"])
    sites_file = options["sites_file"]
    sites = Sites(read_sites(sites_file) if sites_file else ())
    if options["ras"] and options["no_ras"]:
        raise UsageError("--ras and --no-ras exclude each other")
    options["ras"] = None if options["no_ras"] else options["ras"] or ()
    names = [one.name for one in fields(DumpOptions) if one.name in options]
    dump_options = DumpOptions(**{name: options[name] for name in names})
    pick, cluster = make_pick(options), settings.cluster(output.sweep)
    is_part = bool(settings.only or settings.without)
    while True:
        seen = diagnose(cluster, pick, dump_options, sites=sites, is_part=is_part)
        _refuse_nothing(output, seen, pick)
        if not watch or seen.verdict.kind not in ("moving", "busy"):
            break
        output.note(f"{time.strftime('%H:%M:%S')}  {seen.verdict.headline}", "dim")
        time.sleep(dump_options.interval_s)
    native = {}
    if options["native_suspects"]:
        native = _native(cluster, seen, dump_options.py_spy, dump_options.sudo)
    try:
        if speedscope:
            write_speedscope(speedscope, seen.snapshot)
            output.note(f"profile: {speedscope} (https://www.speedscope.app)")
        if out:
            write_folder(out, seen.snapshot, seen.verdict, seen.clues, native)
            output.note(f"all stacks: {out}/index.html")
    except OSError as error:
        raise UsageError(f"cannot write: {error}") from None
    _show(output, seen, native, options["everything"])
    output.connections(seen.results)
    return seen.verdict.exit_code


def _refuse_nothing(output: Output, seen: Diagnosis, pick: Pick) -> None:
    """Raises `UsageError` for more than one job, `CouldNotFindOut` for none."""
    snapshot = seen.snapshot
    if len(snapshot.runs) > 1 and not pick.runs:
        found = f"{len(snapshot.runs)} runs are there: {', '.join(snapshot.runs)}"
        raise UsageError(found, hint="name one: --run ID")
    for rank, names in snapshot.twice.items():
        hint = "name one: --run ID, --user NAME, a --match that only fits one, or -w for its nodes"
        where = " and on ".join(names)
        raise UsageError(f"more than one job fits: rank {rank} runs on {where}", hint=hint)
    if not snapshot.procs and not snapshot.silent:
        others = sum(node.others for node in snapshot.nodes)
        hint = "--match finds jobs by their command lines, --run by the name of the run"
        if others:
            hint = f"{others} processes of other users fit: --user NAME, with --sudo"
        where = counted(len(snapshot.nodes), "node")
        if output.json:
            _show(output, seen, {}, everything=False)
        raise CouldNotFindOut(f"nothing found on {where}: {pick.words()}", hint=hint)


def _native(cluster: Cluster, seen: Diagnosis, py_spy: str | None, sudo: bool) -> dict[str, str]:
    """C and Python stacks of one process of each class of suspects, by `node pid`."""
    from clusterctl.stacks.diagnose import collect_native
    from clusterctl.stacks.files import native_text

    chosen: dict[tuple[object, ...], Any] = {}
    for suspect in seen.verdict.suspects:
        if suspect.proc is not None and suspect.proc.state not in ("T", "D", None):
            chosen.setdefault((suspect.proc.role, suspect.proc.stack.coarse), suspect.proc)
    if not chosen:
        return {}
    by_name = {node.name: node for node in cluster.nodes}
    pids = grouped((by_name[proc.node], proc.pid) for proc in chosen.values())
    views = {by_name[view.name]: view.py_spy for view in seen.snapshot.nodes}
    found = {}
    for result in collect_native(cluster, pids, views, given=py_spy, sudo=sudo):
        for pid, (threads, error, _) in (result.value or {}).get("native", {}).items():
            found[f"{result.node.name} {pid}"] = native_text(threads) if threads else error
    return found


def _show(output: Output, seen: Diagnosis, native: dict[str, str], everything: bool) -> None:
    from clusterctl.stacks.report import lines, to_json

    parts = (seen.snapshot, seen.verdict, seen.clues)
    if output.json:
        output.document("dump-stacks", **to_json(*parts), native=native)
        return
    if output.quiet:
        output.line(seen.verdict.headline, "good" if seen.verdict.exit_code == 0 else "bad")
        return
    page, verbose = output.page(), output.verbose > 0
    width = page.columns if page else 0
    for text, style in lines(*parts, everything=everything, width=width, verbose=verbose):
        output.line(text, style)
    for name, text in native.items():
        output.line(f"native {name}:")
        for line in text.splitlines():
            output.line(f"  {line}", "dim")


def _show_difference(output: Output, before: Path, after: Path) -> int:
    from clusterctl.stacks.files import compare_reports, read_report

    found = compare_reports(read_report(before), read_report(after))
    if output.json:
        output.document("dump-stacks", diff=found)
        return 0
    for entry in found:
        output.line(f"{entry['mark']} {entry['who']}: {entry['text']}")
    if all(entry["mark"] == "=" for entry in found):
        output.note("no process has moved from the first report to the second")
    return 0
