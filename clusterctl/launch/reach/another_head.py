"""Whether another head has taken a run: no single node is believed that says so.

A head that leaves lets the ranks go on without it, so a node that lies could have a run that nobody
sees. Who takes a run writes its name into the run's file before it speaks to any node.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from clusterctl.runs import owner
from trainer.runlog.output import printable

BELIEVED_S = 20.0  # for the file and the other nodes to say so, too


def is_elsewhere(run_dir: Path, sayers: Collection[str], answered: Collection[str]) -> bool:
    """`sayers` are the nodes that name another head, `answered` those that could have named one."""
    if owner.another(run_dir) is not None:
        return True
    return len(answered) > 1 and set(answered) <= set(sayers)


def doubt(head: str) -> str:
    """Why a node is not believed."""
    shown = printable(head)
    return (
        f"it says that {shown} supervises the run, which neither the run's file nor all nodes say"
    )
