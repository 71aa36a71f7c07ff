"""Signals to the process group are the parent's: a helper that is still starting outlives them too."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.data.clips import write_clip

ROOT = Path(__file__).parents[4]
# Ctrl-C and SIGTERM go to the whole group all the while: as the helper starts, and as it works.
PROGRAM = """
import json, os, signal, sys, threading
from trainer.data.video.decode import Decoder
number, path = int(sys.argv[1]), sys.argv[2]
sent, over = [0], threading.Event()
signal.signal(number, lambda *_: None)
def storm():
    while not over.wait(0.002):
        os.killpg(0, number)
        sent[0] += 1
threading.Thread(target=storm, daemon=True).start()
decoder = Decoder(clip_timeout_s=30)
found = decoder.ask({"what": "probe", "path": path})
over.set()
decoder.close()
print(json.dumps([found.get("num_frames"), sent[0]]))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_a_helper_starts_do_not_reach_it(tmp_path, number):
    clip = write_clip(tmp_path / "a.mp4", 12, preset="ultrafast", threads="1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number)), str(clip)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, start_new_session=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    frames, sent = json.loads(done.stdout)
    assert frames == 12
    assert sent > 10
