"""One server and its samplers: what is made, in which order, and what cannot be made."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from tests.clusterctl.serve import stand_in
from tests.clusterctl.serve.serving import command, serve, videos, wait_for
from trainer.runlog import samples

FIVE = [f"sample_{number:04d}.mp4" for number in range(5)]
WHOLE = ["contact_sheet.png", *FIVE]


@pytest.mark.long
def test_every_checkpoint_gets_its_videos_once_the_newest_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10, 20))
    pages: list[Path] = []
    assert serve(run, python=str(python), page=pages.append) == 0
    assert videos(run) == {"epoch0-global_step10": WHOLE, "epoch0-global_step20": WHOLE}
    assert pages == [run, run]
    order = [Path(line).parent.name for line in stand_in.made(tmp_path)]
    assert order[0] == "epoch0-global_step20"
    found = samples.read(run / "samples/run/epoch0-global_step20")
    assert (found.step, found.preset, len(found.videos)) == (20, "run", 5)
    before = stand_in.made(tmp_path)
    assert serve(run, python=str(python)) == 0
    assert stand_in.made(tmp_path) == before  # nothing again, not even a sheet
    assert "5 videos" in capfd.readouterr().out


@pytest.mark.long
def test_a_video_that_is_missing_is_made_again_and_no_other(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    assert serve(run, python=str(python)) == 0
    (run / "samples/run/epoch0-global_step10/sample_0003.mp4").unlink()
    before = len(stand_in.made(tmp_path))
    assert serve(run, python=str(python)) == 0
    again = [Path(line).name for line in stand_in.made(tmp_path)[before:]]
    assert "sample_0003.mp4" in again
    assert set(again) <= {"sample_0003.mp4", "contact_sheet.png", "index.json"}


@pytest.mark.long
def test_a_run_without_checkpoints_is_waited_for_and_once_ends_with_3(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run")
    assert serve(run, python=str(python)) == 3
    assert "001-run: no complete checkpoint yet" in capfd.readouterr().err
    with command(run, "--python", python) as child:
        assert child.stderr is not None
        assert "preset run, 5 prompts of" in child.stderr.readline()
        assert "no complete checkpoint yet" in child.stderr.readline()
        stand_in.seal(run, 10)
        whole = run / "samples/run/epoch0-global_step10/.served.json"
        wait_for(whole.is_file)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == 130
    assert not list((run / "samples/.serve").iterdir())


@pytest.mark.long
def test_a_checkpoint_that_is_deleted_meanwhile_is_skipped_and_said(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path, delay_s=0.5)
    run = stand_in.make_run(tmp_path / "001-run", (10, 20))
    with command(run, "--python", python, "--once") as child:
        wait_for(lambda: stand_in.made(tmp_path))
        shutil.rmtree(run / "epoch0-global_step10")
        _, said = child.communicate(timeout=120)
    assert "epoch0-global_step10 run: skipped, it was deleted before" in said
    assert child.returncode == 0
    assert videos(run)["epoch0-global_step20"] == WHOLE


@pytest.mark.long
@pytest.mark.parametrize("kind", ["OutOfMemory", "CheckpointError"])
def test_what_cannot_be_made_is_one_sentence_and_exit_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    python = stand_in.make(tmp_path, fail={"make": ("2 videos do not fit into 80 GB", kind)})
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    assert serve(run, python=str(python)) == 1
    said = capfd.readouterr().err
    assert "epoch0-global_step10 run: 2 videos do not fit into 80 GB" in said
    assert "Traceback" not in said
    assert not list((run / "samples").rglob("*.mp4"))


@pytest.mark.slow
def test_a_sampler_that_dies_is_started_again_and_its_batch_given_up_after_three_tries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.serve.server.PAUSE_S", 0.1)
    python = stand_in.make(tmp_path)
    text = python.read_text().replace("say(begun=True, **about)", "os.kill(os.getpid(), 9)")
    python.write_text(text)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    assert serve(run, python=str(python)) == 1
    said = capfd.readouterr().err
    assert said.count("the sampler was killed by signal 9; it is started again") == 3
    assert "epoch0-global_step10 run: the sampler was killed by signal 9" in said


@pytest.mark.long
def test_options_choose_checkpoints(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (5, 10, 20, 30))
    stand_in.seal(run, 40, epoch=1)
    stand_in.seal(run, 50, epoch=1)
    assert serve(run, python=str(python), last_step=10, only_first_of_epoch=True) == 0
    assert list(videos(run)) == ["epoch1-global_step40"]
    assert serve(run, python=str(python), last_step=10, every=20) == 0
    assert list(videos(run)) == ["epoch0-global_step20", "epoch1-global_step40"]


@pytest.mark.long
def test_runs_are_named_by_number_name_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = stand_in.make(tmp_path)
    for number in (655, 656, 657):
        stand_in.make_run(tmp_path / f"outputs/{number}-run", (10,))
    assert serve(numbers=((656,), (657,)), python=str(python)) == 0
    assert not (tmp_path / "outputs/655-run/samples").exists()
    assert serve("outputs", python=str(python)) == 0
    assert videos(tmp_path / "outputs/655-run")["epoch0-global_step10"] == WHOLE
    with pytest.raises(UsageError, match="there is no run 9"):
        serve(numbers=((9,),), python=str(python))


def test_the_plan_alone_makes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10, 20))
    assert serve(run, python=str(python), dry_run=True, names=("low4s", "run")) == 0
    out = capfd.readouterr().out
    assert out.count("to make") == 4
    assert not (run / "samples").exists()


def test_prompts_that_are_missing_or_empty_are_one_sentence(tmp_path: Path) -> None:
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    (run / "prompts.txt").write_text("\n \n")
    with pytest.raises(UsageError, match=r"prompts\.txt has no prompts"):
        serve(run)
    (run / "prompts.txt").unlink()
    with pytest.raises(UsageError, match="there are no prompts for 001-run, preset run"):
        serve(run)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        serve(run, prompts=tmp_path / "none.txt")


def test_a_run_names_no_file_of_this_user_as_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its config or by links, of the file or of a folder; and nothing that never ends."""
    run, secret = stand_in.make_run(tmp_path / "001-run", (10,)), tmp_path / "mine/secret.txt"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    secret.parent.mkdir()
    for path in (secret, secret.with_name("prompts.txt")):
        path.write_text("a secret\n")
    (run / "link.txt").symlink_to(secret)
    (run / "inside.txt").write_text("a cat\n")
    (run / "folder").symlink_to(secret.parent)
    (run / "loop").symlink_to("loop")
    os.mkfifo(run / "pipe")
    (run / "data").mkdir()
    (run / "data/prompts.txt").symlink_to(secret)
    with (run / "long.txt").open("wb") as file:
        file.truncate(3 << 30)
    given = json.loads((run / "config.json").read_text())

    def says(prompts: object, data_path: object = None) -> str:
        given["config"]["sample"]["prompts"] = prompts
        given["config"]["dataset"]["data_path"] = data_path
        (run / "config.json").write_text(json.dumps(given))
        with pytest.raises(UsageError) as refused:
            serve(run, dry_run=True)
        return str(refused.value)

    for name in (f"{secret}", "/etc/passwd", f"{run}/link.txt", f"{run}/folder/secret.txt", f"{run}/../mine/secret.txt", "../mine/secret.txt"):  # fmt: skip
        assert "which is outside of it" in says(name), name
    for name in ("loop", "pipe", "folder", "long.txt", "none", "x" * 5000, "a\0b"):
        assert re.search(r"cannot be read: |which is outside", says(f"{run}/{name}")), name
    (run / "prompts.txt").unlink()
    (run / "prompts.txt").symlink_to(secret)
    assert "it is a link: links are not followed" in says(None)
    (run / "prompts.txt").unlink()
    for name in (f"{run}/data/clips.csv", f"{secret.parent}/clips.csv", "../mine/clips.csv"):
        assert "which is outside of it" in says(None, name), name
    (tmp_path / "here/prompts.txt").write_text("a dog\n")
    given["config"]["sample"]["prompts"] = None
    given["config"]["dataset"]["data_path"] = "clips.csv"  # of the folder that serve is started in
    (run / "config.json").write_text(json.dumps(given))
    assert serve(run, dry_run=True) == 0
    given["config"]["sample"]["prompts"] = f"{run}/inside.txt"
    (run / "config.json").write_text(json.dumps(given))
    assert serve(run, dry_run=True) == 0


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_the_next_start_goes_on(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path, delay_s=20.0)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    with command(run, "--python", python) as child:
        part = run / "samples/run/epoch0-global_step10"
        wait_for(lambda: part.is_dir() and any(".part" in one.name for one in part.iterdir()))
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == 130
    wait_for(lambda: not _processes(tmp_path), 20.0)
    stand_in.make(tmp_path)
    assert serve(run, python=str(python)) == 0
    assert set(WHOLE) <= set(videos(run)["epoch0-global_step10"])


