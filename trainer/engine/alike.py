"""Ranks that train together run one code with one configuration."""

from __future__ import annotations

import hashlib
import socket

from trainer.config import sources
from trainer.config.load import Config, to_dict
from trainer.engine.agreement import agreed
from trainer.engine.base import Engine
from trainer.errors import EngineError


def require_alike(engine: Engine, config: Config) -> None:
    """Raises EngineError where ranks run different code or configurations (collective)."""
    own = sources.imported(), sources.flat(to_dict(config))
    digests = engine.gather_objects(hashlib.sha256(repr(own).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    every = engine.gather_objects((socket.gethostname(), *own))
    first = every[0]
    for rank, other in enumerate(every):
        for part, what in ((1, "code"), (2, "configuration")):
            if names := sources.changed(first[part], other[part]):
                where = f"rank {rank} on {other[0]} runs another {what} than rank 0 on {first[0]}"
                hint = "the same files on every node (clusterctl push); then start again"
                raise agreed(EngineError(f"{where}: {sources.shown(names)}", hint=hint))
