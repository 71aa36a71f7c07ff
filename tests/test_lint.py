"""The project's own lint finds what it is there for."""

from __future__ import annotations

from pathlib import Path

from tests import lint


def found(tmp_path: Path, monkeypatch, **files: str) -> list[str]:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    paths = []
    for name, text in files.items():
        path = tmp_path / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        paths.append(path)
    return list(lint.findings(paths))


def test_cycle_through_a_function_is_found(tmp_path: Path, monkeypatch) -> None:
    one = "from pack import two\n"
    two = "def f():\n    from pack.one import x\n    return x\n"
    assert found(tmp_path, monkeypatch, pack__one=one, pack__two=two) == [
        "import cycle: pack.one, pack.two"
    ]
    assert found(tmp_path, monkeypatch, pack__one=one, pack__two="import sys\n") == []


def test_cycle_between_folders_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lint, "PACKAGES", ("a",))
    for folder in ("a", "a/b", "a/c"):
        (tmp_path / folder).mkdir()
    files = {"a__b__one": "from a.c import two\n", "a__c__two": "", "a__c__three": ""}
    assert found(tmp_path, monkeypatch, **files) == []
    files["a__c__three"] = "from a.b import one\n"
    assert found(tmp_path, monkeypatch, **files) == ["import cycle: a.b, a.c"]


def test_waits_that_a_signal_can_make_endless_are_found(tmp_path: Path, monkeypatch) -> None:
    made = "import queue\n\n\nclass Two:\n    def __init__(self):\n        self.inbox: queue.{} = queue.{}()\n"
    used = "def f(two):\n    return two.inbox.get(timeout=1.0)\n"
    (line,) = found(
        tmp_path, monkeypatch, pack__one=made.replace("{}", "SimpleQueue"), pack__two=used
    )
    assert line.startswith("pack/two.py:2: SimpleQueue.get(timeout=…)")
    assert found(tmp_path, monkeypatch, pack__one=made.replace("{}", "Queue"), pack__two=used) == []
    monkeypatch.setattr(lint, "HANDLERS_PUT", ("pack/two.py",))
    simple = made.replace("{}", "SimpleQueue")
    assert found(tmp_path, monkeypatch, pack__one=simple, pack__two=used) == []


def test_python_that_imports_from_the_current_folder_is_found(tmp_path: Path, monkeypatch) -> None:
    for line in (
        "run([sys.executable, '-m', 'trainer.data'])",
        "run((sys.executable, '-c', text))",
        "run([python, '-m', 'trainer.data', *words])",
        "run(f'exec {sys.executable} -m clusterctl')",
    ):
        (one,) = found(tmp_path, monkeypatch, pack__one=f"{line}\n")
        assert one.endswith("in a command: use trainer/runlog/own_modules.py")
    for line in ("run([sys.executable, '-I', '-c', text])", "say(f'no torch in {sys.executable}')"):
        assert found(tmp_path, monkeypatch, pack__one=f"{line}\n") == []


def test_process_of_a_payload_has_a_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lint, "MOST_SKIPS", 0)
    (tmp_path / "clusterctl").mkdir()
    text = "subprocess.run(['ls']{})\n"
    name = "clusterctl__payload__one"
    (one,) = found(tmp_path, monkeypatch, **{name: text.replace("{}", "")})
    assert one.startswith("clusterctl/payload/one.py:1: a payload's process without cwd")
    assert found(tmp_path, monkeypatch, **{name: text.replace("{}", ", cwd='/'")}) == []


def test_what_has_one_place_is_called_there(tmp_path: Path, monkeypatch) -> None:
    rules = [(call, ("pack/",), ("pack/one.py",), "pack/one.py") for call in ("f", "g.h(line)")]
    monkeypatch.setattr(lint, "ONE_PLACE", rules)
    assert found(tmp_path, monkeypatch, pack__one="f()\n", other__two="f()\n") == []
    for call in ("f(1)", "one.f(1)"):
        assert found(tmp_path, monkeypatch, pack__two=f"{call}\n") == [
            "pack/two.py:1: f: use pack/one.py"
        ]
    (line,) = found(tmp_path, monkeypatch, pack__two="g.h(other)\ng.h(line)\n")
    assert line == "pack/two.py:2: g.h(line): use pack/one.py"


def test_masking_of_what_is_nested_has_one_place(tmp_path: Path, monkeypatch) -> None:
    text = "def mask(value):\n    return hide(value) if value else [mask(one) for one in value]\n"
    (line,) = found(tmp_path, monkeypatch, pack__one=text)
    assert line.startswith("pack/one.py:1: mask: use hide_in of ")
    monkeypatch.setattr(lint, "MASKS", ("pack/one.py",))
    assert found(tmp_path, monkeypatch, pack__one=text) == []


