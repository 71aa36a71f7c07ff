"""Which variables reach the ranks, who wins, and what is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.environment import HIDDEN, build, hide_arguments, is_secret

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


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "aws-secret"])
def test_secrets_by_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "WANDB_MODE", "NCCL_DEBUG"])
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_hidden_wherever_they_are_shown() -> None:
    found = build(
        {"HF_TOKEN": "hf-0123456789", "HF_ENDPOINT": "https://me:pw@hub"}, run_dir=RUN_DIR
    )
    assert found.shown()["HF_TOKEN"] == HIDDEN
    assert found.shown()["HF_ENDPOINT"] == f"https://{HIDDEN}@hub"
    assert found.values()["HF_TOKEN"] == "hf-0123456789"
    assert found.redact("401 for hf-0123456789") == f"401 for {HIDDEN}"
    assert hide_arguments(["--api-key", "x", "--token=y", "--lr", "1"]) == [
        "--api-key", HIDDEN, f"--token={HIDDEN}", "--lr", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pair", ["novalue", "1X=2", "RANK=0", "MASTER_ADDR=x", "CLUSTERCTL_RUN=x", "A=\0", "a b=c"]
)
def test_assignments_that_cannot_be_are_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        build({}, assignments=[pair], run_dir=RUN_DIR)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="h100-ib, ethernet"):
        build({}, preset="h200", run_dir=RUN_DIR)