def _processes(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder / "python") in words:
            found.append(path.parent.name)
    return found


@pytest.mark.slow
def test_a_server_that_outlives_the_terminal_is_listed_and_stopped(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    with command(run, "--python", python, "--detach", "--json") as child:
        out, said = child.communicate(timeout=120)
    assert child.returncode == 0, said
    begun = json.loads(out.splitlines()[-1])
    try:
        assert begun["event"] == "detached"
        wait_for((run / "samples/run/epoch0-global_step10/.served.json").is_file)
        with command(run, "--list", "--json") as shown:
            listed = json.loads(shown.communicate(timeout=60)[0])
        assert (listed["pid"], listed["log"]) == (begun["pid"], begun["log"])
    finally:
        with command(run, "--stop") as stopped:
            out, said = stopped.communicate(timeout=60)
    assert (stopped.returncode, out) == (0, "1 server stopped\n")
    wait_for(lambda: not _processes(tmp_path), 20.0)


@pytest.mark.long
def test_two_servers_share_the_work(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path, delay_s=0.05)
    run = stand_in.make_run(tmp_path / "001-run", (10, 20, 30), prompts=8)
    codes: list[int] = []
    with command(run, "--python", python, "--once") as other:
        codes.append(serve(run, python=str(python)))
        other.communicate(timeout=120)
    assert codes == [0]
    assert other.returncode == 0
    made = [line for line in stand_in.made(tmp_path) if line.endswith(".mp4")]
    assert len(made) == len(set(made)) == 24
    assert threading.active_count() < 50


@pytest.mark.long
def test_what_w_and_b_cannot_take_is_one_sentence_and_the_videos_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10, 20))
    (run / "wandb.json").write_text('{"id": "abc123", "online": false}')
    assert serve(run, python=str(python), compute_only=False) == 0
    said = capfd.readouterr().err
    assert said.count("the run of 001-run in W&B is offline, so no videos are sent to it") == 1
    assert videos(run)["epoch0-global_step20"] == WHOLE


@pytest.mark.long
def test_gpus_that_nobody_uses_get_a_sampler_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tool.write_text("#!/bin/sh\necho '0, 71000'\necho '1, 3'\necho '2, 600'\n")
    tool.chmod(0o755)
    assert serve(run, python=str(python), gpus=None) == 0
    said = capfd.readouterr().err
    assert "stand-in on 1" in said
    assert "stand-in on 0" not in said
    tool.write_text("#!/bin/sh\necho '0, 71000'\n")
    stand_in.seal(run, 20)
    assert serve(run, python=str(python), gpus=None) == 3
    assert "the only GPU is in use; --gpus 0 takes one all the same" in capfd.readouterr().err
    assert serve(run, python=str(python), gpus="0") == 0
    assert "stand-in on 0" in capfd.readouterr().err
