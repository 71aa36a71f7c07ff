"""Entries are added and removed while what people wrote stays, or nothing is changed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from clusterctl import hostfile as hostfile_module
from clusterctl.exclude import change
from clusterctl.exclude.entries import ExcludeError, Exclusion, read
from tests.clusterctl.exclude.test_entries import GOOD

FRESH = Exclusion("n9", 'a "quoted" \\ reason é', 1772352000.0, 1772438400.0, "bob@head")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exclude.toml"


def test_added_entry_is_read_again_as_it_was(path: Path) -> None:
    assert change.add(path, [FRESH, Exclusion("n1", "x")], mode=0o640) == []
    assert read(path) == [FRESH, Exclusion("n1", "x")]
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_comments_and_other_entries_stay_letter_by_letter(path: Path) -> None:
    path.write_text(GOOD)
    path.chmod(0o604)
    change.add(path, [FRESH])
    assert path.read_text().startswith(GOOD)
    assert path.stat().st_mode & 0o777 == 0o604
    change.remove(path, ["n9"])
    assert path.read_text() == GOOD


def test_entry_is_replaced_by_a_newer_one_of_its_node(path: Path) -> None:
    path.write_text(GOOD)
    newer = Exclusion("n7", "again")
    (old,) = change.add(path, [newer])
    assert old.reason == "Xid 79"
    assert read(path)[-1] == newer
    assert [entry.node for entry in read(path)] == ["n2", "n7"]
    assert "# asked the vendor on Monday" in path.read_text()


def test_last_entry_takes_the_file_with_it_but_no_comment(path: Path) -> None:
    change.add(path, [FRESH])
    change.remove(path, ["n9"])
    assert not path.exists()
    path.write_text("# keep me\n" + change.render(FRESH))
    change.remove(path, ["n9"])
    assert path.read_text() == "# keep me\n"


@pytest.mark.parametrize(
    "text",
    [
        '[[exclude]]\nnode = "n7"\nreason = """\ntwo"""\n\n',
        '[[exclude]]\n"node" = "n7"\nreason = "x"\n\n[[exclude]]\nnode = "n2"\nreason = "y"\n',
    ],
)
def test_file_in_another_form_is_not_changed_and_that_is_said(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ExcludeError, match=r"was not changed|cannot be read|holds"):
        change.remove(path, ["n7"])
    assert path.read_text() == text


def test_removing_a_node_that_has_no_entry_is_refused(path: Path) -> None:
    path.write_text(GOOD)
    with pytest.raises(ExcludeError, match=r"n3 is not in .*exclude.toml"):
        change.remove(path, ["n2", "n3"])
    assert path.read_text() == GOOD


def test_many_changes_at_once_lose_none(path: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    threads = [
        threading.Thread(target=change.add, args=(path, [Exclusion(name, "x")])) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.node for entry in read(path)) == sorted(names)
    assert list(path.parent.iterdir()) == [path]


def test_lock_that_is_not_given_back_ends_the_wait_with_a_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostfile_module, "LOCK_S", 0.1)
    with path.with_name(".exclude.toml.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ExcludeError, match="another command holds"):
            change.add(path, [FRESH])
    assert not path.exists()


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExcludeError, match="was not changed: No such file or directory"):
        change.add(tmp_path / "none" / "exclude.toml", [FRESH])
