"""The file from which another supervisor continues: what is written is read, damage is one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from checks.facts import LaunchNeeds
from clusterctl.cli import run as command
from clusterctl.errors import LaunchFailed, UsageError
from clusterctl.launch import environment, saved_run
from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.head.session import _refuse_second
from clusterctl.launch.plan import LaunchPlan, Timing, assign_ranks
from clusterctl.launch.restart.budget import Failure
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.saved_run import SavedRun
from clusterctl.nodes import Node
from clusterctl.runs import owner
from clusterctl.transport.base import Limits
from tests.clusterctl.runs.attempts_of import Attempts

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


def test_only_what_this_user_wrote_for_this_directory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, home = tmp_path / "run", tmp_path / "state"
    run_dir.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run = saved(run_dir)
    run.write()
    assert saved_run.read(run_dir) == run
    shutil.copytree(run_dir, tmp_path / "copy")
    with pytest.raises(saved_run.Given, match=r"copy is a copy of .*/run: nothing is done"):
        saved_run.read(tmp_path / "copy")
    file = run_dir / saved_run.FILE
    whole = json.loads(file.read_text())
    (key,) = (home / ".local/state/clusterctl").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    for changed in (
        {**whole, "width": 65},
        {**whole, "plan": {**whole["plan"], "python": "/bin/evil"}},
        {**whole, "seal": None},
        {**whole, "seal": "0" * 64},
        {**whole, "seal": "\u00e9"},
        {name: value for name, value in whole.items() if name != "seal"},
    ):
        file.write_text(json.dumps(changed))
        with pytest.raises(saved_run.Given, match="not written by this user's clusterctl"):
            saved_run.read(run_dir)
    file.write_text(json.dumps(whole))
    assert saved_run.read(run_dir) == run
    secret = key.read_bytes()
    for other in (b"", secret[:-1], secret + b"x", b"x" * 32):
        key.write_bytes(other)
        with pytest.raises(saved_run.Given):
            saved_run.read(run_dir)
    key.write_bytes(secret)
    key.chmod(0o644)  # others may have read it
    with pytest.raises(saved_run.Given):
        saved_run.read(run_dir)


def test_secret_is_kept_elsewhere_where_the_home_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr("clusterctl.seal.own_path", lambda name: str(tmp_path / name))
    run = saved(tmp_path)
    run.write()
    assert saved_run.read(tmp_path) == run


def test_given_run_directory_is_told_and_nothing_is_asked_or_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an unpacked archive: the file belongs to this user, and somebody else wrote it."""
    journal = Attempts()
    journal.attempt()
    journal.train(3)
    run_dir = journal.write(tmp_path / "001-given")
    with socket.create_server(("127.0.0.1", 0)) as node:
        node.settimeout(0)
        document = saved(run_dir)._document()
        share = document["plan"]["shares"][0]["node"]
        share.update(address="127.0.0.1", port=node.getsockname()[1], labels=[["identity", str(tmp_path / "key")]])  # fmt: skip
        document["plan"]["shares"] = document["plan"]["shares"][:1]
        (run_dir / saved_run.FILE).write_text(json.dumps(document))
        (run_dir / saved_run.FILE).chmod(0o600)
        before = sorted(run_dir.rglob("*"))
        assert command(["status", str(run_dir)]) == 3
        out = capsys.readouterr().out
        assert "state      unknown: " in out
        assert "was not written by this user's clusterctl" in out
        assert "attempt    1 on" in out
        for words in (["attach"], ["attach", "--detach"]):
            assert command([*words, str(run_dir)]) == 2
            assert "was not written by this user's clusterctl" in capsys.readouterr().err
        assert sorted(run_dir.rglob("*")) == before
        with pytest.raises(BlockingIOError):
            node.accept()


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    saved(tmp_path).write()
    file = tmp_path / saved_run.FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be read"):
        saved_run.read(tmp_path)


def test_second_run_of_a_job_is_refused_whichever_version_has_the_first(tmp_path: Path) -> None:
    """Nodes refuse it as well, but between two attempts none of them knows of the first."""
    first, second = saved(tmp_path / "001"), saved(tmp_path / "002")
    for run in (first, second):
        run.plan.run_dir.mkdir()
    first.write()
    file = first.plan.run_dir / saved_run.FILE
    whole = json.loads(file.read_text())
    lock = owner.take(first.plan.run_dir)
    try:
        other = {"version": "0.0.1", "seal": "x", "past": 7, "limits": None}
        for changed in (whole, {**whole, **other}):
            file.write_text(json.dumps(changed))
            with pytest.raises(LaunchFailed, match=r"the same job runs already \(run 20261123-"):
                _refuse_second(second)
        another = {**whole, "plan": {**whole["plan"], "config": "stage2"}}
        file.write_text(json.dumps(another))
        _refuse_second(second)
        elsewhere = replace(second, rules=replace(second.rules, nodes=(Node("m1"),), spares=()))
        file.write_text(json.dumps(whole))
        _refuse_second(elsewhere)
        # Its supervisor lives, and what it trains cannot be found out.
        file.write_text(json.dumps({**whole, "plan": {"run_id": "x"}}))
        with pytest.raises(LaunchFailed, match=r"001 is the same job is not known \(process \d+"):
            _refuse_second(second)
        file.unlink()  # it is at its end
        _refuse_second(second)
    finally:
        os.close(lock)
    file.write_text(json.dumps(whole))
    _refuse_second(second)  # no supervisor: its agents refuse
