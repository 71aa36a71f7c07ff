"""What one GPU shows in nine minutes: `python -m tests.gpu first --out DIR --send SEND`.

`phases.py` lists what is measured, the most valuable first; `items/` measures it. `python -m
tests.gpu.roofline` says what arithmetic predicts. A machine without a network needs
requirements/wheels.sh.
"""
