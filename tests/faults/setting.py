"""How the run of a fault is launched, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """`steps` is where the run ends."""

    nodes: int = 4
    spares: int = 0
    ranks: int = 1  # on each node
    steps: int = 60
    may_lose: int = 0  # nodes, without a spare for them
    words: tuple[str, ...] = ()  # for clusterctl launch
    trainer: tuple[str, ...] = ()  # for trainer.train
    env: tuple[str, ...] = ()
    config: str = ""  # lines after those of the campaign's configuration
    outputs_mb: int | None = None  # the outputs are on a disk of their own of this size
    nodes_mb: int | None = None  # the nodes share another disk of this size, which the head has not
    own_code: bool = False  # head and ranks run a copy of the code, which a fault may change
    clips_hang: bool = False  # the clips are on a file system that can be made to hang
    terminal: bool = False  # the commands are typed on one
    busy: float = 1.0  # times that all takes as long because others use the machine, too

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    @property
    def slower(self) -> float:
        """Times that all takes as long as with 4 ranks: they share the cores of one machine."""
        return self.busy * max(1.0, self.world / 4)
