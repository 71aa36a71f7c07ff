"""Ranks that have no work: at a prompt, asleep until somebody needs them, or waiting for requests."""

import code
import os
import time
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

for step in range(8):
    print(f"step {step}", flush=True)
if os.environ["IDLE"] == "prompt":
    # Nobody types; opened for both, because reading alone would wait for a writer here.
    pipe = os.open(Path(os.environ["DATA"]) / "stream", os.O_RDWR)
    with os.fdopen(pipe, buffering=1) as typed:
        code.interact(readfunc=lambda _: typed.readline())
elif os.environ["IDLE"] == "server":
    HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler).serve_forever()
else:
    while True:
        time.sleep(3600)
