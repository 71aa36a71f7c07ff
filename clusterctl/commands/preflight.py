"""Check all nodes before a launch: go or no-go, and the line that fixes it.

Reads only. Each node is asked once; nodes are compared with each other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import UsageError
from clusterctl.nodes import counted
from clusterctl.output import Cell, Output
from clusterctl.param_types import Number
from clusterctl.preflight.active.options import active_options, make_work
from clusterctl.settings import Settings, cluster_options, output_options, with_options

if TYPE_CHECKING:
    from checks.facts import LaunchNeeds
    from checks.finding import Report
    from checks.profile import Profile
    from clusterctl.nodes import Node

STYLES = {"FAIL": "bad", "UNKNOWN": "warn", "WARN": "warn", "PASS": "good", "SKIP": "dim"}


_needs_options = with_options(
    click.option("--launch", metavar="LINE", help="What is to be launched: \"CONFIG --dataset.data-path X\"; its files are looked for on every node."),
    click.option("--env", "env", multiple=True, metavar="K[=V]", help="A variable of the ranks, as for launch; NCCL_* are compared with the nodes."),
    click.option("--nccl", default="none", show_default=True, metavar="PRESET", help="NCCL environment, as for launch: h100-ib, ethernet, none."),
    click.option("--python", "python", default=lambda: sys.executable, show_default="this one", metavar="PATH", help="Interpreter that training will run on, on the nodes."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="What ranks will compute on; auto: cuda where any node has a GPU."),
    click.option("--nproc-per-node", "--nproc_per_node", "ranks", type=click.IntRange(1), help="Ranks on each node. Default: slots= of the hostfile, else 1."),
    click.option("--master-port", "--master_port", "port", type=click.IntRange(1, 65535), default=29500, show_default=True, help="Rendezvous port on the first node."),
    click.option("--workdir", type=click.Path(path_type=Path), default=Path(), help="Folder that ranks start in: its commit is compared. Default: this one."),
    click.option("--outputs", type=click.Path(path_type=Path), default=Path("outputs"), show_default=True, help="Folder of the run directories."),
    click.option("--shared", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR", help="Prove that DIR is one folder on all nodes, with a small file that is removed again."),
    click.option("--min-free", "min_free_gib", type=Number(0), default=20.0, show_default=True, help="GiB that must be free in --outputs."),
    click.option("--check", "checks", metavar="IDS", multiple=True, help="Only these checks or subjects: gpu,ssh.reachable. (--only names nodes.)"),
    click.option("--skip", "--skip-check", "skipped", metavar="IDS", multiple=True, help="Leave these checks or subjects out."),
    click.option("--severity", "severity", metavar="ID=WORD", multiple=True, help="Another verdict for a check that is not content: warn, fail, skip."),
    click.option("--profile", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Thresholds and expected values; without it the majority is right."),
    click.option("--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write what all nodes agree on as a profile."),
    click.option("--write-good", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a hostfile of the nodes that may go."),
    click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a JUnit file, a suite for each node."),
    click.option("--sudo", is_flag=True, help="Try `sudo -n`, which never asks, for what you may not read: the kernel's log."),
    click.option("--explain", metavar="ID", help="Say what a check does, why, and how to silence it; asks no node."),
    click.option("--list", "list_all", is_flag=True, help="List all checks; asks no node."),
)  # fmt: skip


@click.command(
    "preflight",
    epilog="""\b
