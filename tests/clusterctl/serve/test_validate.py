"""The validation loss of checkpoints, measured beside the training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.transport.loopback.nodes import LoopbackCluster
from tests.clusterctl.serve import stand_in
from tests.clusterctl.serve.serving import command, serve, videos
from trainer.runlog import telemetry, validation
from trainer.runlog.json_file import read_object


def make_run(folder: Path, steps: tuple[int, ...] = ()) -> Path:
    """A run that keeps clips for validation."""
    run = stand_in.make_run(folder, steps)
    text = (run / "config.json").read_text()
    kept = '"config": {"validation": {"share": 0.1, "data_path": null}, '
    (run / "config.json").write_text(text.replace('"config": {', kept))
    return run


def losses(run: Path) -> dict[int, float]:
    events = telemetry.read(run, validation.FILE)
    return {point.step: point.model for point in validation.final_points(events)}


@pytest.mark.long
def test_losses_of_each_checkpoint_are_measured_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = make_run(tmp_path / "001-run", (10, 20))
    pages: list[Path] = []
    assert serve(run, python=str(python), validate=True, page=pages.append) == 0
    assert losses(run) == {10: 0.1, 20: 0.05}
    assert pages == [run, run]  # of the videos
    assert len(videos(run)) == 2
    said = capfd.readouterr()
    assert "001-run epoch0-global_step20 validation: loss of step 20" in said.out
    assert "001-run: validation loss of each checkpoint" in said.err
    before = stand_in.made(tmp_path)
    assert serve(run, python=str(python), validate=True) == 0
    assert stand_in.made(tmp_path) == before
    assert len((run / validation.FILE).read_text().splitlines()) == 2


@pytest.mark.long
def test_no_videos_needs_no_prompts(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = make_run(tmp_path / "001-run", (10,))
    (run / "prompts.txt").unlink()
    assert serve(run, python=str(python), validate=True, no_videos=True) == 0
    assert losses(run) == {10: 0.1}
    assert not list(run.rglob("*.mp4"))
    with pytest.raises(UsageError, match="--no-videos leaves nothing to do without --validate"):
        serve(run, no_videos=True)


@pytest.mark.long
def test_another_checkpoint_of_the_same_name_is_measured_again(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = make_run(tmp_path / "001-run", (10,))
    assert serve(run, python=str(python), validate=True, no_videos=True) == 0
    manifest = run / "epoch0-global_step10/manifest.json"
    os.utime(manifest, (manifest.stat().st_mtime + 100, manifest.stat().st_mtime + 100))
    assert serve(run, python=str(python), validate=True, no_videos=True) == 0
    made = [Path(line).name for line in stand_in.made(tmp_path)]
    assert made == ["losses.json", "losses.json"]
    stamp = read_object(run / "samples/validation/epoch0-global_step10/losses.json")["stamp"]
    assert stamp.startswith(str(manifest.stat().st_mtime_ns))


@pytest.mark.long
def test_two_servers_measure_each_checkpoint_once(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path, delay_s=0.1)
    run = make_run(tmp_path / "001-run", tuple(range(10, 70, 10)))
    words = ("--python", python, "--once", "--validate", "--no-videos", "--gpus", "none")
    with command(run, *words) as other:
        assert serve(run, python=str(python), validate=True, no_videos=True) == 0
        other.communicate(timeout=120)
    assert other.returncode == 0
    assert sorted(losses(run)) == [10, 20, 30, 40, 50, 60]
    made = stand_in.made(tmp_path)
    assert len(made) == len(set(made)) == 6


def test_a_run_that_keeps_no_clips_is_one_sentence(tmp_path: Path) -> None:
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    with pytest.raises(UsageError, match="001-run keeps no clips for validation"):
        serve(run, validate=True)


def test_no_preset_takes_the_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "001-run", (10,))
    presets = tmp_path / "mine.toml"
    presets.write_text("[validation]\nnum_frames = 1\n")
    with pytest.raises(UsageError, match="no preset can be called validation"):
        serve(run, presets=presets)


@pytest.mark.long
def test_losses_come_back_from_a_node_without_the_runs_folder(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = make_run(tmp_path / "far/007-run", (10,))
    near = tmp_path / "near"
    with LoopbackCluster(["n1", "n2"], tmp_path / "nodes", {"HOME": str(tmp_path)}) as nodes:
        options = {"nodes": nodes.hostfile, "only": "n2", "copies": near, "python": str(python)}
        options |= {"validate": True, "no_videos": True}
        assert serve(f"n1:{run}", **options) == 0
        assert losses(near / "n1-007-run") == {10: 0.1}
        # Another checkpoint takes the name: what an earlier server has fetched is not its own.
        manifest = run / "epoch0-global_step10/manifest.json"
        os.utime(manifest, (manifest.stat().st_mtime + 100, manifest.stat().st_mtime + 100))
        assert serve(f"n1:{run}", **options) == 0
    assert [Path(line).name for line in stand_in.made(tmp_path)] == ["losses.json"] * 2
    events = list(telemetry.read(near / "n1-007-run", validation.FILE))
    assert [event.time_s for event in events] == [
        pytest.approx(events[0].time_s + d) for d in (0, 100)
    ]
