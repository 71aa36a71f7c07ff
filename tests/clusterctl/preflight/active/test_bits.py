"""Products and copies compared bit by bit: a device that computes or copies wrongly is named.

The fault is injected here, into the torch that a rank imports: the product has no option for it.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterctl import cli
from clusterctl.payload.torch_tests import bits
from clusterctl.payload.torch_tests.bits import Copies, Products
from clusterctl.preflight.active import plan as plans
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection

CPU = torch.device("cpu")
# Every product has the lowest bit of three values flipped, from the first on; copies in odd turns.
FAULT = """
import torch
right, copied, turns = torch.matmul, torch.Tensor.copy_, []
def matmul(one, two, out=None):
    found = right(one, two, out=out)
    bits = found.view(torch.int32)
    for row, column in ((3, 5), (3, 9), (200, 9)):
        bits[row, column] ^= 1
    return found
def copy_(self, source, non_blocking=False):
    copied(self, source, non_blocking)
    if self.dtype == torch.int32:
        turns.append(0)
        if len(turns) % 2:
            self[77] ^= 1 << 20
    return self
torch.matmul, torch.Tensor.copy_ = matmul, copy_
"""


class Faulty:
    """Torch whose products of these numbers have one value with two flipped bits."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers, self.count = numbers, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def matmul(self, one: torch.Tensor, two: torch.Tensor, **into: Any) -> torch.Tensor:
        found = torch.matmul(one, two, **into)
        self.count += 1
        if self.count in self.numbers:
            found.view(torch.int32)[4, 6] ^= 0b1010
        return found


@pytest.mark.parametrize("numbers", [(), (1,), (2,), (3, 5)])
def test_a_product_that_differs_now_and_then_is_counted_and_the_usual_one_is_kept(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)  # a second for each look
    monkeypatch.setattr(bits, "time", clock)
    (right,) = Products(torch, CPU, lambda _: None).run(9.0)["products"]
    products = Products(Faulty(numbers), CPU, lambda _: None)
    (found,) = products.run(9.0)["products"]
    assert (found["others"], found["sum"]) == (len(numbers), right["sum"])
    assert found["count"] == right["count"] == 9
    wanted = {"values": 1, "bits": 2, "at": 4 * 256 + 6}
    assert found.get("differs") == (wanted if numbers else None)


def test_copies_of_a_sound_device_are_what_was_copied() -> None:
    found = Copies(torch, CPU, 1 << 20, lambda _: None).run()
    assert (found["steps"], found["wrong"], found["bytes"]) == (6, [], 1 << 20)
    between = Copies(torch, CPU, 1 << 20, lambda _: None).between(["cpu:0", "cpu:1"])
    assert (between["steps"], between["wrong"]) == (2, [])


@pytest.mark.long
def test_a_node_that_computes_and_copies_wrongly_is_named_with_the_flipped_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three nodes, each with a real rank of torch; every node is one device of one model."""
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(FAULT)
    cluster = patch(monkeypatch, LocalCluster(tmp_path, ["n1", "n2", "n3"]))
    cluster.nodes["n3"] = LocalConnection({"PYTHONPATH": str(tmp_path / "fault")})
    monkeypatch.setattr(plans, "CPU_PRODUCTS_S", 0.2)
    words = ["preflight", "--active", "--yes", "--device", "cpu", "--min-free", "0", "--json"]
    words += ["--check", "active.compute,active.copy", "--env", "OMP_NUM_THREADS=1"]
    assert cli.run([*words, str(cluster.hostfile)]) == 1
    out, err = capsys.readouterr()
    assert "products    seeded ones for 0.2 s, compared bit by bit" in err
    report = json.loads(out)
    bad = [one for one in report["checks"] if one["verdict"] != "PASS"]
    assert {(one["verdict"], one["id"], *one["nodes"]) for one in bad} == {
        ("FAIL", "active.compute", "n3"),
        ("FAIL", "active.copy", "n3"),
    }
    wrong, copies = (
        next(one for one in bad if one["id"] == f"active.{name}") for name in ("compute", "copy")
    )
    count = report["active"]["products"]["n3"][0]["products"][0]["count"]
    assert wrong["evidence"] == (
        f"CPU computes wrongly: {count} of {count} fp32 products differ from the other 2 CPUs of"
        " this model (3 bits flipped in 3 values)"
    )
    assert "TORCH_NCCL_NAN_CHECK=1" in wrong["fix"]
    assert "-x n3" in wrong["fix"]
    assert copies["evidence"].startswith(
        "CPU copies wrongly: host to device, pageable: 1 bit flipped in 1 value, the first at byte 308"
    )
    assert report["bad_nodes"] == ["n3"]
