"""What happened to a node before: the cluster's ledger."""

from __future__ import annotations

from checks.facts import History, NodeFacts
from checks.finding import Finding, passed, warn
from checks.profile import Profile
from checks.registry import check
from checks.units import counted

DAY_S = 86400.0
TIMES = {1: "once", 2: "twice"}


@check("host.history", advisory=True)
def history(node: NodeFacts, history: History, limits: Profile) -> Finding:
    """The node has not failed again and again.

    Why: A fault that comes and goes passes every other check, and ends the next run as well.
    Bad: WARN from 3 faults in 14 days on: incidents whose root was on it, checks that it failed
    How: the ledger beside the hostfile; what came before a repair does not count
    Fix: clusterctl nodes --history -w NODE; once repaired: nodes -w NODE --repaired --note TEXT
    """
    days, most = limits.history_days, limits.history_faults_warn
    recent = [one for one in history.faults if one.age_s <= days * DAY_S]
    lost = f"; {history.skipped} lines of the ledger cannot be read" if history.skipped else ""
    if not recent or len(recent) < most:
        return passed(
            f"{counted(len(recent), 'fault')} in the last {days:g} days{lost}", len(recent)
        )
    incidents = [one for one in recent if one.kind == "incident"]
    runs = {one.run for one in incidents}
    parts = []
    if incidents:
        parts.append(f"{counted(len(incidents), 'incident')} in {counted(len(runs), 'run')}")
    if checks := len(recent) - len(incidents):
        parts.append(counted(checks, "failed check"))
    last = recent[-1]
    text = f"{' and '.join(parts)} in the last {days:g} days, last: {last.what} on {last.date}"
    drained = sum(age_s <= days * DAY_S for age_s in history.exclusions_age_s)
    if drained:
        text += f"; excluded {TIMES.get(drained, f'{drained} times')}"
    at = node.name
    fix = f"clusterctl nodes --history -w {at}; once repaired: nodes -w {at} --repaired --note TEXT"
    return warn(text + lost, len(recent), f"below {most:g}", fix=fix)
