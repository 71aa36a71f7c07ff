"""The scripts for a GPU, rehearsed on a CPU: they must work on the day a card is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.captures import fake_nvidia_smi as fake
from tests.gpu import __main__ as command
from tests.gpu import roofline
from tests.gpu.run import Item, Options, run_items
from trainer.models.attention import frames
from trainer.models.flops import flops_by_part
from trainer.models.stdit_config import PRESETS, STDiT3Config


def _works(options: Options, value: int) -> dict[str, Any]:
    return {"value": value, "headline": f"value {value}"}


def _fails(options: Options) -> dict[str, Any]:
    raise ValueError("wrong shape")


def _dies(options: Options) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def _hangs(options: Options) -> dict[str, Any]:
    time.sleep(600)
    raise AssertionError


@pytest.mark.slow
def test_a_crash_a_hang_and_an_error_are_rows(tmp_path: Path) -> None:
    items = [Item("dies", _dies), Item("hangs", _hangs, (), 1.5), Item("fails", _fails)]
    items.append(Item("works", _works, (7,)))
    shown: list[str] = []
    rows = run_items("some", items, Options(tmp_path, "cpu", True), 100.0, shown.append)
    assert [row.get("error") for row in rows] == [
        "killed by SIGSEGV, and the kernel counts no out-of-memory kill",
        "no result after 2 s",
        "ValueError: wrong shape",
        None,
    ]
    assert rows[3]["result"] == {"value": 7, "headline": "value 7"}
    assert json.loads((tmp_path / "some.json").read_text())["rows"] == rows
    assert "wrong shape" in (tmp_path / "errors" / "fails.txt").read_text()
    assert shown[3].endswith("value 7")


def test_what_does_not_fit_into_the_time_is_not_run(tmp_path: Path) -> None:
    items = [Item("works", _works, (1,))]
    (row,) = run_items("some", items, Options(tmp_path, "cpu", True), 0.0, lambda line: None)
    assert row["error"] == "not run: the group's time is over"


@pytest.mark.parametrize(
    ("group", "only", "count"),
    [
        ("facts", "bit by bit", 2),
        ("correct", "block eager", 1),
        ("correct", "padded", 1),
        ("attention", "spatial 8x15x920 math", 1),
        ("attention", "text 8x15x920 x 300 products", 1),
        ("steps", "kernels, eager", 1),
        ("media", "sampling 360p", 1),
        pytest.param("train", "", 5, marks=pytest.mark.slow),  # half a minute
    ],
)
def test_groups_run_on_a_cpu(
    group: str, only: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [group, "--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", only]
    assert command.main(words) == 0
    assert f"{count} of {count} measured" in capsys.readouterr().out


def test_facts_are_read_from_the_tool_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", fake.h100(1))["PATH"])
    words = ["facts", "--out", str(tmp_path), "--device", "cpu", "--tiny"]
    assert command.main([*words, "--only", "nvidia-smi"]) == 0
    assert command.main([*words, "--only", "rules"]) == 0
    out = capsys.readouterr().out
    assert "lines: table 2, q " in out
    assert "ok: 1 GPUs (NVIDIA H100 80GB HBM3)" in out
    assert "there is no census-nvml.json" in out  # there is no library of NVML here
    assert "GPU" in (tmp_path / "raw" / "nvidia-smi.gpus.csv.txt").read_text()


def test_roofline_counts_the_flops_that_mfu_is_made_of() -> None:
    config = STDiT3Config(**PRESETS["STDiT3-XL/2"])
    parts = flops_by_part(config, 8, 15, 46, 80, 300)
    for temporal, wanted in ((False, parts.spatial_block), (True, parts.temporal_block)):
        cost = roofline.block_cost(config, 8, 15, 920, 300, temporal)
        forward = sum(operation.flops for operation in cost.forward)
        assert forward == pytest.approx(wanted, rel=0.002)
        # Flash attention makes the scores again: five products instead of four.
        backward = sum(operation.flops for operation in cost.backward)
        assert 2 * wanted <= backward < 2.1 * wanted


def test_fusing_saves_traffic_and_never_products() -> None:
    config = STDiT3Config(**PRESETS["STDiT3-XL/2"])
    cost = roofline.block_cost(config, 2, 15, 920, 300, True)
    eager = roofline.eager_seconds(cost.forward, roofline.H100)
    fused = roofline.fused_seconds(cost.forward, roofline.H100)
    products = sum(op.seconds(roofline.H100) for op in cost.forward if op.flops)
    assert products < fused < 0.95 * eager


def test_kernels_under_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    for case, errors in json.loads(done.stdout).items():
        assert max(errors) < (2e-6 if case.startswith("fp32") else 2e-3), (case, errors)


@pytest.mark.slow
def test_kernels_compile_for_cards_that_are_not_here() -> None:
    """Shared memory of a block of threads is 163 kB on an A100, 227 kB on an H100, 99 kB on an L40."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiled"], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    largest = max(row["shared"] for row in json.loads(done.stdout))
    assert largest == frames._LARGEST_BYTES
    for row in json.loads(done.stdout):
        assert row["frames"] > 64 or (row["shared"] < 99_000 and row["spilled"] < 100), row
        assert row["card"] != "H100" or row["spilled"] == 0, row
