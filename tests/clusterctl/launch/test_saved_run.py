"""The file from which another supervisor continues: what is written is read, damage is one sentence."""

from __future__ import annotations

import contextlib
import json
import stat
from pathlib import Path

import pytest

from checks.facts import LaunchNeeds
from clusterctl.errors import UsageError
from clusterctl.launch import environment, saved_run
from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.plan import LaunchPlan, Timing, assign_ranks
from clusterctl.launch.restart.budget import Failure
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.saved_run import SavedRun
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits

NODES = (Node("n1", "10.0.0.1", 2200, labels=(("rack", "a"),)), Node("n2", slots=8))
SPARE = Node("n3")
ROOT = Cause(
    Kind.SIGNAL, "9", "n2", 3, Evidence(Source.EXIT_CODE, "killed by SIGKILL"), note="maybe"
)  # fmt: skip


def saved(run_dir: Path) -> SavedRun:
    plan = LaunchPlan(
        run_id="20261123-000000-abc123",
        config="stage1",
        run_dir=run_dir,
        workdir=Path("/code"),
        python="/env/bin/python",
        device="cuda",
        shares=assign_ranks(NODES, {"n1": 4, "n2": 8}),
        address="10.0.0.1",
        address_fixed=False,
        ports=(29500, 29501),
        environment=environment.build({"WANDB_API_KEY": "k" * 20}, run_dir=run_dir),
        program=("-m", "trainer.train", "stage1"),
        starter=("/env/bin/python", "-m", "trainer.starter"),
        preload=("trainer.starter.train_modules",),
        timing=Timing(lease_s=7.0),
        attempt=3,
        checkpoint="epoch0-global_step50",
    )
    needs = LaunchNeeds(
        "/env/bin/python",
        29500,
        {"n1": 4},
        "cuda",
        "/out",
        1 << 30,
        files=("/a",),
        at_first=("/a",),
    )
    rules = Rules(
        5, NODES, (SPARE,), 1, {"n1": 4, "n2": 8, "n3": 8}, needs, Path("/c/exclude.toml"),
        accepted=(("gpu.busy", "n1"),),
    )  # fmt: skip
    past = Past(
        failures=(Failure(ROOT, "epoch0-global_step50", has_trained=True),),
        unproved={"n1": "tcp: no answer"},
        barred={"n2": "Xid 79"},
        entered=frozenset({"n2"}),
        damaged=frozenset({"epoch0-global_step60"}),
    )
    return SavedRun(plan, rules, Limits(tcp_s=9.0), 128, True, "running", past)


def test_what_was_written_is_read_and_only_its_user_can(tmp_path: Path) -> None:
    run = saved(tmp_path)
    run.write()
    assert saved_run.read(tmp_path) == run
    assert stat.S_IMODE((tmp_path / saved_run.FILE).stat().st_mode) == 0o600
    saved_run.remove(tmp_path)
    with pytest.raises(UsageError, match=f"no run continues in {tmp_path}"):
        saved_run.read(tmp_path)


def test_run_of_another_version_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    saved(tmp_path).write()
    file = tmp_path / saved_run.FILE
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "version": "0.0.1"}))
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"was started by clusterctl 0\.0\.1, this is"):
        saved_run.read(tmp_path)
    assert file.read_bytes() == before


def test_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    saved(tmp_path).write()
    file = tmp_path / saved_run.FILE
    whole = file.read_bytes()
    for cut in range(0, len(whole) - 1, len(whole) // 40):
        file.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match=r"\.supervisor\.json cannot be read: "):
            saved_run.read(tmp_path)
    document = json.loads(whole)
    for name in set(document) - {"version"}:
        for value in (None, 7, "x", []):
            file.write_text(json.dumps({**document, name: value}))
            with contextlib.suppress(UsageError):  # a sentence, or another value that is possible
                saved_run.read(tmp_path)


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    saved(tmp_path).write()
    file = tmp_path / saved_run.FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be read"):
        saved_run.read(tmp_path)
