"""`trainer.bench attention`: shapes of a config, measurements, winners, the file of a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.models.test_stdit_packed_text import VaryingLengths
from trainer.bench import __main__ as bench
from trainer.bench import attention
from trainer.bench.attention_shapes import AttentionShape, read_shapes, shapes_of_config
from trainer.bench.attention_trial import NotAvailable, Timing, Trial, attention_trial, why_not
from trainer.bench.attention_winners import Result, rows_of, table_document, winners
from trainer.bench.child import Kind, Outcome
from trainer.config import load as configuration
from trainer.errors import ConfigError
from trainer.models.attention import short
from trainer.models.attention.table import KERNELS, read_table

SPATIAL = AttentionShape("spatial", 2, 3, 12, heads=2, width=8)
TEMPORAL = AttentionShape("temporal", 2, 3, 12, heads=2, width=8)
TEXT = AttentionShape("text", 6, 3, 12, text=10, heads=2, width=8)
CPU = torch.device("cpu")


def nothing(done: int, total: int) -> None:
    pass


# --- shapes ---


def test_stage_1_has_a_shape_for_every_number_of_keys() -> None:
    shapes = shapes_of_config(configuration.load("stage1"))
    keys: dict[str, list[int]] = {kind: [] for kind in KERNELS}
    for shape in shapes:
        keys[shape.kind].append(shape.keys)
    assert keys["temporal"] == [1, 15, 30, 60, 120]
    assert keys["text"] == [300]
    assert keys["spatial"] == sorted(set(keys["spatial"]))
    assert {144, 405, 920} <= set(keys["spatial"])
    assert all((shape.heads, shape.width) == (16, 72) for shape in shapes)
    (of_360p,) = (shape for shape in shapes if shape.kind == "spatial" and shape.keys == 920)
    assert of_360p.name == "spatial:141x1x920"  # its bucket with the most tokens


def test_shapes_are_read_as_they_are_named() -> None:
    config = configuration.load("demo")
    names = ["spatial:8x15x920", "text:2x4x16x20"]
    shapes = read_shapes(config, names)
    assert [shape.name for shape in shapes] == names
    assert [shape.keys for shape in shapes] == [920, 20]
    assert (shapes[0].heads, shapes[0].width) == (8, 20)  # 160 wide


@pytest.mark.parametrize(
    "name", ["spatial:8", "spatial:8x15x920x300", "text:8x15x920", "temporal:0x1x2", "flash:1x1x1"]
)
def test_a_shape_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="is not KIND:CLIPSxFRAMESxPLACES"):
        read_shapes(configuration.load("demo"), [name])


# --- one kernel ---


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [(SPATIAL, "math"), (TEMPORAL, "math"), (TEMPORAL, "products"), (TEXT, "math")],
)
def test_a_kernel_that_runs_here_is_timed_and_exact(shape: AttentionShape, kernel: str) -> None:
    before = short.MOST_KEYS
    found = attention_trial(shape, kernel, "cpu", nothing)
    assert isinstance(found, Timing)
    assert min(found.forward_s, found.backward_s, found.first_s, found.new_shape_s) > 0
    assert found.error < 1e-6
    left = short.MOST_KEYS
    assert left == before


def test_the_kernel_asked_for_is_the_one_that_runs() -> None:
    assert Trial(TEMPORAL, "products", CPU).ran() == "products"
    assert Trial(TEMPORAL, "math", CPU).ran() == "math"


def test_wrong_numbers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = short.products
    monkeypatch.setattr(short, "products", lambda q, *rest: right(1.1 * q, *rest))
    assert Trial(TEMPORAL, "products", CPU).error() > 0.01


def test_packed_captions_are_compared_with_the_first_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[list[int]] = []

    def varlen_attn(q: Tensor, k: Tensor, v: Tensor, *ends: Any) -> Tensor:
        q_ends, k_ends, queries, keys = ends
        assert (queries, keys) == (36, 10)
        lengths.append(k_ends.diff().tolist())
        return VaryingLengths.apply(q, k, v, q_ends, k_ends)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    trial = Trial(TEXT, "varlen", CPU)
    assert trial.error() < 1e-6
    assert lengths == [[10, 8, 6, 4, 2, 10]]


@pytest.mark.parametrize("kernel", ["flash", "cudnn", "frames", "varlen"])
def test_what_does_not_run_here_is_an_answer(kernel: str) -> None:
    assert attention_trial(TEMPORAL, kernel, "cpu", nothing) == NotAvailable("it needs a GPU")


def test_packed_text_needs_heads_of_a_multiple_of_8() -> None:
    narrow = replace(TEXT, width=20)
    assert why_not(narrow, "varlen", torch.device("cuda")) == "it takes heads of a multiple of 8"
    assert why_not(TEXT, "varlen", torch.device("cuda")) == ""


# --- winners and the file ---


def result(
    kind: str, keys: int, kernel: str, ms: float, new_s: float = 0.0, error: float = 0.001
) -> Result:
    sizes = {"spatial": (1, 1, keys), "temporal": (1, keys, 1), "text": (1, 1, 1, keys)}[kind]
    timing = Timing(ms / 3e3, ms / 1.5e3, 1000, error, 1.0, new_s)
    return Result(AttentionShape(kind, *sizes), kernel, Outcome(Kind.MEASURED, timing))


def test_the_fastest_wins_unless_it_stalls_or_is_wrong() -> None:
    fast = [
        result("spatial", 920, "cudnn", 1.0, new_s=0.9),
        result("spatial", 920, "efficient", 2.0, error=0.3),
        result("spatial", 920, "math", 9.0),
        result("spatial", 920, "flash", 3.0, new_s=0.1),
    ]
    (best,) = winners(fast).values()
    assert best is not None
    assert best.kernel == "flash"
    assert fast[0].reason == "every new shape takes 0.9 s"
    assert fast[1].reason == "its numbers are wrong by 3.0e-01"
    slow = result("spatial", 920, "math", 9000.0, new_s=9.1)  # slow on every shape, not a stall
    assert slow.reason == ""
    nan = result("spatial", 920, "math", 1.0, error=float("nan"))
    assert "wrong" in nan.reason


def test_a_failure_and_a_missing_kernel_have_reasons_and_cannot_win() -> None:
    shape = result("text", 300, "math", 1.0).shape
    died = Result(shape, "varlen", Outcome(Kind.OUT_OF_MEMORY, reason="CUDA out of memory"))
    missing = Result(shape, "cudnn", Outcome(Kind.MEASURED, NotAvailable("no Triton")))
    assert died.reason == "out of memory: CUDA out of memory"
    assert missing.reason == "not available: no Triton"
    assert winners([died, missing]) == {shape: None}
    assert (missing.to_json()["available"], died.to_json()["available"]) == (False, True)


def test_equal_neighbours_are_one_row_and_the_last_has_no_limit() -> None:
    best = {144: "flash", 405: "flash", 920: "cudnn", 3600: "flash", 4096: "flash"}
    results = [result("spatial", keys, kernel, 1.0) for keys, kernel in best.items()]
    results += [result("spatial", keys, "math", 2.0) for keys in best]
    assert rows_of("spatial", results) == ((405, "flash"), (920, "cudnn"), (None, "flash"))
    assert rows_of("temporal", results) == ()


def test_beyond_the_frames_kernel_the_next_best_follows() -> None:
    results = [result("temporal", keys, "frames", 1.0) for keys in (1, 15, 120)]
    assert rows_of("temporal", results) == ((128, "frames"), (None, "flash"))
    results += [result("temporal", 120, "efficient", 2.0), result("temporal", 120, "flash", 3.0)]
    assert rows_of("temporal", results) == ((128, "frames"), (None, "efficient"))


def test_of_shapes_with_the_same_keys_the_larger_decides() -> None:
    small, large = result("text", 300, "math", 1.0), result("text", 300, "varlen", 5.0)
    large = replace(large, shape=replace(large.shape, batch=8))
    assert rows_of("text", [large, small]) == ((None, "varlen"),)
    assert rows_of("text", [small, large]) == ((None, "varlen"),)


def test_the_written_file_is_a_table(tmp_path: Path) -> None:
    results = [
        result("spatial", 144, "efficient", 1.0),
        result("spatial", 920, "flash", 1.0),
        result("temporal", 15, "products", 1.0),
    ]
    header = {"device_name": "NVIDIA H100 80GB HBM3", "torch": "2.13", "date": "d", "command": "c"}
    document = table_document(results, header)
    assert document["not_measured"] == ["text"]
    attention._write(tmp_path / "table.json", document)
    table = read_table(tmp_path / "table.json")
    assert table.spatial == ((144, "efficient"), (None, "flash"))
    assert table.temporal == ((None, "products"),)
    assert table.choose("text", 300) == "varlen"  # the default
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


# --- the command ---

ONE = ["attention", "demo", "--device", "cpu", "--shapes", "temporal:2x3x4"]


def test_the_command_prints_winners_and_what_is_not_available(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(ONE) == 0
    figures, reasons, _ = capsys.readouterr().out.split("\n\n")
    assert figures.split()[:3] == ["shape", "kernel", "keys"]
    by_kernel = {line.split()[1]: line for line in reasons.splitlines()[1:]}
    assert len(by_kernel) == 6
    assert by_kernel["flash"].endswith("not available: it needs a GPU")
    assert sum(line.endswith("wins") for line in by_kernel.values()) == 1


def test_the_commands_document_has_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*ONE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "bench attention")
    assert [row["kernel"] for row in document["rows"]] == list(KERNELS["temporal"])
    assert [row["kernel"] for row in document["rows"] if row["available"]] == ["products", "math"]
    assert document["winners"]["temporal:2x3x4"] in ("products", "math")
    assert document["command_line"].endswith("--json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--write", "table.json"], "--write needs a GPU"),
        (["--shapes", "spatial:3"], "is not KIND:CLIPSxFRAMESxPLACES"),
        (["--bucket", "720p:51"], "there is no bucket 720p:51"),
        (["--bucket", "16px:8", "--shapes", "spatial:1x1x1"], "exclude each other"),
        (["--nonsense", "3"], "nonsense"),
    ],
)
def test_wrong_wishes_are_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["attention", "demo", "--device", "cpu", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_place_that_cannot_be_written_is_known_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        attention._require_writable(tmp_path / "none" / "table.json", "cuda")
    attention._require_writable(tmp_path / "table.json", "cuda:1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        attention._write(tmp_path / "folder", {})
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["attention", "--help"])
    assert end.value.code == 0
    assert "attention stage1 --write attention-h100.json" in capsys.readouterr().out
