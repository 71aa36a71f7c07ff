"""The items for a card, rehearsed on a CPU: they must work on the day a card is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import fake_nvidia_smi as fake
from tests.gpu import __main__ as command
from tests.gpu import roofline
from tests.gpu.items import ceilings, steps
from tests.gpu.report import is_row, read_lines
from tests.gpu.run import Figures
from trainer.command_line import READER_GONE
from trainer.models.attention import frames
from trainer.models.flops import flops_by_part
from trainer.models.stdit_config import PRESETS, STDiT3Config

CHEAP = (
    "facts",
    "ceilings",
    "frames kernels",
    "packed text",
    "eager",
    "queues",
    "attention",
    "sampling",
)
BESIDE = ("lambda", "plain", "T5-XXL")


@pytest.mark.parametrize(
    ("verb", "only", "count"),
    [
        pytest.param("first", (*CHEAP, *BESIDE), 13, marks=pytest.mark.long),
        pytest.param("first", ("engines",), 1, marks=pytest.mark.long),
        pytest.param("first", ("correct, compiled",), 1, marks=pytest.mark.long),
        pytest.param("first", ("360p:102", "all recomputed", "profile"), 3, marks=pytest.mark.long),
        pytest.param("first", ("VAE",), 1, marks=pytest.mark.long),
        pytest.param("second", ("bit by bit", "deterministic"), 3, marks=pytest.mark.long),
        pytest.param("second", ("tenth", "save of", "SIGTERM"), 3, marks=pytest.mark.slow),
    ],
)
def test_items_are_rehearsed_on_a_cpu(
    verb: str, only: tuple[str, ...], count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [verb, "--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", *only]
    code = command.main(words)
    out = capsys.readouterr().out
    assert f"{count} of {count} measured" in out
    assert code == 0
    assert not (tmp_path / "train").exists()  # checkpoints are deleted once they are read


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_first_call_is_rehearsed_within_its_deadline(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.gpu", "first", "--device", "cpu", "--tiny"]
    argv += ["--out", str(tmp_path / "out"), "--send", str(tmp_path / "send"), "--deadline", "510"]
    done = subprocess.run(argv, timeout=540, stdout=subprocess.DEVNULL)
    rows = [line for line in read_lines(tmp_path / "send" / "first.jsonl")[0] if is_row(line)]
    assert {row["item"] for row in rows} == set(range(1, 17))
    assert [row for row in rows if row["result"] != "measured"] == []
    assert done.returncode == 0
    assert len(list((tmp_path / "send").iterdir())) == 3


@pytest.mark.long
def test_facts_are_read_from_the_tool_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", fake.h100(1))["PATH"])
    words = ["first", "--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", "facts"]
    assert command.main(words) == 1
    out = capsys.readouterr().out
    assert "lines: table 2, q " in out
    assert "ok: 1 GPU (NVIDIA H100 80GB HBM3)" in out
    assert "there is no census-nvml.json" in out  # there is no library of NVML here
    assert "GPU" in (tmp_path / "raw" / "nvidia-smi.gpus.csv.txt").read_text()


def test_a_profiler_without_events_of_the_device_is_said() -> None:
    figures = Figures(lambda name, values: None, Path())
    for rows in ([], [("some", 0.0, 3)]):
        with pytest.raises(RuntimeError, match="recorded no event of the device: CUPTI is missing"):
            steps._table(rows, figures)


@pytest.mark.long
def test_the_products_are_those_of_a_block() -> None:
    """Three for each shape of a layer: forward, and two backward."""
    found = {name: sizes for name, *sizes in ceilings.layers(tiny=False)}
    assert found == {
        "attn.qkv": [110_400, 1152, 3456],
        "attn.proj": [110_400, 1152, 1152],
        "cross_attn.kv_linear": [2400, 1152, 2304],
        "mlp.fc1": [110_400, 1152, 4608],
        "mlp.fc2": [110_400, 4608, 1152],
    }


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
    products = sum(op.seconds(roofline.H100, roofline.LIKELY) for op in cost.forward if op.flops)
    assert products < fused < 0.95 * eager


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "gpu.md"


@pytest.mark.long
def test_the_guide_has_the_bounds_of_the_roofline() -> None:
    rows = roofline.predict(STDiT3Config(**PRESETS["STDiT3-XL/2"]), roofline.H100)
    text = GUIDE.read_text()
    for name, bound, forward, backward, (likely, low, high) in rows:
        shares = f"{100 * likely:.1f} % | {100 * low:.1f} to {100 * high:.1f} %"
        assert f"| {name} | {bound} | {forward:.2f} | {backward:.2f} | {shares} |\n" in text


def test_the_guide_has_the_steps_of_the_roofline() -> None:
    """Those of the recipe, and the same beside fp8."""
    flash, bf16, fp8, twice = (
        cells(*row) for row in roofline.counted_rows(STDiT3Config(**PRESETS["STDiT3-XL/2"]))
    )
    text = GUIDE.read_text()
    for name, row in (
        ("with torch's flash attention", flash),
        ("with cuDNN or flash attention 3 by an `attention_table`", bf16),
        ("bf16", bf16),
        ("fp8", fp8),
        ("fp8, products twice as fast", twice),
    ):
        assert f"| {name} | {' | '.join(row)} |\n" in text
    both = ["{} to {}".format(*sorted(pair)) for pair in zip(fp8, twice, strict=True)]
    both[1:3], both[4] = fp8[1:3], both[4].replace(" % to", " to")
    assert f"by the bf16 peak | {' | '.join(both)} |\n" in text


def cells(
    _name: str, products: float, attention: float, elementwise: float, mfu: float
) -> list[str]:
    whole = products + attention + elementwise + roofline.REST_S
    times = [f"{seconds:.2f}" for seconds in (products, attention, elementwise, whole)]
    return [*times, f"{100 * mfu:.0f} %"]


def test_the_roofline_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in ((["--help"], 0), (["all"], 2)):
        with pytest.raises(SystemExit) as end:
            roofline.main(words)
        assert end.value.code == code
    assert "by arithmetic" in capsys.readouterr().out


@pytest.mark.long
def test_a_reader_of_the_roofline_may_go() -> None:
    code = (
        "import sys; from tests.gpu import roofline; roofline.predict = lambda *_: []; "
        "roofline.counted_rows = lambda _: []; sys.exit(roofline.main([]))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run([sys.executable, "-c", code], stdout=gone, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (READER_GONE, b"")


def test_a_step_by_the_recipe_takes_what_was_aimed_at() -> None:
    config = STDiT3Config(**PRESETS["STDiT3-XL/2"])
    flash, faster, fp8, _ = roofline.counted_rows(config)
    assert flash[-1] < faster[-1] < fp8[-1]
    assert sum(faster[1:4]) + roofline.REST_S <= 1.75
    assert faster[-1] >= 0.44
    # The same products, of which two thirds are in fp8; more is read and written.
    assert 0.70 < fp8[1] / faster[1] < 0.75
    assert fp8[3] > faster[3]


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
@pytest.mark.timeout(420)
def test_kernels_compile_for_cards_that_are_not_here() -> None:
    """Shared memory of a block of threads is 163 kB on an A100, 227 kB on an H100, 99 kB on an L40."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiled"], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert max(row["shared"] for row in rows) == frames._LARGEST_BYTES
    assert sum(row.get("in_fp8", False) for row in rows) > 8
    for row in rows:
        assert row.get("frames", 0) > 64 or (row["shared"] < 99_000 and row["spilled"] < 100), row
        # With norms and rotation 60 frames go 12 bytes beyond the registers of an H100.
        assert row["card"] != "H100" or row.get("prepares") or row["spilled"] == 0, row
