"""The plan of a run: where its numbers come from, what it needs on the disk, and its verdict."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.checkpoints.figures import MTBF_S
from clusterctl.checkpoints.on_disk import FreeSpace, checkpoints_in, free_space
from clusterctl.checkpoints.plan import Plan, Stated, make_plan
from clusterctl.checkpoints.report import about, disk_lines, document, verdict
from clusterctl.checkpoints.subject import Subject, read_subject
from clusterctl.cli import run as cli
from clusterctl.errors import UsageError
from tests.clusterctl.checkpoints.run_directories import MB, Run, failing_run

EACH = 9 * MB + 1000  # bytes of a checkpoint of these runs
EXTRA = 2 * MB + (64 << 20)  # while it is written


def read(run: Run, free: int = 10**12, *, all_runs: bool = False) -> Subject:
    subject = read_subject(str(run.path), None, (), all_runs=all_runs)
    return replace(subject, space=FreeSpace(run.path, free, 10**12))


def plan(run: Run, free: int = 10**12, **stated: float | int) -> Plan:
    return make_plan(read(run, free), Stated(**stated), run.at_s)  # type: ignore[arg-type]


@pytest.mark.long
def test_all_is_measured_on_a_run_that_has_failed_often_enough(tmp_path: Path) -> None:
    found = plan(failing_run(tmp_path / "001-x"))
    values = {name: figure.value for name, figure in found.figures.items()}
    assert values == {
        "save_stall_s": 0.5, "save_write_s": 7.5, "step_s": pytest.approx(2, rel=0.01),
        "mtbf_s": pytest.approx(900, rel=0.01), "detect_s": 10.0, "restart_s": 60.0,
    }  # fmt: skip
    assert {figure.source for figure in found.figures.values()} == {"measured"}
    assert found.costs.best_s == pytest.approx(30.0, rel=0.01)
    assert (found.best_steps, found.now and found.now.ckpt_every) == (15, 100)
    assert found.best is not None
    assert found.now is not None
    assert found.best.ettr > found.now.ettr
    assert found.exit_code == 0


@pytest.mark.long
def test_with_too_few_failures_the_assumption_counts_as_one_and_is_named(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x", times=1)
    figure = plan(run).figures["mtbf_s"]
    assert figure.source == "assumed"
    assert figure.value == pytest.approx((900 + MTBF_S) / 2, rel=0.01)
    assert "1 failure in 15 min" in figure.why
    assert "1 in 1 d 00 h is added" in figure.why


@pytest.mark.long
def test_more_ranks_fail_more_often(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x")
    few = plan(run, ranks=2).figures["mtbf_s"].value
    many = plan(run, ranks=8).figures["mtbf_s"].value
    assert few == pytest.approx(4 * (many or 0))


@pytest.mark.long
def test_runs_beside_it_count_if_asked(tmp_path: Path) -> None:
    run = Run(tmp_path / "002-x")
    run.start()
    run.train(5)
    run.save()
    failing_run(tmp_path / "001-x")
    alone, all_of_them = (
        make_plan(read(run, all_runs=together), Stated(), run.at_s) for together in (False, True)
    )
    assert alone.figures["mtbf_s"].source == "assumed"
    assert all_of_them.figures["mtbf_s"].source == "measured"


@pytest.mark.long
def test_what_is_stated_replaces_what_is_on_record(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x")
    found = plan(run, mtbf_s=7200.0, stall_s=4.0, step_s=3.0)
    assert found.costs.best_s == 240.0
    assert found.best_steps == 80
    assert found.figures["mtbf_s"].text == "option: --mtbf"


def test_the_save_at_the_end_says_nothing_about_a_stall(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(100)
    run.save(stall_s=0.2)
    run.train(100)
    run.save(stall_s=8.0)
    run.event("done")
    assert plan(run).figures["save_stall_s"].value == 0.2


def test_a_run_needs_room_for_what_it_has_yet_to_save(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x", "--ckpt-every", "100")
    run.start()
    run.train(300)
    run.save()
    need = plan(run).disk.need
    assert need is not None
    assert (need.saves, need.kept) == (7, 8)  # of 1,000 steps
    assert need.more_peak_bytes == 7 * EACH + EXTRA
    assert need.end_bytes == 8 * EACH
    told = " ".join(" ".join(disk_lines(plan(run))).split())
    assert "; 65.9 MiB beside it while it is written retention" in told
    assert "126 MiB more while the save of step 1,000 is written; " in told
    assert "held: 8.58 MiB in 1 checkpoint now, 68.7 MiB in 8 checkpoints at the end" in told


def test_what_does_not_fit_is_exit_code_1_with_what_would_fit(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x", "--ckpt-every", "100")
    run.start()
    run.train(300)
    run.save()
    found = plan(run, free=EXTRA + 3 * EACH)
    assert found.exit_code == 1
    assert "do not fit: they need 126 MiB more and 91.7 MiB are free" in verdict(found)
    assert verdict(found).endswith("; keep_checkpoints = 3 fits")
    hopeless = plan(run, free=EACH)
    assert "no keep_checkpoints fits, so free" in verdict(hopeless)


def test_a_finished_run_needs_nothing_more(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(300)
    run.save()
    run.event("done")
    found = plan(run, free=0)
    assert found.exit_code == 0
    assert "the run saves no more" in verdict(found)
    assert about(found).endswith("finished, step 300 of 300, 2 ranks")


@pytest.mark.long
def test_free_space_that_is_unknown_is_never_enough(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x")
    subject = replace(read(run), space=None, space_why="/data: Stale file handle")
    found = make_plan(subject, Stated(), run.at_s)
    assert found.exit_code == 3
    assert "free space is unknown: /data: Stale file handle" in verdict(found)


def test_without_a_length_only_a_bounded_number_of_checkpoints_is_known_to_fit(
    tmp_path: Path,
) -> None:
    for number, keep, code in ((1, "-1", 3), (2, "3", 0)):
        endless = ("--max-steps", "none", "--lr-schedule", "none", "--keep-checkpoints", keep)
        run = Run(tmp_path / f"00{number}-x", *endless)
        run.save(each=MB)
        found = plan(run, step_s=2.0)
        assert found.exit_code == code
    assert found.disk.need is not None
    assert found.disk.need.more_peak_bytes == 3 * EACH + EXTRA


def test_epoch_ends_count_only_where_their_number_is_known(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x", "--ckpt-every", "0", "--ckpt-at-epoch-end")
    run.start()
    run.train(100, epoch=0)
    run.save()
    assert plan(run).exit_code == 3
    run.train(1, epoch=1)
    need = plan(run).disk.need
    assert need is not None
    assert need.saves == 9  # 200, 300, ... 1,000


def test_a_step_time_that_is_unknown_is_exit_code_3(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.save()
    found = plan(run)
    assert (found.best_steps, found.rows, found.exit_code) == (None, (), 3)
    assert document(found)["inputs"]["unknown"] == {
        "step_s": "no step on record; --step-time SECONDS states it"
    }


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(3)
    run.save()
    (run.path / "epoch0-global_step9").mkdir()  # being deleted, or of another program
    (run.path / ".tmp-epoch0-global_step12").mkdir()
    damaged = run.path / "epoch0-global_step10"
    damaged.mkdir()
    (damaged / "manifest.json").write_text('{"files": {"model/x": {"size": "much"}}}')
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run.path / "epoch0-global_step3", elsewhere)
    (run.path / "epoch0-global_step11").symlink_to(elsewhere)
    (found,), left_out = checkpoints_in(run.path)
    assert (found.step, found.size.total_bytes) == (3, EACH)
    said = {
        "epoch0-global_step10: its manifest.json is damaged",
        "epoch0-global_step11: its folder is a link: links are not followed",
    }
    assert set(left_out) == said


@pytest.mark.long
def test_checkpoint_that_is_not_counted_is_told(tmp_path: Path, capsys) -> None:
    """Its folder may have been moved to another disk, with a link in its place."""
    run = failing_run(tmp_path / "001-x", times=1)
    run.save()
    (path,) = list(run.path.glob("epoch0-global_step*"))[-1:]
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    cli(["plan-checkpoints", str(run.path)])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"left out checkpoints that are not counted: {path.name}: its folder is a link" in shown
    cli(["plan-checkpoints", str(run.path), "--json"])
    assert json.loads(capsys.readouterr().out)["left_out"][0].startswith(f"{path.name}: ")


def test_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    space = free_space(tmp_path / "not" / "yet")
    assert space.folder == tmp_path
    assert 0 < space.free_bytes <= space.total_bytes


@pytest.mark.long
def test_the_newest_run_of_a_folder_is_found(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x", times=1)
    assert read_subject(str(tmp_path), None, (), all_runs=False).name == str(run.path)
    assert read_subject(None, tmp_path, (), all_runs=False).name == str(run.path)
    for name, outputs in ((None, tmp_path / "none"), (str(run.path / "ranks"), None)):
        with pytest.raises(UsageError):
            read_subject(name, outputs, (), all_runs=False)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"config": 3}', '{"config": {"ckpt_every": "x"}}']
)
def test_a_config_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    run = failing_run(tmp_path / "001-x", times=1)
    (run.path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json is not a run's config"):
        read_subject(str(run.path), None, (), all_runs=False)


def test_a_wrong_option_names_the_one_that_is_like_it(capsys) -> None:
    assert cli(["plan-checkpoints", "--step-tme", "3"]) == 2
    assert "no option --step-tme\n  hint: did you mean --step-time?" in capsys.readouterr().err
