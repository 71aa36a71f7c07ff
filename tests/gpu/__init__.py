"""What one GPU shows in half an hour: `python -m tests.gpu GROUP --out DIR [--device cpu --tiny]`.

`correct` compares blocks with fp64, `attention` times kernels by shape (frames_kernels.py is one that
is not used in training yet), `steps` times training steps by bucket. `python -m tests.gpu.roofline`
says what arithmetic predicts for the last. A machine without a network needs requirements/wheels.sh.
"""
