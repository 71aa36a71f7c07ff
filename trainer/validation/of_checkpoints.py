"""What measures checkpoints of a run outside it: `trainer.evaluate`, and samplers of `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trainer.components import Parts
from trainer.config import load as configuration
from trainer.config.load import RUN_CONFIG, Config
from trainer.data.features.cache import Features
from trainer.data.manifest.shared import read_once
from trainer.data.plan.data_plan import plan_for, plan_once
from trainer.engine.native import NativeEngine
from trainer.errors import ConfigError
from trainer.runlog.output import LOG
from trainer.validation.measure import Validation, validation_for


class Ranks(NativeEngine):
    """Processes that share out microbatches; each has the whole model."""

    forward_is_local: ClassVar[bool] = True


def measuring(run_dir: Path, **given: Any) -> Config:
    """The run's configuration, which measures now; what is `given` and not None stands in the place
    of its validation keys. Raises ConfigError."""
    config = configuration.load(run_dir / RUN_CONFIG)
    changes = {name: value for name, value in given.items() if value is not None}
    wanted = replace(config.validation, every=1, **changes)
    if not wanted.share and wanted.data_path is None:
        text = f"{run_dir} has kept no clips: it has trained on all that it could"
        raise ConfigError(text, hint="--data-path MANIFEST, of other clips")
    return replace(config, validation=wanted, compile=False)


def clips_of(config: Config, parts: Parts, engine: Ranks) -> Validation:
    """What measures models on the clips that the run keeps (collective). Raises ConfigError."""
    data = config.dataset
    root = Path(data.root) if data.root else None
    source = Path(str(data.data_path)), root, data.memory_efficient, data.max_wrong_rows
    manifest, _ = read_once(engine, *source)
    plan = plan_for(config, manifest)
    plan_once(engine, plan, 0, ids=True)
    features = Features(Path(data.features)) if data.features is not None else None
    validation = validation_for(config, parts, engine, plan, features)
    assert validation is not None
    for note in validation.notes if engine.rank == 0 else ():
        LOG.warning(note)
    return validation
