"""Which nodes a restart refuses: those that have become worse than the launch accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from checks.facts import FileSeen, Fleet, GpuProcess, NodeFacts, Unknown
from checks.runner import run_checks
from clusterctl.commands.launch import _accepted as accepted
from clusterctl.commands.launch import _look_at_spares as look_at_spares
from clusterctl.launch.restart import recheck as subject
from clusterctl.launch.restart.between import no_room
from clusterctl.launch.restart.recheck import recheck, unfit
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.start import Prepared
from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.remote import payload as ship
from clusterctl.remote.cluster import Cluster
from tests.checks.healthy import disk, full, machine, needs
from tests.clusterctl.launch.test_saved_run import saved
from tests.clusterctl.payload.local import LocalConnection
from trainer.runlog.retention import OVERHEAD_BYTES

NAMES = ("n1", "n2", "n3", "n4")


def facts(**changed: dict[str, object]) -> list[NodeFacts]:
    return [full(name, **changed.get(name, {})) for name in NAMES]


def busy(name: str) -> dict[str, object]:
    gpus: Any = full(name).gpus
    process = GpuProcess(77, "GPU-0", 5, "python", "bob", 60.0, "python x.py")
    return {"gpus": dataclasses.replace(gpus, processes=(process,))}


def test_gpus_that_the_user_shares_bar_no_restart() -> None:
    nodes = facts(n2=busy("n2"))
    assert list(unfit(nodes, [], needs())) == ["n2"]
    assert unfit(nodes, [], needs(), [("gpu.busy", "n2")]) == {}
    assert list(unfit(nodes, [], needs(), [("gpu.busy", "n1")])) == ["n2"]
    assert unfit(nodes[2:], nodes[:2], needs(), [("gpu.busy", "n2")]) == {}


def test_consent_is_for_what_was_shown_and_yes_for_every_node() -> None:
    report = run_checks(Fleet(tuple(facts(n2=busy("n2"))), needs()))
    prepared = Prepared("cuda", {}, report)
    assert accepted(prepared, []) == (("gpu.busy", "n2"),)
    every = [Node("n2"), Node("n5")]
    assert accepted(prepared, every) == (("gpu.busy", "n2"), ("gpu.busy", "n5"))
    assert accepted(Prepared("cuda", {}, None), []) == ()


def test_spare_that_is_a_second_name_of_a_node_is_at_fault_alone() -> None:
    """host.same_machine names both; the node has trained."""
    *nodes, spare = facts(n4={"machine": machine("boot-n1")})
    found = unfit(nodes, [spare], needs())
    assert list(found) == ["n4"]
    assert found["n4"].startswith("host.same_machine: one machine under several names")


def test_of_two_spares_that_are_one_machine_the_first_may_be_used() -> None:
    nodes = facts(n4={"machine": machine("boot-n3")})
    assert list(unfit(nodes[:2], nodes[2:], needs())) == ["n4"]


def test_spares_do_not_outvote_the_node_that_has_trained() -> None:
    other = {"files": {needs().files[0]: FileSeen(True, size_bytes=5)}}
    nodes = facts(n2=other, n3=other, n4=other)
    assert list(unfit(nodes[:1], nodes[1:], needs())) == ["n2", "n3", "n4"]


def test_node_that_is_lost_is_named_and_others_are_judged_without_it() -> None:
    nodes = [full("n1", unreached=Unknown("tcp: no answer")), *facts()[1:]]
    assert list(unfit(nodes, [], needs())) == ["n1"]
    assert unfit([], nodes[1:], needs()) == {}


def rechecked(
    monkeypatch: pytest.MonkeyPatch, found: list[NodeFacts], **changed: Any
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What `recheck` says of nodes with these facts, and the files that it asks for."""
    asked: list[tuple[str, ...]] = []

    def ask(_cluster: Cluster, _python: str, _port: int, *where: Any) -> tuple[NodeFacts, ...]:
        asked.append(where[2])
        return tuple(found)

    monkeypatch.setattr(subject, "ask_nodes", ask)
    nodes = tuple(map(Node, NAMES))
    plan = dataclasses.replace(saved(Path("/data/001")).plan, **changed)
    wanted = needs(files=("/data/clips.csv", "/data/w"), at_first=("/data/w",))
    cluster = Cluster(list(nodes), None)  # type: ignore[arg-type]
    return dict(recheck(plan, cluster, Rules(None, nodes, needs=wanted), nodes)), asked[0]


