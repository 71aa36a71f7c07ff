"""dump-stacks, stop and kill on our own trainer under `clusterctl launch`, over two real sshds. Slow: torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.launch.harness import command_line, tagged, variables
from tests.clusterctl.launch.test_real_trainer import BIN, ENV, REPO, render
from trainer.runlog import telemetry

pytestmark = pytest.mark.slow


def clusterctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"{BIN}/clusterctl", *words], cwd=REPO, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **ENV},
    )  # fmt: skip


def steps(run_dir: Path) -> int:
    return (run_dir / telemetry.FILE).read_text().count('"kind":"step"')


def stands(run_dir: Path, for_s: float = 3.0) -> bool:
    """Whether no step is taken for a while."""
    before, deadline = steps(run_dir), time.monotonic() + for_s
    while steps(run_dir) == before:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.timeout(600)
def test_stopped_decoder_is_named_with_its_rank_then_the_run_saves_and_ends(cluster, tmp_path: Path) -> None:  # fmt: skip
    nodes = cluster(2)
    shared = Path(nodes.hostfile).parent
    data, outputs = render(shared / "digits"), shared / "outputs"
    launch = subprocess.Popen(
        [f"{BIN}/clusterctl", "launch", "demo", str(nodes.hostfile), "--nproc_per_node", "1", "--device", "cpu",
         "--skip-preflight", "--min-free", "0", "--yes", "--outputs", str(outputs), "--python", sys.executable,
         "--dataset.data-path", str(data), "--max-steps", "100000", "--num-workers", "2"],
        cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **ENV},
    )  # fmt: skip
    try:
        run_dir = outputs / "001-STDiT3-demo"
        wait_until(lambda: (run_dir / telemetry.FILE).exists() and steps(run_dir) > 3, 180)
        run_id = json.loads((run_dir / "plan.json").read_text())["run_id"]
        done = clusterctl("dump-stacks", str(nodes.hostfile), "--run", run_id, "--interval", "3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "MOVING: all 2 ranks move" in done.stdout

        decoders = [
            pid for pid in tagged(run_id)
            if b"trainer.data.video.decode_process" in command_line(pid) and variables(pid).get("RANK") == "1"
        ]  # fmt: skip
        assert len(decoders) == 2
        for pid in decoders:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: stands(run_dir), 60)
        done = clusterctl("dump-stacks", str(nodes.hostfile), "--run", run_id, "--all")
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search(r"HANG: rank 1 waits for data; its loader \d \(node-2\) is stopped", done.stdout), done.stdout  # fmt: skip
        for pid in decoders:
            os.kill(pid, signal.SIGCONT)
        before = steps(run_dir)
        wait_until(lambda: steps(run_dir) > before, 60)

        done = clusterctl("stop", str(nodes.hostfile), "--run", run_id, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"saved \S+/epoch\d+-global_step\d+", done.stdout), done.stdout
        out, err = launch.communicate(timeout=60)
        assert launch.returncode == 130, out + err
        assert tagged(run_id) == []
    finally:
        launch.kill()
        launch.communicate()
        for pid in tagged(json.loads((run_dir / "plan.json").read_text())["run_id"]):
            os.kill(pid, signal.SIGKILL)
