"""The benchmark: shapes, trials in children by kind of end, the search, the command."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.bench import work as bench_work
from trainer.bench import __main__ as bench
from trainer.bench import child
from trainer.bench.buckets import Bench
from trainer.bench.child import Kind, Outcome, try_in_child
from trainer.bench.encoders import VAE, encode_trial
from trainer.bench.rows import Row, print_columns, print_table, rates
from trainer.bench.search import Budget, SearchStopped, largest_batch
from trainer.bench.shapes import Shape, as_bucket_config, model_options, shapes_of
from trainer.bench.trial import Measured, ShardedAdamW, Spec, Trainee, _inputs, run_trial
from trainer.config import load as configuration
from trainer.config.keys import ModelConfig, TextEncoderConfig, VaeConfig
from trainer.data.plan.buckets import Buckets
from trainer.errors import ConfigError
from trainer.models.flops import forward_flops
from trainer.models.stdit import STDiT3Config
from trainer.runlog.figures import peak_flops

SMALL = {
    "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": (1, 2, 2), "input_sq_size": 16
}  # fmt: skip
CONFIG = configuration.Config(
    model=ModelConfig("STDiT3", options=SMALL),
    text_encoder=TextEncoderConfig("tiny_t5", d_model=16, model_max_length=6),
    dtype="fp32",
    threads=1,
)
SHAPE = Shape("32px", 9, "1.00", 32, 32, batch_size=2, latent=(3, 4, 4))
CPU = torch.device("cpu")
SPEC = Spec(CONFIG, SHAPE, "cpu", text_tokens=4, warmup=1, steps=2)
BUCKETS = """
bucket_config = {
    "144p": {1: (1.0, 475), 51: ((1.0, 0.33), 51), 102: (0.0, None)},
    "360p": {102: ((0.15, 0.33), 4)},
}
"""


def measured(step_s: float = 1.0, peak_bytes: int = 100, start_bytes: int = 0) -> Measured:
    phases = (step_s * 0.3, step_s * 0.6, step_s * 0.1, step_s)
    return Measured(*phases, 5, peak_bytes, start_bytes, 1, 1000, 500, 2 * step_s, {})


# --- shapes ---


def with_buckets(folder: Path) -> configuration.Config:
    file = folder / "buckets.py"
    file.write_text(BUCKETS)
    return configuration.load(file)


def test_every_line_that_takes_clips_is_a_shape_at_one_ratio(tmp_path: Path) -> None:
    shapes = shapes_of(with_buckets(tmp_path))
    assert [(s.name, s.batch_size, s.height, s.width) for s in shapes] == [
        ("360p:102", 4, 360, 640),
        ("144p:51", 51, 144, 256),
        ("144p:1", 475, 144, 256),
    ]
    assert shapes[0].latent == (30, 45, 80)
    assert shapes[0].tokens((1, 2, 2)) == 30 * 23 * 40
    (square,) = shapes_of(with_buckets(tmp_path), ["144p:51"], "1:1")
    assert (square.height, square.width) == (192, 192)


def test_a_bucket_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no bucket 360p:51; choose one of 360p:102, 144p:51, 144p:1"
    ):
        shapes_of(with_buckets(tmp_path), ["360p:51"])


def test_the_printed_buckets_are_a_config_with_other_batch_sizes(tmp_path: Path) -> None:
    text = as_bucket_config(with_buckets(tmp_path), {("360p", 102): 9, ("144p", 51): 0})
    found = ast.literal_eval(text.removeprefix("bucket_config = "))
    assert found == {
        "144p": {1: (1.0, 475), 51: (0.0, None), 102: (0.0, None)},
        "360p": {102: ((0.15, 0.33), 9)},
    }
    Buckets.parse(found)


# --- one trial ---


def test_a_trial_times_phases_and_counts_the_documented_flops() -> None:
    steps: list[tuple[int, int]] = []
    result = run_trial(SPEC, lambda done, total: steps.append((done, total)))
    assert steps == [(0, 3), (1, 3), (2, 3)]
    config = STDiT3Config(**model_options(CONFIG))
    assert result.forward_flops == forward_flops(config, 2, 3, 4, 4, 4)
    assert result.model_flops == 3 * result.forward_flops
    assert result.recompute_flops == 0
    assert min(result.forward_s, result.backward_s, result.optimizer_s) > 0
    assert result.steps == 2
    assert result.peak_bytes >= result.parameters * 4


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_plain_path_and_masks_run_and_plain_recomputes_every_block(dtype: str) -> None:
    options = {**SMALL, "patch_size": (2, 2, 2)}  # frames of tokens are not latent frames
    config = replace(CONFIG, model=replace(CONFIG.model, options=options), dtype=dtype)
    for path in ("ours", "plain", "lambda"):
        spec = replace(SPEC, config=config, path=path, masked=True, shards=3, warmup=0, steps=1)
        result = run_trial(spec, print)
        assert (result.recompute_flops > 0) == (path != "ours")
    assert result.recompute_flops < result.forward_flops  # embedders and final layer run once


def test_the_text_mask_is_on_the_host_as_in_training() -> None:
    trainee = Trainee(SPEC, CPU)
    z_BCTHW, inputs = _inputs(SPEC, trainee.model, torch.device("meta"), torch.float32)
    kinds = {name: value.device.type for name, value in inputs.items()}
    assert kinds.pop("mask") == "cpu"
    assert {z_BCTHW.device.type, *kinds.values()} == {"meta"}
    assert inputs["mask"].sum(1).tolist() == [4, 4]


def test_the_first_step_is_told_apart() -> None:
    result = run_trial(replace(SPEC, warmup=0, steps=1), print)
    assert result.first_s == pytest.approx(result.step_s)
    assert run_trial(SPEC, print).first_s > 0


@pytest.mark.long
def test_compiled_blocks_are_counted_by_kind() -> None:
    trainee = Trainee(SPEC, CPU)
    assert trainee.compiled_blocks() == {"spatial": 0, "temporal": 0}
    trainee.model.compile_blocks(backend="eager")
    assert trainee.compiled_blocks() == {"spatial": 1, "temporal": 1}


@pytest.mark.long
def test_the_predicted_peak_is_of_this_batch_and_of_the_ranks_share() -> None:
    once = replace(SPEC, warmup=0, steps=1)
    alone = run_trial(once, print)
    assert alone.predicted_mb is not None
    large = run_trial(replace(once, shape=replace(SHAPE, batch_size=64)), print)
    assert large.predicted_mb is not None
    # A token of fp32 keeps more than its 32 values in each of the two blocks.
    assert large.predicted_mb - alone.predicted_mb > 62 * 12 * 32 * 4 * 2 / 1e6
    share = run_trial(replace(once, shards=2), print)
    assert share.predicted_mb is not None
    # Master weight, two moments and EMA, in fp32, of the other half.
    assert alone.predicted_mb - share.predicted_mb == pytest.approx(8 * alone.parameters / 1e6, 0.2)
    assert run_trial(replace(once, path="plain"), print).predicted_mb is None


def test_the_attention_table_of_the_config_is_used(tmp_path: Path) -> None:
    rows = {"spatial": "math", "temporal": "products", "text": "efficient"}
    file = tmp_path / "table.json"
    file.write_text(json.dumps({kind: [[None, kernel]] for kind, kernel in rows.items()}))
    trainee = Trainee(replace(SPEC, config=replace(CONFIG, attention_table=str(file))), CPU)
    assert trainee.model.table.choose("temporal", 3) == "products"
    assert trainee.model.blocks()[0].cross_attn.table.choose("text", 6) == "efficient"


@pytest.mark.long
def test_recomputed_blocks_are_counted_apart() -> None:
    model = replace(CONFIG.model, options={**SMALL, "depth": 2})
    flops = {}
    for what in ("off", "every 2", "all"):
        config = replace(CONFIG, model=model, grad_checkpoint=what)
        spec = replace(SPEC, config=config, warmup=0, steps=1)
        flops[what] = run_trial(spec, print).recompute_flops
    assert 0 == flops["off"] < 2 * flops["every 2"] == flops["all"]


def test_a_step_over_the_budget_is_measured_once() -> None:
    assert run_trial(replace(SPEC, enough_s=1e-9, warmup=3, steps=50), print).steps == 1


def test_the_optimizer_is_adamw_over_one_ranks_share() -> None:
    def model() -> torch.nn.Linear:
        torch.manual_seed(0)
        return torch.nn.Linear(8, 8)

    def gradients(layer: torch.nn.Module) -> None:
        for p in layer.parameters():
            p.grad = torch.full_like(p, 0.01)

    ours, theirs, quarter = model(), model(), model()
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-5, weight_decay=0.01)
    optimizer, share = ShardedAdamW(ours, 1), ShardedAdamW(quarter, 4)
    for _ in range(3):
        for layer in (ours, theirs, quarter):
            gradients(layer)
        optimizer.step()
        share.step()
        reference.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-7)
    before = model().weight.flatten()
    assert torch.allclose(quarter.weight.flatten()[:18], theirs.weight.flatten()[:18], atol=1e-7)
    assert torch.equal(quarter.weight.flatten()[18:], before[18:])


# --- children ---


@pytest.mark.parametrize(
    ("work", "kind", "reason"),
    [
        (bench_work.refuse, Kind.FAILED, "ValueError: bucket of the wrong shape"),
        (bench_work.use_up, Kind.OUT_OF_MEMORY, "MemoryError"),
        (bench_work.allocate, Kind.OUT_OF_MEMORY, "allocate"),
        (bench_work.leave, Kind.FAILED, "ended with code 7 and no output"),
        (bench_work.be_killed, Kind.FAILED, "SIGKILL, and the kernel counts no out-of-memory kill"),
    ],
)
def test_how_a_trial_ends_is_told_by_kind(
    work: Callable[..., Measured], kind: Kind, reason: str
) -> None:
    outcome = try_in_child(work, "cpu", 120, print)
    assert outcome.kind is kind
    assert reason in outcome.reason


def test_a_kill_that_the_kernel_counted_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(child, "oom_kills", lambda: next(counts))
    outcome = try_in_child(bench_work.be_killed, "cpu", 120, print)
    assert outcome.kind is Kind.OUT_OF_MEMORY


@pytest.mark.long
def test_what_a_killed_trial_leaves_is_removed_in_silence() -> None:
    program = (
        "from tests.trainer.bench.work import be_killed_with_a_lock as work\n"
        "from trainer.bench.child import try_in_child\n"
        "print(try_in_child(work, 'cpu', 120, print).kind.value)"
    )
    words = [sys.executable, "-c", program]
    # The last writer to stderr is what removes the lock: its end is the end of this call.
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("failed\n", "")


def test_a_trial_that_hangs_is_ended() -> None:
    outcome = try_in_child(bench_work.hang, "cpu", 1, print)
    assert outcome.kind is Kind.TIMED_OUT


# --- the search ---


def machine(memory: int, fixed: int = 50, of_clip: int = 10) -> Callable[[int], Outcome]:
    """A trial that needs memory in proportion and dies above `memory`."""

    def trial(batch: int) -> Outcome:
        peak = fixed + of_clip * batch
        if peak > memory:
            return Outcome(Kind.OUT_OF_MEMORY, reason="CUDA out of memory")
        return Outcome(Kind.MEASURED, measured(0.1 * batch, peak, fixed))

    return trial


@pytest.mark.parametrize("first", [1, 7, 40, 500])
def test_the_largest_batch_is_found_from_any_guess(first: int) -> None:
    found = largest_batch(first, Budget(), machine(1000), 4096)
    assert (found.batch, found.limit) == (95, "CUDA out of memory")
    found = largest_batch(first, Budget(step_s=3.05), machine(1000), 4096)
    assert found.batch == 30
    assert found.limit == "3.1 s a step, over 3.05 s"
    found = largest_batch(first, Budget(memory_bytes=205), machine(1000), 4096)
    assert found.batch == 15
    assert found.measured is not None
    assert found.measured.peak_bytes == 200


def test_not_one_clip_fitting_and_all_fitting_are_answers() -> None:
    assert largest_batch(8, Budget(), machine(55), 4096).batch == 0
    found = largest_batch(8, Budget(), machine(10**9), most=64)
    assert (found.batch, found.limit) == (64, "the search ends at 64")


def test_only_memory_counts_as_too_big() -> None:
    def trial(batch: int) -> Outcome:
        return Outcome(Kind.FAILED, reason="ValueError: no such kernel")

    with pytest.raises(SearchStopped, match="batch 8: failed: ValueError: no such kernel"):
        largest_batch(8, Budget(), trial, 4096)


@given(
    first=st.integers(1, 300),
    limit=st.integers(0, 400),
    budget_s=st.floats(0.05, 50),
    power=st.floats(0.3, 2.0),
)
def test_one_more_never_fits_and_the_search_is_short(
    first: int, limit: int, budget_s: float, power: float
) -> None:
    tried: set[int] = set()

    def trial(batch: int) -> Outcome:
        assert batch not in tried
        tried.add(batch)
        if batch > limit:
            return Outcome(Kind.OUT_OF_MEMORY)
        return Outcome(Kind.MEASURED, measured(0.1 * batch**power))

    found = largest_batch(first, Budget(step_s=budget_s), trial, most=512)
    fitting = [n for n in range(1, 513) if n <= limit and 0.1 * n**power <= budget_s]
    assert found.batch == max(fitting, default=0)
    assert found.trials == len(tried) <= 40


# --- figures and the command ---


def test_peaks_are_told_by_the_devices_name() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989.4e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12
    assert peak_flops("NVIDIA GB200", "bf16") == 2500e12
    assert peak_flops("Some Card", "bf16") is None


def test_mfu_leaves_the_optimizer_and_the_recomputation_out() -> None:
    figures = rates(measured(1.0), tokens=500, peak=10_000.0)
    assert figures["tokens_per_s"] == 500
    assert figures["mfu"] == pytest.approx(3000 / 0.9 / 10_000)
    assert figures["recompute_share"] == pytest.approx(500 / 0.9 / 10_000)
    assert figures["mfu_of_step"] == pytest.approx(0.3)
    assert rates(measured(), 1, None)["mfu"] is None


ONE_STEP = ["demo", "--threads", "1", "--warmup", "1", "--steps", "1", "--batch-size", "2"]


@pytest.mark.parametrize(
    "words", [["--compare", "plain,lambda"], ["--compare", "lambda", "--compare", "plain"]]
)
def test_the_command_measures_all_paths(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([*ONE_STEP, *words, "--json", "--peak-tflops", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "bench")
    assert document["threads"] == 1 <= document["cores"]
    assert document["load"] >= 0
    assert not document["fp8_simulated"]
    ours, *others = document["rows"]
    assert [row["path"] for row in document["rows"]] == ["ours", "plain", "lambda"]
    for other in others:
        assert ours["forward_flops"] == other["forward_flops"] > 0
        assert ours["recompute_flops"] == 0 < other["recompute_flops"]
        assert ours["faster"][other["path"]] == pytest.approx(other["step_s"] / ours["step_s"])
        assert "faster" not in other
    rows = document["rows"]
    assert all(0 < row["mfu"] < 1 and math.isfinite(row["tokens_per_s"]) for row in rows)
    assert all(row["first_s"] > 0 for row in rows)


def test_the_command_prints_a_table_and_a_failure_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(ONE_STEP) == 0
    out = capsys.readouterr().out
    assert out.split()[:3] == ["bucket", "batch", "tokens"]
    assert "1 thread, load" in out
    assert "16px:8" in out
    assert "no peak known" in out
    assert bench.main([*ONE_STEP, "--batch-size", "1000000000"]) == 1
    out = capsys.readouterr().out
    assert "out of memory" in out


def test_the_table_says_how_much_faster_than_each_path(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row(SHAPE, path, 100, Outcome(Kind.MEASURED, measured(seconds)))
        for path, seconds in (("ours", 1.0), ("plain", 3.0), ("lambda", 2.0))
    ]
    print_table(rows, None)
    times, figures, faster = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    for head, ours, plain, path, factor in (
        (*figures[:3], "plain", "3.00x"),
        (*faster[:3], "lambda", "2.00x"),
    ):
        assert head.endswith(f"faster than {path}")
        assert (ours.split()[-1], plain.split()[-1]) == (factor, "-")
    assert times[1].endswith(" 2 s")  # the first step


def test_a_table_fits_80_columns_and_no_line_ends_in_blanks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = replace(SHAPE, resolution="1080p", frames=408, batch_size=1024)
    result = Outcome(Kind.MEASURED, measured(1234.5, 10**11))
    print_table([Row(shape, path, 10**9, result) for path in ("ours", "plain")], 1e15)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    heads = [line.split() for line in lines if line.startswith("bucket")]
    assert len(heads) > 1
    assert all(head[:2] == ["bucket", "path"] for head in heads)
    assert sum("1080p:408" in line for line in lines) == 2 * len(heads)


def test_a_column_that_alone_is_wider_than_a_line_is_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_columns(["a", "b", "c"], [{"a": "1", "b": "x" * 90, "c": "3"}], ["a"])
    assert capsys.readouterr().out == f"a  {'b':>90}\n1  {'x' * 90}\n\na  c\n1  3\n"


def notes(monkeypatch: pytest.MonkeyPatch, load: float, *words: str) -> str:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    args, overrides = bench._parser().parse_known_args(["demo", "--device", "cpu", *words])
    return Bench(args, configuration.load("demo", overrides))._notes([])


def test_threads_and_load_stand_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = notes(monkeypatch, 0.1, "--threads", "2")
    assert "cpu, 2 threads, load 0.1 on 2 cores at the start\n" in quiet
    assert "Other programs" not in quiet
    busy = notes(monkeypatch, 2.2, "--threads", "2")
    assert "Other programs used the cores" in busy
    assert "--threads 1 suffers least" in busy
    assert "Other programs" not in notes(monkeypatch, 2.2, "--threads", "1")
    assert max(map(len, busy.splitlines())) <= 80


def test_simulated_fp8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fp8_linears is simulated on a CPU" in notes(monkeypatch, 0.1, "--fp8-linears")
    assert "fp8" not in notes(monkeypatch, 0.1)


@pytest.mark.long
def test_encoders_use_the_threads_of_the_model() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (before + 1, before):
            config = replace(CONFIG, vae=VaeConfig("identity"), threads=threads)
            encode_trial(replace(SPEC, config=config), VAE, True, print)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_what_is_compiled_is_said_below_the_table() -> None:
    args, _ = bench._parser().parse_known_args(["demo", "--compile", "--device", "cpu"])
    figures = replace(measured(), compiled_blocks={"spatial": 28, "temporal": 28})
    rows = [Row(SHAPE, "ours", 100, Outcome(Kind.MEASURED, figures))]
    notes = Bench(args, configuration.load("demo"))._notes(rows)
    assert "compiled: 28 spatial and 28 temporal blocks; embedders" in notes
    args.compile = False
    figures = replace(figures, compiled_blocks={"spatial": 0, "temporal": 0})
    rows = [Row(SHAPE, "ours", 100, Outcome(Kind.MEASURED, figures))]
    assert "compiled" not in Bench(args, configuration.load("demo"))._notes(rows)


@pytest.mark.parametrize(
    ("words", "fused", "compiled"),
    [([], True, True), (["--compile"], False, True), (["--eager"], False, False)],
)
def test_blocks_run_as_the_command_says(words: list[str], fused: bool, compiled: bool) -> None:
    args, _ = bench._parser().parse_known_args(["stage1", "--device", "cpu", *words])
    config = Bench(args, configuration.load("stage1"))._config
    assert (config.fused_blocks, config.compile) == (fused, compiled)


def test_the_command_searches_and_prints_a_bucket_config(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*ONE_STEP, "--search-batch-size", "--most", "2", "--budget-s", "1000"]
    assert bench.main(words) == 0
    said = capsys.readouterr()
    assert said.out == "bucket_config = {\n    '16px': {8: (1.0, 2)},\n}\n"
    assert "one more: the search ends at 2 (1 trials)" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search-batch-size", "--device", "cpu"], "needs a limit"),
        (["--budget-s", "3"], "--budget-s and --budget-mb need --search-batch-size"),
        (["--bucket", "720p:51"], "there is no bucket 720p:51"),
        (["--compare", "plain", "--search-batch-size"], "--compare cannot be used with"),
        (["--encoders", "--search-batch-size"], "--encoders cannot be used with"),
        (["--tiny-encoders"], "--tiny-encoders needs --encoders"),
        (["--attention-table", "none.json"], "attention_table none.json cannot be read"),
        (["--grad-checkpoint", "some"], "grad_checkpoint must be auto, off, all"),
        (["--grad-checkpoint", "9" * 5000], "grad_checkpoint must be auto, off, all"),
        (["--grad-checkpoint", "24000"], "and the model has"),
        (["--device", "tpu"], "device 'tpu' is not available"),
        (["--nonsense", "3"], "nonsense"),
    ],
)
def test_wrong_wishes_are_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_path_that_is_none_is_named_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["demo", "--compare", "plain,theirs"])
    assert end.value.code == 2
    assert "'theirs' is not one of plain, lambda" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "--search-batch-size --budget-s 12" in out
    assert all(words in out for words in ("--threads N", "demo --threads 1", "auto, off, all"))
    assert all(f"default {value}" in out for value in ("1", "2", "5", "1800", "4096"))
