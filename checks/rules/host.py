"""The machine and its access: ssh, shell, interpreter for payloads, two names of one machine."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check


@check(
    "ssh.reachable",
    bad="UNKNOWN with the phase it stopped in",
    how="connects and logs in without a question",
    fix="ssh -v NODE true",
)
def reachable(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The node answers over ssh without a question."""
    why = node.unreached
    if why is None:
        yield passed("answers")
    else:
        # Without the seconds, which differ from node to node and would keep equal ones apart.
        yield unknown(f"no answer, phase {why.phase}: {why.message}", fix=why.hint)


@check(
    "shell.noise",
    bad="WARN if anything is printed",
    how="bytes before the payload's marker line",
    fix="a guard at the top of ~/.bashrc",
)
def noise(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """A shell that prints at its start breaks scp, rsync and every parser but ours."""
    if node.noise:
        first = node.noise.splitlines()[0][:80]
        yield warn(
            f"the login shell prints at its start: {first!r}",
            fix="guard it in ~/.bashrc: case $- in *i*) ;; *) return;; esac",
        )
    else:
        yield passed("the login shell prints nothing")


@check(
    "host.python",
    needs=("python",),
    bad="UNKNOWN if it is not said",
    how="the interpreter's own version",
    fix="install python3, 3.8 or newer",
)
def python(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The python3 that our scripts run on; one that is missing or too old is no answer at all."""
    yield passed(f"python3 is {node.python}", value=str(node.python))


@check(
    "host.same_machine",
    scope="fleet",
    bad="WARN for containers of one machine, FAIL for one machine twice",
    how="boot id and namespaces",
    fix="keep one of the names in the hostfile",
)
def same_machine(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """Two names for one machine put two ranks on one GPU."""
    groups: dict[str, list[NodeFacts]] = {}
    for node in fleet.reached:
        machine = node.machine
        if isinstance(machine, Unknown):
            yield unknown(machine.reason, nodes=(node.name,))
        elif isinstance(machine.boot_id, Unknown):
            yield unknown(machine.boot_id.reason, nodes=(node.name,))
        else:
            groups.setdefault(machine.boot_id, []).append(node)
    for members in groups.values():
        names = tuple(node.name for node in members)
        if len(members) == 1:
            yield passed("a machine of its own", nodes=names)
        elif all(node.loopback for node in members):
            yield skip("loopback addresses: one machine on purpose", nodes=names)
        elif len({_namespaces(node) for node in members}) == len(members):
            yield warn(
                "containers of one machine: they share its GPUs, disks and network",
                nodes=names,
                fix="give each machine one line in the hostfile",
            )
        else:
            yield fail(
                "one machine under several names (same boot id)",
                nodes=names,
                fix="keep one of the names in the hostfile",
            )


def _namespaces(node: NodeFacts) -> str:
    return "" if isinstance(node.machine, Unknown) else node.machine.namespaces
