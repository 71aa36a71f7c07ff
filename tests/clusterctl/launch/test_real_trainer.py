"""The real trainer under torchrun, `colossalai run` and our launcher. Slow: each rank imports torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusterctl.launch.harness import REPO, command_line, tagged, variables, wait_until
from trainer.runlog import telemetry

pytestmark = pytest.mark.slow

STEPS = 3
ENV = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
BIN = str(Path(sys.executable).parent)


def render(folder: Path) -> Path:
    """A few clips; the CSV that names them."""
    subprocess.run(
        [sys.executable, "-m", "trainer.data.digits", "--out", str(folder), "--clips", "64",
         "--seed", "0"],
        cwd=REPO, env={**os.environ, **ENV}, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return folder / "digits.csv"


def trainer(data: Path, run_dir: Path, steps: int = STEPS) -> list[str]:
    return [
        "demo", "--run-dir", str(run_dir), "--dataset.data-path", str(data),
        "--max-steps", str(steps), "--warmup-steps", "1",
    ]  # fmt: skip


def assert_trained(run_dir: Path, world: int) -> None:
    records = list(map(telemetry.decode, (run_dir / telemetry.FILE).read_text().splitlines()))
    steps = [record for record in records if isinstance(record, telemetry.StepRecord)]
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert {record.world for record in steps} == {world}


@pytest.mark.timeout(300)
def test_plain_torchrun_trains(tmp_path: Path) -> None:
    data = render(tmp_path / "digits")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
         "--master_port", "29871", "-m", "trainer.train", *trainer(data, tmp_path / "run")],
        cwd=REPO, env={**os.environ, **ENV}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert_trained(tmp_path / "run", world=2)


@pytest.mark.lab
@pytest.mark.timeout(300)
def test_plain_colossalai_run_trains_over_a_hostfile(lab, tmp_path: Path) -> None:
    nodes = lab(2)
    shared = nodes.directory
    data = render(shared / "digits")
    hostfile = shared / "hosts"
    hostfile.write_text("node-1\nnode-2\n")
    first = nodes.nodes[0]
    first.exec(["sh", "-c", f"mkdir -p ~/.ssh && cp {nodes.identity} ~/.ssh/id_ed25519"])
    words = " ".join([
        "colossalai run --hostfile", str(hostfile), "--nproc_per_node 1 --master_port 29872",
        "-m trainer.train", *trainer(data, shared / "run"),
    ])  # fmt: skip
    settings = " ".join(f"{name}={value!r}" for name, value in ENV.items())
    done = first.exec(
        ["sh", "-c", f"cd {REPO} && exec env PATH={BIN}:$PATH {settings} {words}"], timeout_s=240
    )
    assert "failure" not in done.stdout, (done.stdout + done.stderr)[-3000:]
    assert_trained(shared / "run", world=2)


@pytest.mark.lab
@pytest.mark.timeout(400)
def test_rank_of_a_real_run_is_killed_and_the_launch_ends_within_ten_seconds(lab) -> None:
    nodes = lab(2)
    shared = nodes.directory
    data = render(shared / "digits")
    outputs = shared / "outputs"
    words = [
        sys.executable, "-m", "clusterctl", "launch", "demo", str(nodes.hostfile),
        "--outputs", str(outputs), "--min-free", "0", "--skip-preflight", "--yes", "--json",
        "--nproc_per_node", "2", "--dataset.data-path", str(data), "--max-steps", "100000",
    ]  # fmt: skip
    with subprocess.Popen(
        words, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **ENV},
    ) as process:  # fmt: skip
        run_dir = outputs / "001-STDiT3-demo"
        wait_until(lambda: (run_dir / telemetry.FILE).exists(), 120)
        wait_until(lambda: '"kind":"step"' in (run_dir / telemetry.FILE).read_text(), 120)
        events = (run_dir / "events.jsonl").read_text()
        run_id = json.loads((run_dir / "plan.json").read_text())["run_id"]
        assert events.count('"event": "rank"') == 4
        victim = next(
            pid
            for pid in tagged(run_id)
            if variables(pid).get("RANK") == "3" and b"trainer.train" in command_line(pid)
        )
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - begun
    print(f"rank death to launch end, torch ranks: {seconds:.2f} s")
    assert seconds < 10
    document = json.loads(out)
    assert process.returncode == 1, err
    assert document["reason"] == "rank 3 on node-2: killed by SIGKILL"
    assert document["leftovers"] == document["unconfirmed"] == []
    assert tagged(run_id) == []