def test_disk_that_the_run_has_filled_bars_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    small = disk(path="/data")
    small = dataclasses.replace(small, free_bytes=79 << 20)
    nodes = facts(**{name: {"disks": {"/data": small}} for name in NAMES})
    assert unfit(nodes, [], needs())  # too little for a launch
    assert rechecked(monkeypatch, nodes)[0] == {}


def test_weights_to_begin_with_are_needed_until_the_first_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = rechecked(monkeypatch, facts(), checkpoint=None)
    assert asked == ("/data/clips.csv", "/data/w")
    assert list(found) == list(NAMES)  # it was not measured there
    assert rechecked(monkeypatch, facts()) == ({}, ("/data/clips.csv",))


def listed(run_dir: Path) -> dict[str, Any]:
    args = {"run_dir": str(run_dir), "timeout_s": 10.0}
    return ship.probe(LocalConnection(), "launch.checkpoints", args, 20)


def make(run_dir: Path, step: int, **sizes: int) -> None:
    folder = run_dir / f"epoch0-global_step{step}"
    folder.mkdir(parents=True)
    files = {name.replace("_", "/"): {"size": size} for name, size in sizes.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": files}))


@pytest.mark.long
def test_space_is_judged_by_the_next_checkpoint(tmp_path: Path) -> None:
    assert listed(tmp_path / "none")["complete"] == []
    make(tmp_path, 10, model_a=1)
    make(tmp_path, 20, model_a=3 << 20, ema_a=1 << 20)
    found = listed(tmp_path)
    assert found["need"] == 5 << 20  # the average twice
    part = tmp_path / ".tmp-epoch0-global_step30" / "optimizer"
    part.mkdir(parents=True)
    (part / "0").write_bytes(b"x" * (50 << 20))  # the next save deletes it
    assert abs(listed(tmp_path)["room"] - found["room"]) < 40 << 20
    (tmp_path / "epoch0-global_step20" / "manifest.json").write_text("{")
    assert listed(tmp_path)["need"] is None
    assert no_room(tmp_path, 5, 5 + OVERHEAD_BYTES) == ""
    assert no_room(tmp_path, None, 0) == ""
    assert "next checkpoint needs 64 MiB" in no_room(tmp_path, 5, OVERHEAD_BYTES)


@pytest.mark.long
def test_order_of_checkpoints_is_that_of_the_pointer_not_of_clocks(tmp_path: Path) -> None:
    make(tmp_path, 30)
    make(tmp_path, 40)
    make(tmp_path, 20)
    (tmp_path / "latest").write_text("epoch0-global_step40\n")
    assert listed(tmp_path)["complete"][-1] == "epoch0-global_step40"
    (tmp_path / "latest").write_text("epoch0-global_step99\n")
    assert listed(tmp_path)["complete"][-1] == "epoch0-global_step20"


def test_launch_tells_of_a_spare_that_could_not_stand_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second name of a node, which would be found out after the first failure only."""
    *nodes, spare = facts(n4={"machine": machine("boot-n1")})
    report = run_checks(Fleet((spare,), needs()))
    seen = Prepared("cuda", {"n4": 8}, report, needs=needs(), facts=(spare,))
    monkeypatch.setattr("clusterctl.launch.start.prepare", lambda *_, **__: seen)
    slots = dict.fromkeys(NAMES[:3], 8)
    prepared = Prepared("cuda", slots, None, needs=needs(), facts=tuple(nodes))
    wanted: Any = Wanted("auto")
    cluster = Cluster([Node("n4")], None)  # type: ignore[arg-type]
    line: Any = None
    assert look_at_spares(Output(), cluster, wanted, prepared, line) == {"n4": 8}
    said = capsys.readouterr().err
    assert "spare n4 could not be used now: host.same_machine: one machine under" in said


@dataclasses.dataclass(frozen=True)
class Wanted:
    device: str
