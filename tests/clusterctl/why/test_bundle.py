"""A bundle of a run directory that somebody else wrote holds nothing from outside of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clusterctl.runs import hidden_values
from clusterctl.why.bundle import Bundle, collect, lines, to_json
from clusterctl.why.masked import Masker
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


# What takes the masker longest: many names of secrets, many values, many words.
COSTLY = {
    "events.jsonl": b'{"event": "x", "text": "'
    + b"key: Aa1 -p --token y mysql login " * 40
    + b'"}\n',
    "incidents.jsonl": b"[" + b'["key"],' * 500_000 + b"[]]\n",
    "plan.json": b'{"key": [' + b'{"token":"x","a":["-p","key"]},' * 100_000 + b"1]}",
    "config.json": b'["' + b"key=a" * 200_000 + b'"]',
    "supervisor.log": b"-----BEGIN PRIVATE KEY-----\n" + b"api_key=" * 16_000,
    "ranks/0.log": b"curl mysql -p redis-cli login passwd x Basic Bearer sig= eyJ\n",
}


def costly(run_dir: Path, size: int) -> None:
    (run_dir / "ranks").mkdir()
    for name, text in COSTLY.items():
        (run_dir / name).write_bytes(text * (size // len(text)))
    for rank in range(1, 40):
        (run_dir / f"ranks/{rank}.log").hardlink_to(run_dir / "ranks/0.log")


@pytest.mark.parametrize("is_given", [False, True], ids=["plain", "values"])
def test_no_bundle_takes_long_and_what_was_not_looked_at_is_masked_and_told(
    run_dir: Path, capsys: pytest.CaptureFixture[str], is_given: bool
) -> None:
    costly(run_dir, 4 << 20)
    if is_given:  # as somebody else would write it
        values = [{"characters": size, "sha256": "0" * 64} for size in range(6, 180)]
        document = {"schema": 1, "salt": "x", "values": values}
        (run_dir / hidden_values.FILE).write_text(json.dumps(document))
    begun_s = time.process_time()
    bundle = collect(run_dir, {}, "", 0.0)
    assert time.process_time() - begun_s < 4
    whole = {one.name: one.whole for one in bundle.entries}
    assert whole["ranks/39.log"] > 300
    assert bundle.entries[-1].cut_bytes > 4_000_000
    assert any("of these whole: they take long to look at" in line for line in lines(bundle))
    assert to_json(bundle)["files"][-1]["lines_masked_whole"] == whole["ranks/39.log"]
    assert set(texts(bundle)["ranks/39.log"].split()) == {"***"}


def test_lines_without_a_secret_are_kept_when_no_time_is_left() -> None:
    masker = Masker(None, 0.0)
    steps, rest = "step 1, loss 0.5\n" * 8, "x\n" * 7
    for line in ("api_key=Aa1", "\\u006bey", "see https://me:x@host"):
        found = masker.mask("0.log", f"{steps}{line}\n{rest}{steps}")
        assert found.text == steps + "***\n" * 8 + steps
        assert (found.changed, found.whole) == (8, 8)


def test_of_a_name_that_is_there_twice_neither_value_is_shown() -> None:
    line = '{"token":"hf_aaaaaaaaaaaaaaaaaaaa","token":"","text":"x"}'
    assert "hf_" not in Masker(None).mask("events.jsonl", line).text


def test_of_many_logs_each_has_its_end(run_dir: Path) -> None:
    (run_dir / "ranks").mkdir()
    for rank in range(1000):
        (run_dir / f"ranks/{rank}.log").write_bytes(b"a line\n" * 5000 + b"the end\n")
    found = [text for name, text in texts(collect(run_dir, {}, "", 0.0)).items() if "rank" in name]
    assert len(found) == 1000
    assert all(text.endswith("\nthe end\n") and len(text) < 17_000 for text in found)


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
