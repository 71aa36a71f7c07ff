"""`preflight --active`: its options, its question, and what it does with the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import UsageError
from clusterctl.nodes import counted
from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, with_options

if TYPE_CHECKING:
    from checks.facts import Active, Fleet
    from checks.profile import Profile

active_options = with_options(
    click.option("--active", is_flag=True, help="Also make the nodes work, after asking: ports, shared folder, matrix products, all-reduce. Refused where GPUs are busy."),
    click.option("--yes", is_flag=True, help="Do not ask before --active."),
    click.option("--dry-run", is_flag=True, help="Say what --active would do and how long it would take; look at the nodes only."),
    click.option("--patience", "patience_s", type=Duration(2), default=15.0, show_default=True, help="Seconds that a group of nodes gets for an all-reduce of --active."),
)  # fmt: skip


def make_work(
    settings: Settings, output: Output, profile: Profile, options: dict[str, Any]
) -> Callable[[Fleet], Active | None] | None:
    """What `run_preflight` is to do with the nodes it has reached; None without --active.

    Raises `UsageError` for options that mean nothing without --active. The function itself raises
    `Declined` for busy GPUs and for a no.
    """
    checks, yes, dry_run = options["checks"], options["yes"], options["dry_run"]
    if not options["active"]:
        asked = [f"--check {id}" for id in checks if id.split(".")[0] == "active"]
        alone = ["--yes"] * yes + ["--dry-run"] * dry_run + asked
        if alone:
            raise UsageError(f"{alone[0]} goes with --active")
        return None
    tests = chosen_tests(checks, options["skipped"])

    def work(fleet: Fleet) -> Active | None:
        from clusterctl.preflight.active.plan import make_plan
        from clusterctl.preflight.active.run import run_active

        shared, patience_s = options["shared"], options["patience_s"]
        plan = make_plan(fleet, shared=shared, tests=tests, patience_s=patience_s)
        if not plan.nodes or not plan.tests:
            output.note(f"active tests: {'no node to test' if plan.tests else 'none chosen'}")
            return None
        for line in plan.lines():
            output.note(line)
        if dry_run:
            return None
        question = f"Run these tests on {counted(len(plan.nodes), 'node')}?"
        output.confirm(question, "nothing was tested", yes=yes)
        return run_active(
            plan,
            settings.nodes(),
            settings.transport(),
            settings.limits,
            settings.width,
            profile=profile,
            machines=_machines(fleet),
            say=lambda text: output.note(text, "dim"),
            sweep=output.sweep,
        )

    return work


def chosen_tests(only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Tests of which any check is wanted by --check and --skip."""
    from clusterctl.preflight.active.plan import TESTS

    def is_wanted(id: str) -> bool:
        names = {id, id.split(".")[0]}
        return (not only or not names.isdisjoint(only)) and names.isdisjoint(without)

    return [test for test, ids in TESTS.items() if any(map(is_wanted, ids))]


def _machines(fleet: Fleet) -> dict[str, str]:
    """Nodes with one network between them are names of one machine: they cannot share a port."""
    from checks.facts import Unknown

    found = {}
    for node in fleet.reached:
        machine = node.machine
        if not isinstance(machine, Unknown) and not isinstance(machine.boot_id, Unknown):
            network = (machine.namespaces.split() or [""])[0]
            found[node.name] = f"{machine.boot_id} {network}"
    return found
