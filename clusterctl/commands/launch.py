"""Start a training run on all nodes, watch it, and stop it everywhere."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.hostfile import read_hostfile
from clusterctl.nodes import Node, fold, grouped
from clusterctl.output import Output
from clusterctl.param_types import Duration, Number
from clusterctl.settings import (
    PATH,
    GroupedCommand,
    Settings,
    cluster_command,
    option,
    with_options,
)

if TYPE_CHECKING:
    from clusterctl.launch.inputs import LaunchLine
    from clusterctl.launch.plan import LaunchPlan
    from clusterctl.launch.saved_run import SavedRun
    from clusterctl.launch.start import LaunchOptions, Prepared
    from clusterctl.remote.cluster import Cluster

BUSY = "gpu.busy"  # the one failed check that a user may allow


def _refuse_script(places: Sequence[str]) -> None:
    """`scripts/train.py CONFIG`, as Open-Sora's own lines begin."""
    if len(places) > 1 and places[0].endswith(".py") and places[1].endswith(".py"):
        raise UsageError(
            f"{places[0]} and {places[1]}: launch starts the trainer itself and takes one CONFIG",
            hint=f"leave out {places[0]}: clusterctl launch {places[1]} HOSTFILE …",
        )


class PassingCommand(GroupedCommand):
    """Passes every word that it does not know on, as the parameter `overrides`.

    click's own `ignore_unknown_options` would take `--lr` for the HOSTFILE where that is left out.
    The rule: from the first unknown option on, words that are no option of ours (nor the value of
    one) are the other program's; behind `--` all are.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, theirs = self._split(ctx, args)
        rest = super().parse_args(ctx, ours)
        ctx.params["overrides"] = tuple(theirs)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[TRAINER OPTIONS]"]

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        takes_value: dict[str, bool] = {}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option):
                names = [*one.opts, *one.secondary_opts]
                takes_value.update(dict.fromkeys(names, not (one.is_flag or one.count)))
        ours: list[str] = []
        theirs: list[str] = []
        places: list[str] = []  # CONFIG and HOSTFILE
        words = iter(args)
        for word in words:
            name, equals, _ = word.partition("=")
            letters = word[1:] if word.startswith("-") and not word.startswith("--") else ""
            if word == "--":
                theirs += words
            elif name in takes_value:
                ours.append(word)
                if takes_value[name] and not equals:
                    ours += [value for value in [next(words, None)] if value is not None]
            elif len(letters) > 1 and all(takes_value.get(f"-{one}") is False for one in letters):
                ours.append(word)  # -vv, -qv
            elif letters or word.startswith("--"):
                near = difflib.get_close_matches(name, takes_value, 1, cutoff=0.88)
                # `--nproc_per_nod 8` must not end up in the trainer, minutes later on every rank.
                if near and "." not in name:
                    hint = f"for the trainer: -- {name} …"
                    raise UsageError(f"no option {name}; did you mean {near[0]}?", hint=hint)
                theirs.append(word)
            else:
                (theirs if theirs else ours).append(word)
                places += [] if theirs else [word]
        _refuse_script(places)
        if theirs and not places:
            hint = (
                "launch starts the bundled trainer; for your own program: docs/guide/own-program.md"
            )
            raise UsageError(f"CONFIG comes before the trainer's words ({theirs[0]} …)", hint=hint)
        return ours, theirs


_launch_options = with_options(
    click.option("--nproc_per_node", "--nproc-per-node", "ranks", type=click.IntRange(1), help="Ranks on each node. Default: slots= of the hostfile, else its GPUs, else 1."),
    click.option("--include", metavar="SET", help="Same as -w."),
    click.option("--exclude", metavar="SET", help="Same as -x."),
    click.option("--master_addr", "--master-addr", metavar="ADDRESS", help="Where ranks meet. Default: the first node."),
    click.option("--master_port", "--master-port", type=click.IntRange(1, 65535), help="Default: a free one of 29500-29999."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="auto: cuda where any node has a GPU."),
    click.option("--env", "env", multiple=True, metavar="K[=V]", help="A variable for every rank; repeat it for more. Without =V the value is that of your environment; give secrets in this way."),
    click.option("--nccl", default="none", show_default=True, metavar="PRESET", help="NCCL environment: h100-ib, ethernet, none."),
    click.option("--env-from-facts", is_flag=True, help="Work the NCCL environment out from the nodes, as clusterctl env prints it."),
    click.option("--python", default=lambda: sys.executable, show_default="this one", metavar="PATH", help="Interpreter on the nodes."),
    click.option("--workdir", type=PATH, default=Path(), help="Folder that ranks start in. Default: this one."),
    click.option("--outputs", type=PATH, default=Path("outputs"), show_default=True, help="Folder of the run directories."),
    click.option("--share", metavar="GROUP", default="", help="Let this group read the run directory. Default: only you."),
    click.option("--grace", "grace_s", type=Duration(0), default=30.0, show_default=True, help="Seconds from Ctrl-C to SIGKILL: time for a checkpoint."),
    click.option("--start-timeout", "start_s", type=Duration(0), default=900.0, show_default=True, help="Seconds to the first step; 0 is no limit."),
    click.option("--hang-timeout", "hang_s", type=Duration(0), default=600.0, show_default=True, help="Seconds without a step (or 5 times the longest recent one; 3 times that in a save) until the run is stopped; 0 is no limit."),
    option("--stack-timeout", "look_s", "Time to collect stack traces before a hung run is stopped; 0 disables it.", former="--look", type=Duration(0), default=30.0),
    option("--orphan-timeout", "lease_s", "How long ranks keep training if the supervisor is gone (10m, 24h); then they save and end.", former="--keep-for", type=Duration(1), default=86400.0, show_default="24h"),
    click.option("--detach", is_flag=True, help="Return as soon as the run has begun; clusterctl attach shows it."),
    click.option("--max-restarts", type=click.IntRange(0), metavar="N", help="Restarts after failures, 0 for none. Default: as long as checkpoints are made in between."),
    click.option("--spares", metavar="SET", help="Nodes of the hostfile that wait until one of the others fails."),
    click.option("--min-nodes", type=click.IntRange(1), metavar="N", help="Restart with fewer nodes down to this many. Default: with as many as at first."),
    click.option("--wait-for-nodes", "patience_s", type=Duration(0), default=86400.0, show_default="24h", help="How long a restart waits while too few nodes can be used; then the run ends."),
    click.option("--min-free", "min_free_gib", type=Number(0), default=20.0, show_default=True, help="GiB that must be free in --outputs."),
    click.option("--skip-preflight", is_flag=True, help="Start although checks fail."),
    click.option("--yes", is_flag=True, help="Start although others use the GPUs, without asking."),
    click.option("--dry-run", is_flag=True, help="Print plan, environment and commands; start nothing."),
)  # fmt: skip


@cluster_command(
    "launch",
    click.argument("config"),
    _launch_options,
    cls=PassingCommand,
    examples="""
  clusterctl launch demo nodes.txt --dataset.data-path digits/digits.csv
  clusterctl launch stage1.py nodes.txt --nccl h100-ib --lr 1e-4 --dry-run
  clusterctl launch stage1.py nodes.txt --spares 'n[23-24]' --detach""",
)
def command(settings: Settings, output: Output, detach: bool, **options: Any) -> int:
    """Every option that is not listed here goes to the trainer: --dataset.data-path X, --lr 1e-4;
    they come last, and everything after -- is the trainer's.
    A run that fails is started again from its newest checkpoint. It goes on when this terminal is
    closed; Ctrl-C asks what to do, twice stops in order (the trainer saves), once more at once.
    """
    from clusterctl.launch.head.session import begin

    try:
        saved = _saved_run(settings, output, **options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was started") from None
    return saved if isinstance(saved, int) else begin(saved, output, detach=detach)


def _saved_run(
    settings: Settings,
    output: Output,
    skip_preflight: bool,
    yes: bool,
    dry_run: bool,
    max_restarts: int | None,
    spares: str | None,
    min_nodes: int | None,
    patience_s: float,
    **options: Any,
) -> SavedRun | int:
    """What a supervisor begins with; the exit code where nothing is to be started."""
    from clusterctl.exclude.entries import path_beside
    from clusterctl.launch.inputs import kept_environment, refuse_untrainable, resolve
    from clusterctl.launch.plan import Timing
    from clusterctl.launch.restart.rules import Rules, check_nodes, part_spares
    from clusterctl.launch.run_dir import group_id
    from clusterctl.launch.saved_run import SavedRun
    from clusterctl.launch.start import LaunchOptions, Prepared, choose_slots, plan_launch, prepare
    from clusterctl.ledger.entries import path_beside as ledger_beside
    from clusterctl.ledger.write import enter_checks
    from clusterctl.payload.secrets.marks import is_secret

    for name in [pair.partition("=")[0] for pair in options["env"] if "=" in pair]:
        if is_secret(name):  # every user of this machine can read a command line
            hint = f"--env {name} alone takes it from your environment"
            output.warn(f"other users of this machine can read --env {name}=…; {hint}", "warn")
    if options["share"]:
        group_id(options["share"])  # before anything is asked or promised
        os.umask(0o027)  # plan, events and logs too
    only, without = options.pop("include"), options.pop("exclude")
    settings = replace(settings, only=only or settings.only, without=without or settings.without)
    env_from_facts = options.pop("env_from_facts")
    timing = {one.name: options.pop(one.name) for one in fields(Timing) if one.name in options}
    min_free_bytes = int(options.pop("min_free_gib") * (1 << 30))
    wanted = LaunchOptions(**options, timing=Timing(**timing), min_free_bytes=min_free_bytes)
    # A wrong key ends it before nodes are asked, and the hostfile may stand behind it as its value.
    env, workdir = kept_environment(wanted.env, wanted.nccl), wanted.workdir.absolute()
    line = resolve(wanted.config, wanted.overrides, workdir=workdir, env=env)
    named = settings.nodes(), settings.only
    first, waiting = part_spares(read_hostfile(settings.hostfile), *named, spares)
    cluster, _ = settings.cluster_for_run(output, [*first, *waiting])
    first, waiting = ([node for node in cluster.nodes if node in part] for part in (first, waiting))
    check_nodes(first, min_nodes)
    cluster, standing_by = replace(cluster, nodes=first), replace(cluster, nodes=waiting)
    nodes = first
    ranks = sum(wanted.ranks or node.slots or 1 for node in nodes)
    try:
        said = refuse_untrainable(
            wanted.config, wanted.overrides, line, workdir=workdir, ranks=ranks
        )
    except UsageError as error:
        if not (dry_run or skip_preflight):
            raise
        said = f"the ranks will refuse it: {error}"
    if said is not None:
        output.warn(said, "warn")
    if env_from_facts:
        wanted = replace(wanted, facts_env=_environment_from_facts(output, cluster, wanted))
    if dry_run and skip_preflight:
        # No node is asked, so `auto` stays undecided.
        slots = choose_slots(nodes, (), wanted.ranks, wanted.device)
        prepared = Prepared(wanted.device, slots, None)
    else:
        ledger = ledger_beside(settings.hostfile)
        is_proven = not dry_run and len(first) + len(waiting) > 1
        prepared = prepare(cluster, wanted, line, ledger, prove_outputs=is_proven)
        if not dry_run and prepared.report is not None:
            why = enter_checks(ledger, prepared.report, settings.hostfile, time.time(), "launch")
            if why:
                output.warn(why, "warn")
    if dry_run:
        plan = plan_launch(nodes, prepared, wanted, line, claim=False)
        unknown = _unknown(prepared)
        _show_plan(output, plan, waiting, commands=True, unknown=unknown)
        return CouldNotFindOut.exit_code if unknown else 0
    if not skip_preflight and (code := _judge(output, prepared, assume_yes=yes)):
        return code
    plan = plan_launch(nodes, prepared, wanted, line, claim=True)
    if not output.json:
        _show_plan(output, plan, waiting, commands=False)
    slots = {**prepared.slots, **_look_at_spares(output, standing_by, wanted, prepared, line)}
    rules = Rules(
        max_restarts,
        tuple(plan.nodes),
        tuple(waiting),
        min_nodes,
        slots,
        None if skip_preflight or prepared.needs is None else replace(prepared.needs, slots=slots),
        path_beside(settings.hostfile).absolute(),
        patience_s,
        _accepted(prepared, [*plan.nodes, *waiting] if yes else ()),
    )
    return SavedRun(plan, rules, settings.limits, settings.width, settings.accept_new)


def _look_at_spares(
    output: Output, cluster: Cluster, wanted: LaunchOptions, prepared: Prepared, line: LaunchLine
) -> Mapping[str, int]:
    """Ranks of each spare; says which of them could not stand in now. They are no reason not to
    start."""
    from clusterctl.launch.restart.recheck import unfit
    from clusterctl.launch.start import prepare

    if not cluster.nodes:
        return {}
    found = prepare(cluster, replace(wanted, device=prepared.device), line, prove_outputs=True)
    if found.needs is not None and found.report is not None:
        needs = replace(found.needs, slots={**prepared.slots, **found.slots})
        whys = unfit(prepared.facts, found.facts, needs)
        for one in found.report.findings:  # of a token that the other nodes were not asked for
            if one.id == "storage.token" and found.report.stops(one):
                whys |= {name: whys.get(name, one.evidence) for name in one.nodes}
        found_by = grouped((whys[name], name) for name in found.slots if name in whys)
        for why, names in found_by.items():
            output.warn(f"spare {fold(names)} could not be used now: {why}", "warn")
    return found.slots


def _accepted(prepared: Prepared, every: Iterable[Node]) -> tuple[tuple[str, str], ...]:
    """What the launch continues in spite of, so that no restart is refused for it; --yes speaks for
    `every` node."""
    report = prepared.report
    stops = [one for one in report.findings if report.stops(one)] if report is not None else []
    seen = [(one.id, name) for one in stops for name in one.nodes]
    return tuple(dict.fromkeys([*seen, *((BUSY, node.name) for node in every)]))


def _environment_from_facts(
    output: Output, cluster: Cluster, wanted: LaunchOptions
) -> dict[str, str]:
    """What `clusterctl env` would print; says which nodes disagree. Raises `CouldNotFindOut`."""
    from checks.nccl.recommend import chosen_values
    from clusterctl.fabric.collect import collect_fabric, no_answers, suggestions
    from clusterctl.fabric.report import suggestion_lines, unsure_lines

    facts, results = collect_fabric(cluster)
    suggested = suggestions(cluster.nodes, facts, wanted.device, wanted.ranks)
    if not suggested:
        raise no_answers(results)
    odd = [one for one in suggested if one.odd]
    lines = [line for line, _ in suggestion_lines(suggested if output.verbose else odd)]
    for line in [*lines, *unsure_lines(suggested)]:
        output.warn(line)
    return chosen_values(suggested)


def _unknown(prepared: Prepared) -> dict[str, str]:
    """Nodes of a dry run that did not answer, or of whose GPUs nothing is known, and why."""
    found = {one.name: str(one.unreached) for one in prepared.facts if one.unreached is not None}
    return found | dict(prepared.unsure if prepared.device != "cpu" else {})


def _show_plan(
    output: Output,
    plan: LaunchPlan,
    spares: Sequence[Node],
    *,
    commands: bool,
    unknown: Mapping[str, str] = MappingProxyType({}),
) -> None:
    if output.json:
        names = [node.name for node in spares]
        about = {"plan": plan.to_json(), "spares": names, "unknown": dict(unknown)}
        output.document("launch", dry_run=True, **about)
        return
    say = output.line if commands else output.note
    for line in plan.render(commands=commands):
        if line.startswith("meet ") and spares:
            say(f"spares     {fold(node.name for node in spares)}, until a node fails")
        if commands or output.verbose or not line.startswith((" ", "environment")):
            say(line)
    for why, names in grouped((why, name) for name, why in unknown.items()).items():
        output.warn(f"{fold(names)}: ranks and GPUs are not known ({why}): the plan guesses", "bad")


def _judge(output: Output, prepared: Prepared, *, assume_yes: bool) -> int:
    """Show what preflight found; its exit code when it is no-go."""
    from clusterctl.preflight.run import fix_lines, headline, table_rows

    report = prepared.report
    assert report is not None
    for verdict, check, names, text in table_rows(report):
        output.warn(f"{verdict.value:8} {check}  {names}  {text}")
    for line in fix_lines(report):
        output.warn(line)
    output.note(f"preflight  {headline(report)}")
    if report.go:
        return 0
    if {one.id for one in report.findings if report.stops(one)} == {BUSY}:
        # Only other processes on the GPUs prevent the start: the user may allow it.
        question = f"Start on GPUs that are in use on {fold(report.bad_nodes)}?"
        output.confirm(question, "nothing was started", yes=assume_yes)
        return 0
    if output.json:
        about = {"ok": False, "exit_code": report.exit_code, "reason": "preflight says no"}
        output.document("launch", **about, preflight=report.to_json())
    output.warn("nothing was started; --skip-preflight starts in spite of it")
    return report.exit_code
