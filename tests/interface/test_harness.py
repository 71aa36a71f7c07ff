"""The recordings can fail: a changed word, key, type, value, exit code or stream is a difference."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interface import normal, record
from tests.interface import transcript as recording
from tests.interface.cases import Case
from tests.interface.document import outline
from tests.interface.shell import Done, Shell, shell

HERE = Path("/somewhere/work")


def lines(value: Any, **more: Any) -> list[str]:
    found = outline(json.dumps(value), lambda text: text, **more)
    assert found is not None
    return found


def written(*done: Done) -> str:
    return recording.transcript("about", list(done), HERE)


GOOD = Done("clusterctl x", 0, "three nodes\n", "all is well\n")


@pytest.mark.parametrize(
    "other",
    [
        Done("clusterctl x", 1, "three nodes\n", "all is well\n"),
        Done("clusterctl x", 0, "four nodes\n", "all is well\n"),
        Done("clusterctl x", 0, "three nodes\n", "all is fine\n"),
        Done("clusterctl x", 0, "three nodes\nall is well\n", ""),
        Done("clusterctl x", 0, "  three nodes\n", "all is well\n"),
        Done("clusterctl y", 0, "three nodes\n", "all is well\n"),
    ],
)
def test_another_code_word_or_stream_is_another_recording(other: Done) -> None:
    assert written(other) != written(GOOD)


DOCUMENT = {"nodes": [{"name": "n1", "seconds": 0.1}, {"name": "n2", "seconds": 0.2}], "ok": True}


def _change(document: dict[str, Any]) -> list[dict[str, Any]]:
    first, second = document["nodes"]
    return [
        {**document, "more": 1},
        {"nodes": document["nodes"]},
        {**document, "ok": False},
        {**document, "ok": "true"},
        {**document, "nodes": [first, {**second, "name": "n3"}]},
        {**document, "nodes": [first, {"name": "n2"}]},
        {**document, "nodes": [first, {**second, "seconds": None}]},
        {**document, "nodes": {"a": first}},
    ]


@pytest.mark.parametrize("other", _change(DOCUMENT))
def test_another_key_type_or_value_is_another_outline(other: dict[str, Any]) -> None:
    assert lines(other) != lines(DOCUMENT)


def test_times_and_what_a_case_names_have_a_type_only() -> None:
    later = {"nodes": [{"name": "n1", "seconds": 3.5}, {"name": "n2", "seconds": 9}], "ok": True}
    assert lines(later) == lines(DOCUMENT)
    assert lines({"size": 3}) != lines({"size": 4})
    assert lines({"size": 3}, volatile=[r"\.size"]) == lines({"size": 4}, volatile=[r"\.size"])
    assert lines({"size": 3}, volatile=[r"\.size"]) != lines({"size": "4"}, volatile=[r"\.size"])


def test_keys_that_are_data_have_one_line() -> None:
    by_node = {"answers": {"n1": 1, "n2": 2}}
    assert lines(by_node, data_keys=[r"\.answers"])[1:] == [".answers{}  number  1 | 2"]
    assert lines(by_node)[1:] == [".answers.n1  number  1", ".answers.n2  number  2"]


def test_a_key_that_not_every_object_has_is_marked() -> None:
    assert "[].b ?  number  2" in lines([{"a": 1}, {"a": 1, "b": 2}])


def test_lines_of_json_are_told_apart_by_their_type_and_their_order_is_free() -> None:
    one, two = '{"type": "a", "x": 1}\n', '{"type": "b"}\n'
    found = outline(one + two, str)
    assert found == outline(two + one, str)
    assert found == ['<a>.type  string  "a"', "<a>.x  number  1", '<b>.type  string  "b"']
    assert outline("no json", str) is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("took 0.3 s, not 12 s", "took # s, not # s"),
        ("at 2026-01-31 23:59:59", "at DATE TIME"),
        ("3 nodes, 8 GPUs, 687 W", "3 nodes, 8 GPUs, 687 W"),
        ("NODE      GPUS", "NODE  GPUS"),
        (f"{HERE}/a.csv in {sys.executable}", "./a.csv in PYTHON"),
        ("(choose from 'a', 'b')", "(choose from a, b)"),
    ],
)
def test_only_what_is_volatile_is_replaced(text: str, plain: str) -> None:
    assert normal.plain(text, HERE) == plain


def test_help_of_all_pythons_is_alike() -> None:
    old = "usage: x [-h] [-o FILE] in\n\noptions:\n  -o FILE, --out FILE  where\n"
    new = "usage: x [-h] [-o FILE] in\n\noptions:\n  -o, --out FILE        where\n"
    assert normal.plain_help(old, HERE) == normal.plain_help(new, HERE)
    assert normal.plain_help(new, HERE).splitlines()[0] == "usage: x [OPTIONS] in"


def _case(text: Callable[[], str], code: int = 0) -> Case:
    def session(one: Shell) -> None:
        """A command that is not ours."""
        one.done.append(Done("clusterctl x", code, text(), ""))

    return Case("x.good", session)


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (recording, record):
        monkeypatch.setattr(module, "GOLDEN", tmp_path)
    return tmp_path


def test_recording_again_is_what_makes_a_difference_go(
    golden: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {"x.good": _case(lambda: "old words\n")}
    monkeypatch.setattr(record, "all_cases", lambda: cases)
    (golden / "gone.txt").write_text("a case that is no more")
    assert record.main([]) == 0
    assert [path.name for path in golden.iterdir()] == ["x.good.txt"]
    assert record.main(["--check"]) == 0
    cases["x.good"] = _case(lambda: "new words\n")
    assert record.main(["--check"]) == 1
    assert "-old words\n+new words\n" in capsys.readouterr().out
    assert recording.difference("x.good", cases["x.good"].play())
    assert record.main(["x"]) == 0
    assert not recording.difference("x.good", cases["x.good"].play())
    with pytest.raises(SystemExit, match="no case is called y"):
        record.main(["y"])


def test_a_long_line_is_shown_where_it_differs(golden: Path) -> None:
    before, after = ("x" * 1000 + word + "y" * 1000 for word in ("old", "new"))
    (golden / "a.txt").write_text(before)
    shown = recording.difference("a", after).splitlines()
    assert max(map(len, shown)) < 2 * recording.LONG
    assert any("old" in line for line in shown)
    assert any("new" in line for line in shown)


def test_a_shell_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> tuple[object, ...]:
        os.umask(mask := os.umask(0))
        return dict(os.environ), Path.cwd(), sys.stdout, signal.getsignal(signal.SIGINT), mask

    before = state()
    with shell() as one:
        assert Path.cwd() == one.folder
        os.umask(0o077)  # as `clusterctl launch --share` changes it
        done = one.run("clusterctl nodes")
        assert (done.code, done.out) == (2, "")
        assert re.match("error: hostfile nodes.txt does not exist", done.err)
    assert state() == before
    assert not one.folder.exists()
    assert capfd.readouterr() == ("", "")


def test_a_traceback_is_recorded_and_not_hidden() -> None:
    with shell() as one:
        one.patches.setattr("trainer.config.__main__.load", lambda *_: 1 / 0)
        done = one.run("python -m trainer.config show demo")
    assert (done.code, done.err) == (1, "Traceback …\nZeroDivisionError: division by zero\n")
