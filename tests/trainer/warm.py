"""What every rank imports, 7 s of it: tests fork their ranks from a process that has it (`ranks.py`).

Only a cache. Nothing here may start a thread, open a process group or draw a random number; a rank
that is forked does all that itself, as one that imports does.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # no pool of threads that a fork would lose
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else the question for CUDA ends it for forks

import torch._dynamo  # noqa: F401 - AdamW asks for it
import transformers.models.t5.modeling_t5  # noqa: F401

import trainer.build_run
import trainer.engine.native
import trainer.train  # noqa: F401
from trainer.engine.colossal_import import import_colossalai

import_colossalai()
