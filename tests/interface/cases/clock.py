"""clusterctl clock."""

from __future__ import annotations

from tests.checks.captures import recorded
from tests.checks.envelopes import raw
from tests.interface.cases import case
from tests.interface.machines import Cluster, start
from tests.interface.shell import Shell

# A busy machine reads clocks badly: what is right is far below this, what is wrong far above.
LIMIT = "--limit 5000"
SAMPLES = r"\.nodes\[\]\.clock\.exchange\.samples"  # more on a busy machine


def _chrony(cluster: Cluster, name: str, state: str) -> None:
    cluster[name].sections |= {
        "chrony_tracking": raw(recorded(f"chrony/{state}.tracking.csv")),
        "chrony_sources": raw(recorded(f"chrony/{state}.sources.csv")),
    }


@case("clock.good")
def good(shell: Shell) -> None:
    """Clocks that agree, and who steers them."""
    start(shell, "n1", "n2")["n2"].ahead_s = 1.0
    shell.run(f"clusterctl clock {LIMIT}")
    shell.run(f"clusterctl clock {LIMIT} -q")
    shell.run(f"clusterctl clock {LIMIT} -v --pairs --no-fold --no-history")


@case("clock.bad")
def bad(shell: Shell) -> None:
    """A clock an hour ahead, sources that cannot be reached, no daemon, a dead node."""
    cluster = start(shell, "n1", "n2", "n3", "n4", "n5")
    for name, ahead_s in {"n2": 3600.0, "n3": 1.0, "n4": 2.0}.items():
        cluster[name].ahead_s = ahead_s
    _chrony(cluster, "n3", "unreachable")
    cluster["n4"].sections |= {
        "chrony_tracking": raw("", None, "missing", "not found: chronyc"),
        "chrony_sources": raw("", None, "missing", "not found: chronyc"),
        "processes": raw("count\t400"),
    }
    cluster.kill("n5")
    shell.run(f"clusterctl clock {LIMIT}")
    shell.run(f"clusterctl clock {LIMIT} -w n[1,5] -q")


@case("clock.json")
def as_json(shell: Shell) -> None:
    """As JSON: a clock an hour ahead, a dead node."""
    cluster = start(shell, "n1", "n2", "n3", "n4")
    cluster["n2"].ahead_s, cluster["n3"].ahead_s = 3600.0, 1.0
    cluster.kill("n4")
    shell.run(f"clusterctl clock {LIMIT} --json --pairs", volatile=(SAMPLES,))


@case("clock.watch")
def watch(shell: Shell) -> None:
    """Watched for a moment: a clock that is stepped, a dead node."""
    cluster = start(shell, "n1", "n2")
    cluster["n1"].jump_s = 2.5
    cluster.kill("n2")
    shell.run("clusterctl clock --watch --for 1.5 --interval 0.1")
    cluster["n1"].jump_s = -2.5
    shell.run("clusterctl clock --watch --for 1.5 --interval 0.1 --json")


@case("clock.usage")
def usage(shell: Shell) -> None:
    """Options that do not go together."""
    start(shell, "n1")
    shell.run("clusterctl clock --for 3")
    shell.run("clusterctl clock --watch --pairs")
    shell.run("clusterctl clock --limit 0")
    shell.run("clusterctl clock --limit much")
