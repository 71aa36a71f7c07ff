"""What the starter imports for `trainer.train` is all that a rank needs, and can be forked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
# Modules that take long to import; a rank is to have them from the starter.
HEAVY = ("torch", "transformers", "colossalai", "scipy", "trainer", "av", "pyarrow", "safetensors")
PROGRAM = f"""
import atexit, json, os, sys
from trainer.starter.preload import cannot_be_forked, preload

words = ("-m", "trainer.train", *sys.argv[2:])
preload(("trainer.starter.train_modules",), words)
import torch
facts = {{"threads": len(os.listdir("/proc/self/task")), "cuda": torch.cuda.is_initialized()}}
before = set(sys.modules)
if os.fork():
    _, status = os.wait()
    sys.exit(os.waitstatus_to_exitcode(status))
from trainer import train
code = train.main(sys.argv[2:])
new = [name for name in sys.modules if name not in before and name.startswith({HEAVY!r})]
facts.update(code=code, new=sorted(new), spoiled=cannot_be_forked())
open(sys.argv[1], "w").write(json.dumps(facts))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["colossal", "native"])
def test_rank_finds_everything_imported_and_no_thread_and_no_cuda(
    tmp_path: Path, engine: str
) -> None:
    digits = [sys.executable, "-m", "trainer.data.digits", "--out", str(tmp_path / "digits")]
    subprocess.run(
        [*digits, "--clips", "64", "--seed", "0"], cwd=REPO, check=True, capture_output=True
    )
    words = [
        str(tmp_path / "facts.json"), "demo", "--run-dir", str(tmp_path / "run"), "--engine", engine,
        "--dataset.data-path", str(tmp_path / "digits/digits.csv"), "--max-steps", "1",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=REPO, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert len(facts.pop("new")) < 10  # torch imports a small one late
    assert facts == {"threads": 1, "cuda": False, "code": 0, "spoiled": False}
