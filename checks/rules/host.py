"""The machine and its access: ssh, shell, interpreter for payloads, two names of one machine."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.registry import check


@check("ssh.reachable")
def reachable(node: NodeFacts) -> Finding:
    """The node answers over ssh without a question.

    Bad: UNKNOWN with the phase it stopped in
    How: connects and logs in without a question
    Fix: ssh -v NODE true
    """
    if (why := node.unreached) is None:
        return passed("answers")
    # Without the seconds, which differ from node to node and would keep equal ones apart.
    return unknown(f"no answer, phase {why.phase}: {why.message}", fix=why.hint)


@check("shell.noise")
def noise(node: NodeFacts) -> Finding:
    """A shell that prints at its start breaks scp, rsync and every parser but ours.

    Bad: WARN if anything is printed
    How: bytes before the payload's marker line
    Fix: guard it in ~/.bashrc: case $- in *i*) ;; *) return;; esac
    """
    if not node.noise:
        return passed("the login shell prints nothing")
    return warn(f"the login shell prints at its start: {node.noise.splitlines()[0][:80]!r}")


@check("host.python")
def payload_python(python: str) -> Finding:
    """The python3 that our scripts run on; one that is missing or too old is no answer at all.

    Bad: UNKNOWN if it is not reported
    How: the interpreter's own version
    Fix: install python3, 3.8 or newer
    """
    return passed(f"python3 is {python}", python)


@check("host.same_machine", "fleet")
def same_machine(fleet: Fleet) -> Iterator[Finding]:
    """Two names for one machine put two ranks on one GPU.

    Bad: WARN for containers of one machine, FAIL for one machine twice
    How: boot id and namespaces
    Fix: keep one of the names in the hostfile
    """
    groups: dict[str, list[NodeFacts]] = {}
    for node in fleet.reached:
        if isinstance(node.boot_id, Unknown):
            yield unknown(node.boot_id, nodes=(node.name,))
        else:
            groups.setdefault(node.boot_id, []).append(node)
    for members in groups.values():
        names = tuple(node.name for node in members)
        if len(members) == 1:
            yield passed("no other name for this machine", nodes=names)
        elif all(node.loopback for node in members):
            yield skip("loopback addresses: one machine on purpose", nodes=names)
        elif len({node.namespaces for node in members}) == len(members):
            text = "containers of one machine: they share its GPUs, disks and network"
            yield warn(text, nodes=names, fix="give each machine one line in the hostfile")
        else:
            yield fail("one machine under several names (same boot id)", nodes=names)
