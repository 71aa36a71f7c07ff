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
    settings: Settings, output: Output, options: dict[str, Any], profile: Profile
) -> Callable[[Fleet], Active | None] | None:
    """What `run_preflight` is to do with the nodes it has reached; None without --active.

    Raises `UsageError` for options that mean nothing without --active. The function itself raises
    `Declined` for busy GPUs and for a no.
    """
    asked = [id for id in _ids(options["checks"]) if id.split(".")[0] == "active"]
    if not options["active"]:
        alone = "--yes" if options["yes"] else "--dry-run" if options["dry_run"] else None
        if asked or alone:
            raise UsageError(f"{alone or '--check ' + asked[0]} goes with --active")
        return None

    def work(fleet: Fleet) -> Active | None:
        from clusterctl.preflight.active.plan import make_plan
        from clusterctl.preflight.active.run import run_active

        assert fleet.launch is not None
        tests = chosen_tests(_ids(options["checks"]), _ids(options["skipped"]))
        plan = make_plan(
            fleet,
            python=fleet.launch.python,
            port=fleet.launch.port,
            env=fleet.launch.env,
            shared=options["shared"],
            tests=tests,
            patience_s=options["patience_s"],
        )
        if not plan.nodes or not plan.tests:
            output.note(
                "active tests: no node to test" if plan.tests else "active tests: none chosen"
            )
            return None
        for line in plan.lines():
            output.note(line)
        if options["dry_run"]:
            return None
        question = f"Run these tests on {counted(len(plan.nodes), 'node')}?"
        output.confirm(question, "nothing was tested", yes=options["yes"])
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
        names = (id, id.split(".")[0])
        return (not only or any(name in only for name in names)) and not any(
            name in without for name in names
        )

    return [test for test, ids in TESTS.items() if any(map(is_wanted, ids))]


def _ids(options: Sequence[str]) -> list[str]:
    return [id for option in options for id in option.split(",") if id]


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
