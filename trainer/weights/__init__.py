"""Weights from anywhere into a model, and from one format to another.

from trainer.weights.load import load_into

report = load_into(model, "hpcai-tech/OpenSora-STDiT-v3")   # or a file, a folder, a checkpoint
python -m trainer.weights inspect PATH
python -m trainer.weights convert SRC DST --from pixart
"""
