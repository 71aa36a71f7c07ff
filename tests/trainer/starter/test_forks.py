"""A process that the starter has forked, before it is a rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from trainer.starter.command import Command
from trainer.starter.program import Program
from trainer.starter.ranks import Ranks

starter, told = os.getpid(), Path(sys.argv[1])
def asked(number, frame):
    if os.getpid() != starter:
        told.touch()  # it would end the others now
signal.signal(signal.SIGTERM, asked)
ranks = Ranks()
command = Command(Program(("-c", "")))
if ranks.start(command, lambda: os.kill(os.getpid(), signal.SIGTERM)) is not None:
    os._exit(7)
ended = []
while not ended:
    time.sleep(0.01)
    ended = ranks.reap()
print(*[code for _, _, code in ended], signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_signal_to_a_process_that_is_no_rank_yet_is_its_own(tmp_path: Path) -> None:
    """A rank may fail, and all others be told to end, while the last ones still begin."""
    told = tmp_path / "told"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(told)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("-15 False\n", "")
    assert not told.exists()
