"""The command for a borrowed card: order, deadline, and what is kept when it is cut or killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import __main__ as command
from tests.gpu import phases as of_phases
from tests.gpu import run as run_module
from tests.gpu.report import Record, Watch, as_document, is_row, packed, read_lines, table_of
from tests.gpu.run import Figures, Options, Phase, run_phases
from trainer.runlog.output import configure


def _works(options: Options, figures: Figures, value: int) -> str:
    figures.add("value", value=value)
    return f"value {value}"


def _fails(options: Options, figures: Figures) -> str:
    figures.add("before", value=1)
    raise ValueError("wrong shape")


def _dies(options: Options, figures: Figures) -> str:
    figures.add("before", value=2)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def _hangs(options: Options, figures: Figures) -> str:
    figures.add("before", value=3)
    time.sleep(600)
    raise AssertionError


def _partly(options: Options, figures: Figures) -> str:
    figures.attempt("one", lambda: {"value": 1})
    figures.attempt("two", lambda: {"value": 1 // 0})
    return "some"


def _judged(options: Options, figures: Figures) -> str:
    figures.attempt("one", lambda: {"value": 1})
    figures.judge("one", "it differs by 3e-01")
    return "compared"


def _reads(options: Options, figures: Figures, name: str) -> str:
    return os.environ.get(name, "")


class _Kept:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.figures: list[dict[str, Any]] = []
        self.row, self.figure = self.rows.append, self.figures.append

    def begin(self, name: str) -> None:
        pass


def _run(phases: list[Phase], out: Path, deadline_s: float = 100.0) -> tuple[Any, list[Any]]:
    out.mkdir(exist_ok=True)
    kept = _Kept()
    run_phases(phases, Options(out, "cpu", True), deadline_s, kept)
    return kept.rows, kept.figures


@pytest.mark.long
def test_a_phase_that_dies_costs_its_own_rest_only(tmp_path: Path) -> None:
    phases = [
        Phase(1, "dies", _dies),
        Phase(2, "hangs", _hangs, (), 6.0),
        Phase(3, "fails", _fails),
    ]
    phases += [Phase(4, "partly", _partly), Phase(5, "judged", _judged)]
    phases += [Phase(6, "works", _works, (7,))]
    rows, lines = _run(phases, tmp_path / "out")
    assert [(row["result"], row.get("reason")) for row in rows] == [
        ("failed", "killed by SIGSEGV, and the kernel counts no out-of-memory kill"),
        ("timed out", "no result after 6 s"),
        ("failed", "ValueError: wrong shape"),
        ("partly", "two: ZeroDivisionError: integer division or modulo by zero"),
        ("wrong", "one: it differs by 3e-01"),
        ("measured", None),
    ]
    figures = [(line["phase"], line["value"]) for line in lines if "value" in line]
    assert figures[:3] == [("dies", 2), ("hangs", 3), ("fails", 1)]
    assert figures[-1] == ("works", 7)
    assert "wrong shape" in (tmp_path / "out" / "errors" / "3_fails.txt").read_text()


@pytest.mark.long
def test_a_variable_is_that_of_its_phase_alone(tmp_path: Path) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    phases = [Phase(13, count, _reads, (name,), variables={name: count}) for count in ("1", "8")]
    rows, _ = _run([*phases, Phase(14, "none", _reads, (name,))], tmp_path / "out")
    assert [row["headline"] for row in rows] == ["1", "8", ""]


def test_what_does_not_fit_is_cut_from_the_end(tmp_path: Path) -> None:
    phases = [Phase(1, "long", _works, (1,), least_s=50.0), Phase(2, "short", _works, (1,))]
    rows, _ = _run(phases, tmp_path / "out", deadline_s=30.0)
    assert [row["result"] for row in rows] == ["cut", "cut"]
    assert rows[0]["reason"] == "29 s were left, its first figure needs 50"


@pytest.mark.long
def test_a_hang_ends_at_the_deadline_and_what_follows_is_cut(tmp_path: Path) -> None:
    _run([Phase(0, "first", _works, (1,))], tmp_path / "out")  # starts what starts children
    phases = [Phase(1, "hangs", _hangs, (), 600.0, 1.0), Phase(2, "late", _works, (1,), 9.0, 2.0)]
    start = time.monotonic()
    rows, lines = _run(phases, tmp_path / "out", deadline_s=5.0)
    assert time.monotonic() - start < 9.0
    assert [row["result"] for row in rows] == ["cut", "cut"]
    assert rows[0]["reason"] == "the deadline came after 4 s, its own limit is 600"
    assert lines[0]["value"] == 3  # what it had measured


def test_the_order_is_that_of_the_plan(tmp_path: Path) -> None:
    options = Options(tmp_path, "cuda", False)
    every = of_phases.first(options)
    items = [phase.item for phase in every]
    assert items == sorted(items)
    assert sorted(set(items)) == list(range(1, 17))
    assert all(phase.least_s < phase.limit_s for phase in (*every, *of_phases.more(options)))
    names = [phase.name for phase in (*every, *of_phases.more(options))]
    assert len(set(names)) == len(names)


def test_the_second_call_begins_with_what_failed_in_the_first(tmp_path: Path) -> None:
    options = Options(tmp_path, "cuda", False)
    results = {phase.name: "measured" for phase in of_phases.first(options)}
    results |= {"engines": "failed", "sampling": "cut", "correct, eager": "wrong"}
    before = [{"item": 0, "phase": name, "result": result} for name, result in results.items()]
    found = [phase.name for phase in of_phases.second(options, before)]
    assert found[:4] == ["engines", "sampling", "720p:1", "1024:1"]
    assert next(phase.name for phase in of_phases.second(options, [])) == "720p:1"


def test_every_line_is_on_the_disk_and_in_the_folder_at_once(tmp_path: Path) -> None:
    shown: list[str] = []
    out, send = tmp_path / "out", tmp_path / "send"
    record = Record("first", out, send, shown.append)
    for number in range(3):
        record.line({"item": 1, "phase": "a", "figure": "x", "value": number})
        for path in (out / "first.jsonl", send / "first.jsonl"):
            assert read_lines(path)[0][-1]["value"] == number
    for folder in ("raw", "errors", "train"):
        (out / folder).mkdir()
        (out / folder / "some.txt").write_text("text")
    record.table([{"item": 1, "phase": "a", "seconds": 2.0, "result": "cut", "reason": "no time"}])
    assert sorted(path.name for path in send.iterdir()) == [
        "first.jsonl",
        "first.tar.gz",
        "first.txt",
    ]
    with tarfile.open(send / "first.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["errors/some.txt", "raw/some.txt"]
    assert len(shown) == 3
    table = (send / "first.txt").read_text()
    assert "  1 a                                    2.0  CUT: no time" in table
    record.close()
    for number in (1, 2):  # a further call begins a new record and keeps the old one
        record = Record("first", out, send)
        record.line({"number": number})
        record.close()
    assert len(read_lines(out / "first-1.jsonl")[0]) == 3
    assert read_lines(out / "first-2.jsonl")[0][0]["number"] == 1
    assert read_lines(out / "first.jsonl")[0][0]["number"] == 2


def test_what_is_carried_home_stays_small(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(30):
        (raw / f"{number}.bin").write_bytes(os.urandom(100_000 + number))
    (raw / "large.bin").write_bytes(os.urandom(5 << 20))
    data = packed(tmp_path, most_bytes=1 << 20)
    assert len(data) < 1 << 20
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == [f"raw/{number}.bin" for number in range(10)]


def test_a_folder_that_cannot_be_written_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure()
    record = Record("first", tmp_path / "out", tmp_path / "send", lambda line: None)
    (tmp_path / "send").rmdir()
    (tmp_path / "send").write_text("a file")
    record.line({"value": 1})
    record.table([])
    record.close()
    assert read_lines(tmp_path / "out" / "first.jsonl")[0][0]["value"] == 1
    assert not record.is_whole
    assert "first.jsonl is not renewed: File exists" in capsys.readouterr().err


def test_a_disk_that_is_full_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure()
    record = Record("first", tmp_path / "out", tmp_path / "send", lambda line: None)
    record._file.close()
    record._file = io.FileIO("/dev/full", "a")
    record.line({"value": 1})
    record.close()
    assert read_lines(tmp_path / "send" / "first.jsonl")[0][0]["value"] == 1
    assert "lacks a line: No space left on device" in capsys.readouterr().err
    assert not record.is_whole


def test_what_starts_children_may_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: Any) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(run_module, "try_in_child", died)
    rows, _ = _run([Phase(1, "a", _works, (1,)), Phase(2, "b", _works, (1,))], tmp_path / "out")
    assert [row["reason"] for row in rows] == ["ConnectionResetError: gone"] * 2


def test_a_record_that_was_cut_in_a_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "first.jsonl"
    path.write_text('{"number": 1}\n[1]\n{"figure": "b", "val')
    assert read_lines(path) == ([{"number": 1}], 2)


def test_a_record_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[dict[str, Any]] = [
        {"schema": 1, "command": "python -m tests.gpu first", "date": "2026-01-02T03:04:05+00:00"},
        {"item": 1, "phase": "facts", "figure": "versions", "gpu": "NVIDIA H200", "seconds": 0.1},
        {"item": 1, "phase": "facts", "seconds": 3.0, "result": "measured", "headline": "a | b"},
        {"item": 2, "phase": "ceilings", "figure": "copy", "bytes_per_s": 3.0e12, "rows": [1]},
        {"item": 2, "phase": "ceilings", "seconds": 2.0, "result": "timed out", "reason": "late"},
    ]
    path = tmp_path / "first.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert command.main(["table", str(path)]) == 0
    page = capsys.readouterr().out
    assert page == as_document(lines)
    assert page.startswith("## NVIDIA H200, 2026-01-02\n")
    assert "| 1 | facts | 3 | a \\| b |" in page
    assert "| 2 | ceilings | 2 | TIMED OUT: late |" in page
    assert "| copy | bytes_per_s 3e+12 |" in page


@pytest.mark.parametrize("text", ["", "# A page\n", '{"gpu": "H100"}\n'])
def test_what_is_no_record_becomes_no_page(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert command.main(["table", str(path)]) == 2
    assert command.main(["table", str(tmp_path / "none")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "page.md is no record of tests.gpu" in shown.err
    assert "none cannot be read: No such file or directory" in shown.err


def test_some_phases_leave_the_record_of_all_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = [Phase(1, "facts", _works, (1,)), Phase(2, "ceilings", _works, (2,))]
    monkeypatch.setattr(of_phases, "first", lambda options: phases)
    record = tmp_path / "first.jsonl"
    record.write_text("{}\n")
    words = ["first", "--out", str(tmp_path), "--device", "cpu", "--tiny", "--only"]
    assert command.main([*words, "nonsense"]) == 2
    said = capsys.readouterr().err
    assert "no phase has nonsense in its name\n  hint: phases: facts; ceilings" in said
    command.main([*words, "facts"])
    assert record.read_text() == "{}\n"
    assert any(
        line.get("phase") == "facts" for line in read_lines(tmp_path / "first-only.jsonl")[0]
    )


def test_a_torch_without_cuda_measures_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert command.main(["first", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "is built without CUDA\n  hint: to rehearse on the CPU: --device cpu --tiny" in said
    assert not (tmp_path / "out").exists()


def test_a_line_is_json_whatever_was_measured(tmp_path: Path) -> None:
    record = Record("first", tmp_path, None, lambda line: None)
    record.line({"figure": "a", "errors": {"x": [float("nan"), 1.0]}, "most": float("inf")})
    record.close()
    text = record.path.read_text()
    assert json.loads(text, parse_constant=pytest.fail)["errors"] == {"x": ["nan", 1.0]}


def test_a_record_begins_with_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gpu" not in command._head(["first"])
    tool.write_text('#!/bin/sh\necho "NVIDIA H200, 580.95.05"\n')
    tool.chmod(0o755)
    head = command._head(["first", "--out", "a b"])
    assert (head["gpu"], head["driver"]) == ("NVIDIA H200", "580.95.05")
    assert head["command"] == "python -m tests.gpu first --out 'a b'"


@pytest.mark.parametrize("columns", [80, 150, 200])
def test_a_headline_is_whole_within_the_columns(columns: int) -> None:
    words = [f"word{number}" for number in range(60)]
    row = {"item": 1, "phase": "a", "seconds": 2.0, "result": "wrong", "headline": " ".join(words)}
    shown = table_of([row], columns)
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.split()[-61:] == ["WRONG:", *words]


def _first(out: Path, send: Path, *words: str) -> list[str]:
    argv = [sys.executable, "-m", "tests.gpu", "first", "--out", str(out), "--send", str(send)]
    return [*argv, "--device", "cpu", "--tiny", *words]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_kill_loses_nothing_that_was_measured(number: int, tmp_path: Path) -> None:
    out, send = tmp_path / "out", tmp_path / "send"
    argv = _first(out, send, "--only", "correct, eager")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if '"figure": "all recomputed"' in line:
            break
    process.send_signal(number)
    process.wait(timeout=30)
    for path in (out / "first-only.jsonl", send / "first-only.jsonl"):
        text = path.read_text()
        assert all(line in text for line in shown)
        assert '"reason": "it was' not in text
    if number != signal.SIGKILL:
        assert process.returncode == command.INTERRUPTED
        assert "INTERRUPTED" in (send / "first-only.txt").read_text()
        assert (send / "first-only.tar.gz").is_file()
    process.stdout.close()


_ROW = {"item": 1, "phase": "facts", "seconds": 3.0, "result": "measured"}
_STRANGE = [
    {**_ROW, "seconds": "long"},
    {**_ROW, "item": None},
    {**_ROW, "phase": ["a"]},
    {**_ROW, "reason": {}},
    {"result": "measured"},
    {"figure": "x"},
]


@pytest.mark.parametrize("line", _STRANGE, ids=lambda line: json.dumps(line)[-30:])
def test_what_no_record_has_is_left_out_and_counted(
    line: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (_ROW, line)))
    assert command.main(["table", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out == as_document([_ROW])
    assert f"1 line of {path} is cut or does not belong to a record" in shown.err


def test_a_record_is_text_and_no_command_of_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first.jsonl"
    hostile = "a\x1b]0;title\x07\r\n# \u202eb\ud800"
    names = {"command": hostile, "gpu": hostile, "date": hostile, "torch": hostile}
    row = {**_ROW, "phase": hostile, "headline": hostile}
    figure = {"phase": hostile, "figure": hostile, hostile: hostile}
    deep = "[" * 100_000 + "]" * 100_000
    lines = [json.dumps(line) for line in (names, figure, row)]
    path.write_text("\n".join([*lines, f'{{"figure": {deep}}}', '{"item": ' + "9" * 5000 + "}"]))
    assert command.main(["table", str(path)]) == 0
    page, said = capsys.readouterr()
    assert "2 lines of" in said
    assert all(letter.isprintable() or letter == "\n" for letter in page)
    assert [line for line in page.splitlines() if line.startswith("# ")] == []


def test_only_plain_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["second", "--out", str(tmp_path / "out"), "--device", "cpu", "--tiny", "--after"]
    for name in (str(tmp_path), "/dev/zero", str(tmp_path / "none")):
        assert command.main(["table", name]) == 2
        assert command.main([*words, name]) == 2
        assert capsys.readouterr().err.count(f"error: {name} cannot be read: ") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["--deadline", "nan"], ["--deadline", "inf"], ["--deadline", "-1"], ["--send", ""]]
)
def test_wrong_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(["first", "--out", "unused", *words])
    assert error.value.code == 2
    assert f"argument {words[0]}: " in capsys.readouterr().err
    assert not Path("unused").exists()


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_text("")
    rest = ["--device", "cpu", "--tiny"]
    assert command.main(["first", "--out", str(file), *rest]) == 2
    assert f"{file} cannot be written: not a folder" in capsys.readouterr().err
    assert command.main(["first", "--out", str(out), "--send", str(file / "a"), *rest]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err
    record = Record("first", out, None)
    assert command.main(["first", "--out", str(out), *rest]) == 2
    assert f"another process measures into {out}" in capsys.readouterr().err
    record.close()


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "first.jsonl").symlink_to(tmp_path / "other")
    record = Record("first", tmp_path, None, lambda line: None)
    record.line({"value": 1})
    record.close()
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "first.jsonl").is_symlink()


def test_a_terminal_gets_a_line_a_phase_and_a_pipe_gets_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        record = Record("first", tmp_path, None)
        watch = Watch(record, 2, 500.0)
        watch.begin("facts")
        watch.figure({"item": 1, "phase": "facts", "figure": "copy", "value": 1})
        watch.row({**_ROW, "result": "wrong"})
        record.close()
        shown = capsys.readouterr().out
        if is_terminal:
            assert shown == " 1/2 facts: 3.0 s, 1 figure, 500 s left  WRONG\n"
        else:
            assert [json.loads(line).get("figure") for line in shown.splitlines()] == ["copy", None]


@pytest.mark.parametrize("reader", ["head", "full"])
def test_what_reads_the_output_may_end(reader: str, tmp_path: Path) -> None:
    """The record gets everything, and no phase fails by it."""
    reads, writes = os.pipe()
    os.close(reads)
    stdout = writes if reader == "head" else os.open("/dev/full", os.O_WRONLY)
    argv = _first(tmp_path / "out", tmp_path / "send", "--only", "facts", "packed text")
    done = subprocess.run(argv, stdout=stdout, stderr=subprocess.DEVNULL, timeout=120)
    rows = [line for line in read_lines(tmp_path / "send" / "first-only.jsonl")[0] if is_row(line)]
    assert [row["result"] for row in rows] == ["measured", "measured"]
    assert (tmp_path / "send" / "first-only.tar.gz").is_file()
    assert done.returncode == (0 if reader == "head" else 1)


def test_the_record_of_a_rehearsal_says_nothing_of_a_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first.jsonl"
    head = {"command": "python -m tests.gpu first --tiny", "device": "cpu", "tiny": True}
    path.write_text(f"{json.dumps(head)}\n{json.dumps(_ROW)}\n")
    assert command.main(["second", "--out", str(tmp_path)]) == 2
    assert f"{path} was measured with other options: {head['command']}" in capsys.readouterr().err
    assert command.main(["table", str(path)]) == 0
    assert "A rehearsal: no figure here is one of a card." in capsys.readouterr().out


def test_a_record_to_continue_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "first.txt"
    path.write_text("  1 facts\n")
    words = ["second", "--out", str(tmp_path / "out"), "--device", "cpu", "--after", str(path)]
    assert command.main(words) == 2
    assert "first.txt is no record of tests.gpu" in capsys.readouterr().err


def test_a_second_call_without_a_first_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(of_phases, "more", lambda options: [])
    assert command.main(["second", "--out", str(tmp_path), "--device", "cpu", "--tiny"]) == 0
    said = capsys.readouterr().err
    assert "first.jsonl does not exist: the phases of `first` are left out" in said


def test_the_guide_names_every_phase() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "gpu.md"
    text = guide.read_text()
    for phase in of_phases.first(Options(Path("out"), "cuda", False)):
        assert f"`{phase.name}`" in text, phase.name
