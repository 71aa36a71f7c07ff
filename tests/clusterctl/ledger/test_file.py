"""The ledger's file: nothing is lost between writers, and nothing torn is taken for an entry."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clusterctl import hostfile as hostfile_module
from clusterctl.errors import UsageError
from clusterctl.ledger import file
from clusterctl.ledger.entries import INCIDENT, NOTE, Entry, entry_of
from clusterctl.ledger.file import Ledger, LedgerError, append, read
from clusterctl.ledger.write import enter

NOW = 1_795_269_600.0
FULL = Entry(
    "n7", INCIDENT, "NVRM: Xid 79", NOW, "launch", "xid-79", "003-x", "id1", 2, "", True, NOW + 9
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node-history.jsonl"


def note(text: str, time_s: float = NOW, node: str = "n1") -> Entry:
    return Entry(node, NOTE, text, time_s)


def test_entry_is_read_again_as_it_was(path: Path) -> None:
    append(path, [FULL, note("x", NOW - 5)])
    append(path, [note("ü \n\x1b[31m")])
    assert read(path).entries == (note("x", NOW - 5), FULL, note("ü \n\x1b[31m"))
    assert list(path.parent.iterdir()) == [path]


def test_no_file_is_no_history(path: Path) -> None:
    assert read(path) == Ledger()
    append(path, [])
    assert not path.exists()


def test_lines_that_are_torn_foreign_or_odd_are_counted_and_left_out(path: Path) -> None:
    good = FULL.line()
    odd = [
        b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 2000, good[:40],
        good.replace(b'"version": 1', b'"version": 2').strip(),
        good.replace(b'"n7"', b"7").strip(),
        good.replace(b'"n7"', b'""').strip(),
        good.replace(b'"incident"', b'"party"').strip(),
        good.replace(b'"attempt": 2', b'"attempt": "2"').strip(),
        good.replace(str(NOW).encode(), b"1e400").strip(),
        good.replace(str(NOW).encode(), b"-1").strip(),
    ]  # fmt: skip
    path.write_bytes(b"\n".join([*odd, b"", good, good[:50]]))
    found = read(path)
    assert found.entries == (FULL,)
    assert found.skipped == len(odd) + 1


def test_key_of_a_later_version_of_us_is_no_reason_to_skip_a_line() -> None:
    assert entry_of(FULL.line().replace(b"{", b'{"weight": 3, ', 1)) == FULL


def test_line_after_a_torn_one_is_whole(path: Path) -> None:
    path.write_bytes(FULL.line() + FULL.line()[:30])
    append(path, [note("after")])
    assert read(path) == Ledger((FULL, note("after")), 1)


WRITER = """
import sys
from pathlib import Path
from clusterctl.ledger.entries import NOTE, Entry
from clusterctl.ledger import file
file.MAX_BYTES = int(sys.argv[3])
print("up", flush=True)
sys.stdin.readline()
for n in range(60):
    file.append(Path(sys.argv[1]), [Entry(sys.argv[2], NOTE, str(n), 1e9 + n)])
"""


def writers(path: Path, names: str, most: int) -> None:
    """Real processes that all begin at once."""
    command = [sys.executable, "-c", WRITER, str(path)]
    started = [
        subprocess.Popen([*command, name, str(most)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in names
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
    for one in started:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    for one in started:
        one.communicate(timeout=60)
        assert one.returncode == 0


@pytest.mark.long
def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    writers(path, "abc", file.MAX_BYTES)
    found = read(path)
    assert found.skipped == 0
    for node in "abc":
        own = [one.text for one in found.entries if one.node == node]
        assert own == [str(n) for n in range(60)]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.long
def test_shortening_beside_other_writers_loses_only_what_is_oldest(path: Path) -> None:
    writers(path, "ab", 4000)
    found = read(path)
    assert path.stat().st_size <= 4000
    assert found.skipped == 0
    for node in "ab":
        own = [int(one.text) for one in found.entries if one.node == node]
        assert own == list(range(own[0], 60)) if own else True
    assert {one.text for one in found.entries} >= {"59"}


def test_long_ledger_keeps_the_newest_and_lines_of_other_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MAX_BYTES", 3000)
    old = [note("old", NOW - 401 * 86400).line() for _ in range(40)]
    path.write_bytes(b'{"version": 9}\n' + b"".join(old))
    path.chmod(0o640)
    append(path, [note("new")])
    assert read(path) == Ledger((note("new"),), 1)
    assert path.stat().st_mode & 0o777 == 0o640
    append(path, [note(f"{n:040}", NOW + n) for n in range(30)])
    kept = [int(one.text) for one in read(path).entries]
    assert kept == list(range(kept[0], 30))
    assert 1000 < path.stat().st_size <= 1500


def test_new_file_has_the_mode_of_the_hostfile(path: Path) -> None:
    hostfile = path.with_name("nodes.txt")
    hostfile.touch()
    hostfile.chmod(0o664)
    append(path, [FULL], hostfile=hostfile)
    assert path.stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused_without_waiting(path: Path, make) -> None:
    make(path)
    with pytest.raises(LedgerError, match=r"a folder or a device|Is a directory|No such device"):
        append(path, [FULL])
    assert "not entered in the history of nodes" in enter(path, [FULL])


def test_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    assert "was not changed: No such file or directory" in enter(tmp_path / "no" / "x", [FULL])


def test_lock_that_is_not_given_back_is_a_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostfile_module, "LOCK_S", 0.05)
    with path.with_name(".node-history.jsonl.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another command holds" in enter(path, [FULL])
    assert not path.exists()


@pytest.mark.long
def test_full_disk_is_said_and_the_next_line_is_whole(path: Path) -> None:
    """/dev/full cannot stand in: it is no plain file. A limit on the size of files can."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from tests.clusterctl.ledger.test_file import FULL, enter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "print(enter(Path(sys.argv[1]), [FULL]))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "not entered in the history of nodes" in told.stdout
    assert path.stat().st_size == 40
    append(path, [FULL])
    assert read(path) == Ledger((FULL,), 1)


@pytest.mark.long
def test_reader_beside_a_writer_sees_whole_lines_only(path: Path) -> None:
    append(path, [FULL])
    stop = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not stop.is_set():
            seen.append(read(path).skipped)

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(100):
        append(path, [note(str(n))])
    stop.set()
    reader.join()
    assert seen
    assert set(seen) == {0}


def test_link_of_somebody_else_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine\n")
    path.symlink_to(target)
    with pytest.raises(LedgerError, match="it is a link"):
        append(path, [Entry("n1", NOTE, "x", 1.0)])
    path.unlink()
    lock = path.with_name(f".{path.name}.lock")
    lock.symlink_to(tmp_path / "made-by-root")
    with pytest.raises(UsageError, match="is a link"), hostfile_module.locked(path):
        pass
    assert target.read_text() == "mine\n"
    assert not (tmp_path / "made-by-root").exists()
