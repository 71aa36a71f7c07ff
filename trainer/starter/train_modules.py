"""What a rank of `trainer.train` imports before its first step; the starter imports it once."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys

import torch._dynamo  # noqa: F401 - the start of ColossalAI and AdamW ask for it

from trainer import (
    build_run,  # noqa: F401
    loop,  # noqa: F401
    train,
)
from trainer.config import load as configuration
from trainer.errors import TrainerError


def _import_engine() -> None:
    """The engine that the configuration names; what is wrong with it the ranks report."""
    with contextlib.suppress(TrainerError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        options, overrides = train.parser().parse_known_args(sys.argv[1:])
        name = configuration.load(options.config, overrides).engine
        importlib.import_module(f"trainer.engine.{name}")
        if name == "colossal":
            from trainer.engine.colossal_import import import_colossalai

            import_colossalai()


_import_engine()
# Every text encoder but "none" needs it; its names are imported when they are asked for.
if importlib.util.find_spec("transformers") is not None:
    from transformers import AutoTokenizer, T5EncoderModel  # noqa: F401
