"""A bundle of a run directory that somebody else wrote holds nothing from outside of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.why.bundle import Bundle, collect
from tests.clusterctl.runs.attempts_of import Attempts

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = Attempts()
    run.attempt()
    run.train(3)
    home = tmp_path / "home"
    home.mkdir()
    (home / "id_ed25519").write_text(SECRET)
    return run.write(tmp_path / "outputs" / "001-x")


def texts(bundle: Bundle) -> dict[str, str]:
    return {one.name: one.data.decode() for one in bundle.entries}


@pytest.mark.parametrize(
    "stacks",
    ["{home}", "/{home}", "../../home", "stacks/../../../home", "stacks/out", "stacks/..", "stacks",
     "ranks", ".", "", "stacks/hang-1/../../../../home", "stacks/hang-1/out", "stacks\0", "stacks/a\0b",
     "linked/hang-1"],
)  # fmt: skip
def test_stacks_of_an_incident_lead_nowhere_else(run_dir: Path, tmp_path: Path, stacks: str) -> None:  # fmt: skip
    home = tmp_path / "home"
    (run_dir / "stacks" / "hang-1").mkdir(parents=True)
    (run_dir / "stacks" / "out").symlink_to(home)
    (run_dir / "stacks" / "hang-1" / "out").symlink_to(home)
    (run_dir / "linked").symlink_to(tmp_path)
    (tmp_path / "hang-1").symlink_to(home)
    found = collect(run_dir, {}, stacks.format(home=home), 0.0)
    assert not any(SECRET in text for text in texts(found).values())
    if stacks not in ("", "stacks/out"):
        assert any("no folder of stacks" in why for _, why in found.left_out)


def test_stacks_of_an_incident_are_taken_without_links(run_dir: Path, tmp_path: Path) -> None:
    folder = run_dir / "stacks" / "hang-1"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"a": 1}))
    (folder / "key.txt").symlink_to(tmp_path / "home" / "id_ed25519")
    found = collect(run_dir, {}, "stacks/hang-1", 0.0)
    assert json.loads(texts(found)["stacks/hang-1/report.json"]) == {"a": 1}
    assert SECRET not in str(texts(found))
    assert [name for name, _ in found.left_out] == ["stacks/hang-1/key.txt"]


def test_folders_that_are_links_are_not_followed(run_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "0.log").write_text(SECRET)
    (home / "hang-1").mkdir()
    (home / "hang-1" / "key.log").write_text(SECRET)
    for name in ("ranks", "stacks"):
        (run_dir / name).symlink_to(home)
    assert SECRET not in str(texts(collect(run_dir, {}, "stacks/hang-1", 0.0)))
