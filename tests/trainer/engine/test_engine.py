"""ColossalAI's engine against plain torch, over two real ranks; its files at any world size."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ports import free_port
from tests.trainer.engine import engine_ranks
from tests.trainer.engine.engine_ranks import make_model
from tests.trainer.ranks import environment, fork, wait
from trainer.engine import base, process_group, shards
from trainer.engine.base import build_engine
from trainer.engine.long_work import together_long
from trainer.errors import CheckpointError, ConfigError, EngineError, TrainerError

LIMIT_S = 300  # a guard, not a measure: machines may be busy
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Ranks:
    """What each of the two ranks said."""

    said: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("engine")
    port = free_port()
    logs = [folder / f"{rank}.log" for rank in range(2)]
    processes = [
        fork(engine_ranks.main, folder, env=environment(rank, 2, port), log=logs[rank])
        for rank in range(2)
    ]
    codes = wait(processes, LIMIT_S)
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    return Ranks([json.loads((folder / f"{r}.json").read_text()) for r in range(2)], folder)


@pytest.mark.parametrize("kind", ["zero2-fp32", "zero1-fp32", "ddp-fp32", "native-fp32"])
def test_two_ranks_do_what_one_process_does_with_both_batches(ranks: Ranks, kind: str) -> None:
    for said in ranks.said:
        assert said[kind]["norms"] == pytest.approx(said["plain"], rel=1e-5)
        assert said[kind]["apart"] < 1e-5
        assert said[kind]["masters_apart"] < 1e-5


@pytest.mark.parametrize("kind", ["zero2-fp32", "zero1-fp32", "ddp-fp32", "native-fp32"])
def test_three_microbatches_a_step_are_one_batch(ranks: Ranks, kind: str) -> None:
    for said in ranks.said:
        assert said[f"{kind}-in-3"]["norms"] == pytest.approx(said["plain"], rel=1e-5)
        assert said[f"{kind}-in-3"]["apart"] < 1e-5


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("kind", ["zero2-fp32", "zero1-fp32", "ddp-fp32", "native-fp32"])
def test_a_microbatch_in_parts_is_the_whole_one(ranks: Ranks, kind: str, each: int) -> None:
    for said in ranks.said:
        found = said[f"{kind}-in-{each}-chunked"]
        assert found["norms"] == pytest.approx(said["plain"], rel=1e-5)
        assert found["apart"] < 1e-5


@pytest.mark.parametrize("kind", ["zero2-bf16", "native-bf16"])
def test_bf16_parts_add_up_without_losing_more(ranks: Ranks, kind: str) -> None:
    said = ranks.said[0]
    assert said[f"{kind}-in-1-chunked"]["norms"] == pytest.approx(said["plain"], rel=0.05)
    assert said[f"{kind}-in-1-chunked"]["apart"] < 0.01


def test_weights_that_are_gathered_in_several_buckets_are_the_same(ranks: Ranks) -> None:
    for said in ranks.said:
        found = said["small-buckets"]
        assert found["buckets"] == [
            1,
            1,
            2,
        ]  # parts of 18, 11, 2 and 2 elements, at most 12 together
        assert found["norms"] == pytest.approx(said["plain"], rel=1e-5)
        assert found["apart"] < 1e-5


def test_zero_says_once_a_pass_when_it_begins_to_wait_for_other_ranks(ranks: Ranks) -> None:
    """Four steps of three microbatches; DDP cannot tell."""
    assert [said["marks"] for said in ranks.said] == [[12, 12, 0]] * 2


def test_bf16_microbatches_add_up_without_losing_more(ranks: Ranks) -> None:
    said = ranks.said[0]
    assert said["zero2-bf16-in-3"]["norms"] == pytest.approx(said["plain"], rel=0.05)
    assert said["zero2-bf16-in-3"]["apart"] < 0.01


def test_bf16_trains_and_its_masters_are_finer_than_its_weights(ranks: Ranks) -> None:
    said = ranks.said[0]["zero2-bf16"]
    assert said["norms"] == pytest.approx(ranks.said[0]["plain"], rel=0.05)
    assert 0 < said["masters_apart"] < said["apart"] + 1e-3
    assert said["apart"] < 0.01


def test_native_engine_shards_trains_in_bf16_and_writes_the_same_files(ranks: Ranks) -> None:
    said = [rank["native-bf16"] for rank in ranks.said]
    assert said[0]["norms"] == pytest.approx(ranks.said[0]["plain"], rel=0.05)
    assert 0 < said[0]["masters_apart"] < said[0]["apart"] + 1e-3
    assert said[0]["apart"] < 0.01
    assert {one["parts"] for one in said} != {0}
    assert sum(one["parts"] for one in said) == 5 * 7 + 7 * 3 + 3 + 3
    assert said[0]["files"] == ranks.said[0]["zero2-bf16"]["files"]


def test_either_engine_goes_on_from_the_other_s_checkpoint(ranks: Ranks) -> None:
    assert ranks.said[0]["native_from_colossal"] < 1e-5
    assert ranks.said[0]["colossal_from_native"] < 1e-5


def test_what_is_not_trained_has_no_master(ranks: Ranks) -> None:
    assert ranks.said[0]["zero2-fp32"]["trained"] == ["0.weight", "2.weight", "2.bias", "3.weight"]


def test_each_rank_writes_its_own_file_and_equal_ones_write_one(ranks: Ranks) -> None:
    two = ["rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"]
    assert ranks.said[0]["zero2-fp32"]["files"] == two
    assert ranks.said[0]["ddp-fp32"]["files"] == ["rank-00000-of-00001.safetensors"]


def test_a_plugin_reads_the_state_of_another(ranks: Ranks) -> None:
    assert ranks.said[0]["from_ddp"] < 1e-5


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_saved_masters_are_whole_at_any_world_size(ranks: Ranks, world: int) -> None:
    model, found = make_model(), shards.Shards(ranks.folder / "zero2-fp32")
    one = shards.Shards(ranks.folder / "ddp-fp32")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        numel = parameter.numel()
        for kind in ("master", "exp_avg", "exp_avg_sq"):
            key = f"{name}/{kind}"
            parts = [found.read(key, numel, rank, world) for rank in range(world)]
            whole = torch.cat(parts)
            assert torch.allclose(whole[:numel], one.read(key, numel, 0, 1), atol=1e-5)
            assert not whole[numel:].any()
    assert found.facts["steps"]["0.weight"] == 4


@pytest.mark.long
@given(
    rows=st.integers(1, 12), width=st.integers(1, 4), before=st.integers(1, 9),
    after=st.integers(1, 9), by_rows=st.booleans(),
)  # fmt: skip
def test_a_parameter_survives_any_change_of_world_size(
    tmp_path_factory: pytest.TempPathFactory, rows: int, width: int, before: int, after: int,
    by_rows: bool,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("parts")
    numel = rows * width
    whole, each = torch.arange(1.0, numel + 1), -(-rows // before) * width
    for rank in range(before):
        equal = shards.part_of(whole, rank, before)
        part = whole[rank * each : (rank + 1) * each] if by_rows else equal
        shards.write(folder, rank, before, {"w/master": part})
    found = shards.Shards(folder)
    for rank in range(after):
        expected = shards.part_of(whole, rank, after)
        assert torch.equal(found.read("w/master", numel, rank, after), expected)


def test_missing_and_foreign_optimizer_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no optimizer state"):
        shards.Shards(tmp_path)
    shards.write(tmp_path, 1, 2, {"w/master": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"files of ranks \[0\] are missing"):
        shards.Shards(tmp_path)
    shards.write(tmp_path, 0, 2, {"w/master": torch.ones(3)})
    found = shards.Shards(tmp_path)
    with pytest.raises(CheckpointError, match="another model"):
        found.read("v/master", 6, 0, 2)
    for other in (3, 4, 7, 8, 60):
        with pytest.raises(CheckpointError, match=f"has 6 elements, the model's has {other}"):
            found.read("w/master", other, 0, 2)


def test_collectives_say_the_same_on_all_ranks(ranks: Ranks) -> None:
    for rank, said in enumerate(ranks.said):
        assert said["gathered"] == [[0.0, 0.5], [1.0, 0.5]], rank
        assert said["agree"] == ["rank 1: disk full"]
        assert said["broadcast"] == "of rank 0"
        assert said["host"] == 2
        assert "nowhere" in said["alone"]
        assert said["waited"] > 0


def test_a_failure_of_one_rank_is_raised_on_all_with_its_number_and_once_where_all_have_it(
    ranks: Ranks,
) -> None:
    for said in ranks.said:
        assert said["together-one"] == ["rank 1: ZeroDivisionError: division by zero", True]
        text, on_all = said["together-both"]
        assert on_all
        assert text.startswith("FileNotFoundError: ")
        assert "rank" not in text
        text, on_all = said["load"]
        assert on_all
        assert text == f"rank 0: {ranks.folder / 'nowhere'} holds no optimizer state"
    assert [said["together"] for said in ranks.said] == [0, 1]


def test_ddp_reduces_its_gradients_once_a_step_however_many_microbatches_make_it(
    ranks: Ranks,
) -> None:
    assert [said["reductions"] for said in ranks.said] == [[4, 4], [4, 4]]


def test_the_lean_import_leaves_nothing_behind(ranks: Ranks) -> None:
    assert ranks.said[0]["compile"] == "torch"
    assert ranks.said[0]["peft"] is False


def alone_of_two() -> None:
    engine = build_engine("colossal")
    start = time.monotonic()
    try:
        engine.setup(1, 2.0)
    except EngineError as error:
        print("EngineError", round(time.monotonic() - start, 1), error, error.hint, flush=True)


def test_a_rank_that_never_comes_is_an_error_after_the_limit_not_a_hang(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wait([fork(alone_of_two, env=environment(0, 2, free_port()), log=log)], 60)
    said = log.read_text()
    assert said.startswith("EngineError"), said
    assert "rank 0 of 2 could not join the others" in said
    assert float(said.split()[1]) < 20


def second_of_two() -> None:
    process_group.MORE_S = 0.5
    build_engine("colossal").setup(1, 2.0)


def test_a_port_that_another_program_has_is_an_error_after_the_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        codes = wait([fork(second_of_two, env=environment(1, 2, port), log=log)], 60)
    assert codes == [1]
    said = log.read_text()
    assert (
        f"error: rank 1 of 2 could not join the others at 127.0.0.1:{port}: the program at that port"
        in said
    )
    assert "hint: another program or an older run has that port" in said


def long_work_of_rank_0(folder: Path, rank: int, name: str) -> None:
    """Of more than twice the time for which ranks wait for each other."""
    engine = build_engine(name)
    engine.setup(1, 3.0)

    def work(goes_on: Callable[[], None]) -> str:
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            goes_on()
        return "done"

    def failing(goes_on: Callable[[], None]) -> str:
        raise CheckpointError("damaged")

    said = [engine.run_long_on_rank0(work)]
    try:
        engine.run_long_on_rank0(failing)
    except CheckpointError as error:
        said.append(str(error))

    def of_rank_1(lives: Callable[[], None]) -> str:
        until = time.monotonic() + 5.0 * rank
        while time.monotonic() < until:
            lives()
            time.sleep(0.1)
        return f"rank {rank}"

    def failing_on_1(lives: Callable[[], None]) -> None:
        if rank:
            raise CheckpointError("no such file")

    said.append(together_long(engine, of_rank_1))
    for work_of_each in (failing_on_1, lambda lives: time.sleep(30.0 * rank)):
        try:
            together_long(engine, work_of_each)
        except TrainerError as error:
            said.append(str(error))
    (folder / f"{rank}.txt").write_text(" ".join(said))
    engine.close()


@pytest.mark.long
def test_ranks_wait_for_others_as_long_as_their_work_goes_on(tmp_path: Path) -> None:
    port, logs = free_port(), [tmp_path / f"{rank}.log" for rank in range(2)]
    processes = [
        fork(long_work_of_rank_0, tmp_path, rank, "native", env=environment(rank, 2, port), log=log)
        for rank, log in enumerate(logs)
    ]
    assert wait(processes, 120) == [0, 0], "\n".join(log.read_text() for log in logs)
    ends = "rank 1: no such file nothing has come for 3 s on rank 1"
    said = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)]
    assert said == [f"done damaged rank {rank} {ends}" for rank in (0, 1)]


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK is set but not WORLD_SIZE"):
        process_group.rank_of_run()


def test_ranks_that_share_cores_get_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert base.set_threads(None, ranks_on_host=2, on_accelerator=False) == 1
        alone = base.set_threads(None, ranks_on_host=1, on_accelerator=False)
        assert alone == len(os.sched_getaffinity(0))
        assert base.set_threads(3, ranks_on_host=2, on_accelerator=False) == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        assert base.set_threads(None, ranks_on_host=1, on_accelerator=False) == 1
    finally:
        torch.set_num_threads(before)
