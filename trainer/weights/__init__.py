"""Weights from anywhere into a model, and from one format to another.

report = load_into(model, "hpcai-tech/OpenSora-STDiT-v3")   # or a file, a folder, a checkpoint
python -m trainer.weights inspect PATH
python -m trainer.weights convert SRC DST --from pixart
"""

from trainer.weights.load import load_into, load_weights, read_checkpoint, read_weights
from trainer.weights.report import LoadReport
from trainer.weights.source import EMA, MODEL, Source, find_source

__all__ = [
    "EMA",
    "MODEL",
    "LoadReport",
    "Source",
    "find_source",
    "load_into",
    "load_weights",
    "read_checkpoint",
    "read_weights",
]
