"""Which code ranks run: edits are seen, told by a later attempt, and never mixed within one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer.config import sources
from trainer.config.description import describe
from trainer.config.load import load
from trainer.engine.alike import require_alike
from trainer.errors import EngineError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "trainer"
    (folder / "data").mkdir(parents=True)
    for name in ("loop.py", "step.py", "data/plan.py", "notes.txt"):
        (folder / name).write_text("a = 1\n")
    monkeypatch.setattr(sources, "PACKAGE", folder)
    sources.imported.cache_clear()
    yield folder
    sources.imported.cache_clear()


def test_edited_new_and_removed_files_are_named(package: Path) -> None:
    before = sources.imported()
    assert list(before) == ["trainer/data/plan.py", "trainer/loop.py", "trainer/step.py"]
    (package / "loop.py").write_text("a = 2\n")
    (package / "step.py").unlink()
    (package / "new.py").touch()
    (package / "notes.txt").write_text("b")
    assert sources.imported() == before  # what this process runs
    names = sources.changed(before, sources.read())
    assert names == ["trainer/loop.py", "trainer/new.py", "trainer/step.py"]
    assert sources.shown([*names, "x", "y"]).endswith("trainer/step.py and 2 more")


@pytest.mark.long
def test_later_attempt_says_which_code_and_configuration_are_other(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("demo", [])
    monkeypatch.setenv("CLUSTERCTL_ATTEMPT", "1")
    assert describe(config, tmp_path, ["demo"]) == []
    monkeypatch.setenv("CLUSTERCTL_ATTEMPT", "2")
    resumed = replace(config, load="/checkpoint")
    assert describe(resumed, tmp_path, ["demo"]) == []
    (package / "loop.py").write_text("a = 2\n")
    sources.imported.cache_clear()  # a new process
    told = describe(replace(resumed, lr=0.5), tmp_path, ["demo"])
    assert told == [
        "lr: not the configuration of the attempt before",
        "trainer/loop.py: not the code of the attempt before",
    ]
    assert describe(replace(resumed, lr=0.5), tmp_path, ["demo"]) == []
    for text in ("", "[1]", '{"files": 3}'):
        (tmp_path / sources.FILE).write_text(text)
        assert describe(replace(resumed, lr=0.5), tmp_path, ["demo"]) == []
    assert json.loads((tmp_path / sources.FILE).read_text())["files"] == sources.imported()


class Two:
    """What two ranks gather; `other` makes that of rank 1 from that of rank 0."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def gather_objects(self, own: Any) -> list[Any]:
        if isinstance(own, str):
            return [own, own if self.other is None else "another"]
        _, code, config = own
        return [own, ("n2", *self.other(dict(code), dict(config)))]


def test_ranks_with_other_code_or_configuration_do_not_train(package: Path) -> None:
    config = load("demo", [])
    require_alike(Two(None), config)  # type: ignore[arg-type]
    edited = Two(lambda code, config: (code | {"trainer/loop.py": "x"}, config))
    with pytest.raises(EngineError, match=r"rank 1 on n2 runs another code .*: trainer/loop\.py"):
        require_alike(edited, config)  # type: ignore[arg-type]
    other = Two(lambda code, config: (code, config | {"lr": 7.0}))
    with pytest.raises(EngineError, match=r"rank 1 on n2 runs another configuration .*: lr") as e:
        require_alike(other, config)  # type: ignore[arg-type]
    assert e.value.on_all_ranks