def test_long_lines_are_found_outside_tables_and_urls(tmp_path: Path, monkeypatch) -> None:
    long = "x" * 101
    text = f"# {long}\nA = [\n    1, '{long}',\n]  # fmt: skip\nB = 1  # https://{long}\n"
    assert found(tmp_path, monkeypatch, pack__one=text) == [
        "pack/one.py:1: 103 columns, at most 100"
    ]


def test_body_of_a_skipped_head_is_no_table(tmp_path: Path, monkeypatch) -> None:
    text = f"def f(a, b):  # fmt: skip\n    return '{'x' * 101}'\n"
    assert len(found(tmp_path, monkeypatch, pack__one=text)) == 1


def test_replaced_wording_is_found_in_strings_only(tmp_path: Path, monkeypatch) -> None:
    text = "x = 1  # x is meant?\ny = f'{x} is meant?'\n"
    (line,) = found(tmp_path, monkeypatch, pack__one=text)
    assert line.startswith("pack/one.py:2: 'is meant?'")


def test_full_folder_and_too_many_skips_are_found(tmp_path: Path, monkeypatch) -> None:
    files = {f"pack__m{number}": "" for number in range(21)}
    files["other__m"] = "x = 1  # fmt: skip\n" * 41
    lines = found(tmp_path, monkeypatch, **files)
    assert lines == ["pack: 21 Python files, at most 20", "41 times `# fmt: skip`, at most 40"]


def test_lock_outside_its_modules_is_found(tmp_path: Path, monkeypatch) -> None:
    text = "import fcntl\n\nfcntl.flock(0, fcntl.LOCK_EX)\n"
    (line,) = found(tmp_path, monkeypatch, pack__one=text)
    assert line.startswith("pack/one.py:3: flock: use trainer/runlog/locks.py")
    monkeypatch.setattr(lint, "LOCKS", ("pack/one.py",))
    assert found(tmp_path, monkeypatch, pack__one=text) == []


def test_temporary_file_that_gets_its_name_elsewhere_is_found(tmp_path: Path, monkeypatch) -> None:
    for call in ("os.replace(a, b)", "part.replace(path)", "self.whole.rename(path)"):
        (line,) = found(tmp_path, monkeypatch, pack__one=f"{call}\n")
        assert line.startswith(f"pack/one.py:1: {call.partition('(')[0]}: use trainer/runlog/")
    for call in ("part.replace('a', 'b')", "text.replace(a)", "part.replace(tzinfo=None)"):
        assert found(tmp_path, monkeypatch, pack__one=f"{call}\n") == []


def test_own_pattern_of_a_checkpoints_name_is_found(tmp_path: Path, monkeypatch) -> None:
    for word in (
        'r"epoch\\d+-global_step\\d+"',
        '"epoch*-global_step*"',
        'f"epoch1-global_step{n}"',
    ):
        (line,) = found(tmp_path, monkeypatch, pack__one=f"x = {word}\n")
        assert line == "pack/one.py:1: a checkpoint's name: use trainer/runlog/checkpoint_name.py"
    for word in ('"epoch3-global_step4000"', '"`epoch{E}-global_step{G}/` is a folder"'):
        assert found(tmp_path, monkeypatch, pack__one=f"x = {word}\n") == []


def test_sizes_durations_and_plurals_made_by_hand_are_found(tmp_path: Path, monkeypatch) -> None:
    for own in ("{x / (1 << 30):.1f} GiB", "{x} MB", "{x:.2f} s", "{x / 1e9:.1f}", "{x >> 20:d}",
                "{x} node{'s' if x != 1 else ''}", "{x:g} min"):  # fmt: skip
        (line,) = found(tmp_path, monkeypatch, pack__one=f'y = f"{own}"\n')
        assert line.startswith("pack/one.py:1: x") or "'s' if x" in line
        assert line.endswith("use checks/units.py or trainer/runlog/units.py")
    for other in ("{units.size(x)} free", "{x:.2f} TFLOP/s", "{x} s.csv", "{x:.3g} steps"):
        assert found(tmp_path, monkeypatch, pack__one=f'y = f"{other}"\n') == []
    monkeypatch.setattr(lint, "UNITS", ("pack/one.py", ""))
    assert found(tmp_path, monkeypatch, pack__one='y = f"{x} MB"\n') == []
