"""Which variables reach the ranks, who wins, and what is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.environment import HIDDEN, OLDER_OF, build
from clusterctl.launch.journal import Journal
from trainer.starter import ranks as starter_ranks

RUN_DIR = Path("/runs/001-x")


def test_who_wins_and_who_is_named() -> None:
    head = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eno2", "PATH": "/bin"}
    found = build(
        head, assignments=["NCCL_DEBUG=TRACE", "MINE=a=b"], preset="h100-ib", run_dir=RUN_DIR
    )
    origins = {one.name: (one.value, one.origin) for one in found.variables}
    assert origins["NCCL_DEBUG"] == ("TRACE", "--env")
    assert origins["NCCL_SOCKET_IFNAME"] == ("eno2", "your environment")
    assert origins["NCCL_P2P_LEVEL"] == ("NVL", "preset h100-ib")
    assert origins["PYTHONUNBUFFERED"] == ("1", "default")
    assert origins["MINE"] == ("a=b", "--env")
    assert "PATH" not in origins


def test_facts_stand_over_the_preset_and_below_what_the_user_says() -> None:
    facts = {"NCCL_SOCKET_IFNAME": "=ens5", "NCCL_IB_HCA": "=mlx5_0", "NCCL_DEBUG": "WARN"}
    found = build(
        {"NCCL_IB_HCA": "=mlx5_9"}, assignments=["NCCL_DEBUG=INFO"], preset="h100-ib", facts=facts,
        run_dir=RUN_DIR,
    )  # fmt: skip
    origins = {one.name: (one.value, one.origin) for one in found.variables}
    assert origins["NCCL_SOCKET_IFNAME"] == ("=ens5", "facts")
    assert origins["NCCL_IB_HCA"] == ("=mlx5_9", "your environment")
    assert origins["NCCL_DEBUG"] == ("INFO", "--env")
    assert origins["NCCL_P2P_LEVEL"] == ("NVL", "preset h100-ib")


def test_gpus_of_the_head_are_not_those_of_the_nodes() -> None:
    found = build({"CUDA_VISIBLE_DEVICES": "0"}, device="cuda", run_dir=RUN_DIR).values()
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["TRAINER_DEVICE"] == "cuda"
    given = ["CUDA_VISIBLE_DEVICES=1,2"]
    found = build({}, assignments=given, device="cuda", run_dir=RUN_DIR).values()
    assert found["CUDA_VISIBLE_DEVICES"] == "1,2"
    found = build({}, device="cpu", run_dir=RUN_DIR).values()
    assert (found["CUDA_VISIBLE_DEVICES"], found["TRAINER_DEVICE"]) == ("", "cpu")


def test_allocator_takes_segments_that_grow_unless_the_user_says_otherwise() -> None:
    assert build({}, run_dir=RUN_DIR).values()["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    older = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
    assert "PYTORCH_ALLOC_CONF" not in build(older, run_dir=RUN_DIR).values()
    newer = ["PYTORCH_ALLOC_CONF=backend:native"]
    found = build({}, assignments=newer, run_dir=RUN_DIR).values()
    assert found["PYTORCH_ALLOC_CONF"] == "backend:native"


def test_secrets_are_hidden_wherever_they_are_shown() -> None:
    found = build(
        {"HF_TOKEN": "hf-0123456789", "HF_ENDPOINT": "https://me:pw@hub"}, run_dir=RUN_DIR
    )
    assert found.shown()["HF_TOKEN"] == HIDDEN
    assert found.shown()["HF_ENDPOINT"] == f"https://{HIDDEN}@hub"
    assert found.values()["HF_TOKEN"] == "hf-0123456789"
    assert found.redact("401 for hf-0123456789") == f"401 for {HIDDEN}"


def test_whatever_the_user_gives_to_this_run_is_hidden() -> None:
    found = build(
        {}, assignments=["MODE=open-sesame", "SHORT=1", "LONG=open-sesame-2"], run_dir=RUN_DIR
    )
    assert {found.shown()[name] for name in ("MODE", "SHORT", "LONG")} == {HIDDEN}
    assert found.values()["MODE"] == "open-sesame"
    assert found.redact("said open-sesame-2, open-sesame and 1") == f"said {HIDDEN}, {HIDDEN} and 1"


def test_name_alone_takes_its_value_from_the_environment() -> None:
    found = build({"MY_PAT": "abc=d"}, assignments=["MY_PAT"], run_dir=RUN_DIR)
    (one,) = [variable for variable in found.variables if variable.name == "MY_PAT"]
    assert (one.value, one.origin, one.shown) == ("abc=d", "--env", HIDDEN)
    with pytest.raises(UsageError, match="your environment has no such variable"):
        build({}, assignments=["MY_PAT"], run_dir=RUN_DIR)


def test_events_hold_no_secrets(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(
        "x", "rank 0: no access to https://me:pw-1@hub", data=[{"why": "token=pw-2"}], hf="hf_pw3pw3pw3pw3pw3pw3"
    )  # fmt: skip
    text = (tmp_path / "events.jsonl").read_text()
    assert "pw" not in text
    assert "rank 0: no access to https://***@hub" in text


@pytest.mark.parametrize(
    "pair",
    ["1X=2", "no value", "-x", "RANK=0", "MASTER_ADDR=x", "CLUSTERCTL_RUN=x", "A=\0", "a b=c"],
)
def test_assignments_that_cannot_be_are_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        build({}, assignments=[pair], run_dir=RUN_DIR)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="h100-ib, ethernet"):
        build({}, preset="h200", run_dir=RUN_DIR)


def test_flight_recorder_is_as_the_user_says_by_either_name() -> None:
    newer, older = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
    found = build({older: "7"}, run_dir=RUN_DIR).values()
    assert (found[newer], found[older]) == ("7", "7")
    found = build({}, assignments=[f"{newer}=8"], run_dir=RUN_DIR).values()
    assert (found[newer], found[older]) == ("8", "8")
    assert build({}, run_dir=RUN_DIR).values()[newer] == "2000"
    assert OLDER_OF == starter_ranks.OLDER_OF