Examples:
  clusterctl preflight --launch "stage1 --dataset.data-path clips.csv" --nccl h100-ib nodes.txt
  clusterctl preflight --active --shared /data nodes.txt""",
)
@_needs_options
@active_options
@cluster_options
@output_options
def command(settings: Settings, output: Output, **options: Any) -> int:
    """Check all nodes before a launch: go or no-go, and the line that fixes it.

    Exit code 0 go (warnings allowed), 1 a check failed, 3 something could not be found out,
    4 active tests were declined or refused.
    """
    from clusterctl.preflight.export import junit, profile_text, read_profile, write

    if options["explain"] or options["list_all"]:
        return _explain(output, options["explain"])
    profile = read_profile(options["profile"], _severities(options["severity"]))
    report = _run(settings, output, options, profile)
    if options["write_good"] is not None:
        _write_good(options["write_good"], settings, report.good_nodes)
    if options["junit"] is not None:
        write(options["junit"], junit(report))
    if options["record"] is not None:
        from checks.runner import record

        write(options["record"], profile_text(record(report)))
    _show(output, report)
    if options["write_good"] is not None:
        output.note(f"{counted(len(report.good_nodes), 'node')} written to {options['write_good']}")
    if options["record"] is not None:
        output.note(f"profile written to {options['record']}")
    cost = "" if report.node_cpu_s is None else f", {report.node_cpu_s:.2f} CPU s per node"
    output.note(f"{counted(len(report.nodes), 'node')} in {report.seconds:.1f} s{cost}", "dim")
    return report.exit_code


def _run(settings: Settings, output: Output, options: dict[str, Any], profile: Profile) -> Report:
    from clusterctl.preflight import last_census as history
    from clusterctl.preflight.run import CollectOptions, run_preflight

    nodes = settings.nodes()
    how = CollectOptions(
        sudo=options["sudo"],
        workdir=options["workdir"],
        shared=options["shared"],
        memory=history.default_path(),
    )
    try:
        return run_preflight(
            nodes,
            settings.transport(),
            settings.limits,
            _needs(nodes, options),
            settings.width,
            profile=profile,
            only=_ids(options["checks"]),
            without=_ids(options["skipped"]),
            sweep=output.sweep,
            options=how,
            work=make_work(settings, output, options, profile),
        )
    except KeyError as error:
        raise _unknown_check(error.args[0]) from None


def _needs(nodes: list[Node], options: dict[str, Any]) -> LaunchNeeds:
    """What the launch that is meant asks of the nodes."""
    from checks.facts import LaunchNeeds
    from clusterctl.launch.inputs import kept_environment, parse_line, resolve

    env = kept_environment(options["env"], options["nccl"])
    line = None
    if options["launch"]:
        config, overrides = parse_line(options["launch"])
        line = resolve(config, overrides, workdir=options["workdir"].absolute(), env=env)
    return LaunchNeeds(
        python=options["python"],
        port=options["port"],
        slots={node.name: options["ranks"] or node.slots or 1 for node in nodes},
        device=options["device"],
        run_dir_parent=str(options["outputs"].absolute()),
        min_free_bytes=int(options["min_free_gib"] * (1 << 30)),
        master=nodes[0].name,
        env=env,
        files=line.files if line else (),
        wandb=line.wandb if line else False,
        config=line.config if line else "",
    )


def _show(output: Output, report: Report) -> None:
    from clusterctl.nodes import fold
    from clusterctl.preflight.run import fix_lines, headline, shown, table_rows

    verdict = headline(report)
    if output.json:
        output.document("preflight", headline=verdict, **report.to_json())
        return
    if output.verbose and not output.quiet:
        output.table(
            ["VERDICT", "CHECK", "NODES", "VALUE", "EXPECTED", "EVIDENCE"],
            [
                [
                    Cell(one.verdict.value, STYLES[one.verdict.value]),
                    one.id,
                    fold(one.nodes),
                    one.value or "-",
                    f"{one.expected} ({one.source})" if one.expected else "-",
                    one.evidence,
                ]
                for one in shown(report, everything=True)
            ],
        )
    elif not output.quiet and (rows := table_rows(report)):
        output.table(
            ["VERDICT", "CHECK", "NODES", "EVIDENCE"],
            [
                [Cell(one.value, STYLES[one.value]), id, names, text]
                for one, id, names, text in rows
            ],
        )
    for line in fix_lines(report) if not output.quiet else ():
        output.line(line)
    output.line(verdict, "good" if report.go else "bad")


def _explain(output: Output, id: str | None) -> int:
    """The text of one check, or one line for each."""
    from checks.runner import all_checks
    from clusterctl.preflight.run import explain

    checks = all_checks()
    if id is not None and id not in checks:
        raise _unknown_check(id)
    chosen = {id: checks[id]} if id is not None else checks
    if output.json:
        about = [
            {
                "id": one.id,
                "what": one.summary,
                "why": one.why,
                "how": one.how,
                "verdict": one.bad,
                "fix": one.fix,
                "scope": one.scope,
                "advisory": one.advisory,
            }
            for one in chosen.values()
        ]
        output.document("preflight", checks=about)
    elif id is not None:
        for line in explain(id, checks):
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


def _ids(options: tuple[str, ...]) -> list[str]:
    return [id for option in options for id in option.split(",") if id]


def _unknown_check(name: str) -> UsageError:
    import difflib

    from checks.runner import all_checks

    ids = list(all_checks())
    subjects = sorted({id.split(".")[0] for id in ids})
    near = difflib.get_close_matches(name, ids + subjects, n=1)
    hint = f"did you mean {near[0]}?" if near else f"checks: {', '.join(ids)}"
    return UsageError(f"no check is called {name!r}", hint=hint)


def _write_good(path: Path, settings: Settings, good: tuple[str, ...]) -> None:
    """A hostfile of the good nodes, every key as it stands in the original."""
    from clusterctl.nodes import hostfile_line

    lines = [hostfile_line(node) for node in settings.nodes() if node.name in set(good)]
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
