"""Which kernel attends: the built-in choice, tables from files, and files that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.attention

from tests.trainer.models.stdit_cases import batch, run, small_model
from trainer.errors import ConfigError
from trainer.models.attention.table import Table, read_table

GOOD = {
    "spatial": [[1024, "flash"], [None, "cudnn"]],
    "temporal": [[16, "frames"], [None, "efficient"]],
    "text": [[None, "varlen"]],
}


def written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_built_in_choice_avoids_what_is_slow_for_new_shapes_and_for_few_frames() -> None:
    table = Table()
    assert table.choose("temporal", 1) == table.choose("temporal", 120) == "frames"
    assert table.choose("temporal", 129) == "flash"
    assert "cudnn" not in {table.choose("spatial", keys) for keys in (1, 920, 16_128)}


def test_a_table_chooses_by_the_number_of_keys(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "table.json", GOOD))
    assert [table.choose("spatial", keys) for keys in (920, 1024, 1025)] == [
        "flash",
        "flash",
        "cudnn",
    ]
    assert table.choose("temporal", 30) == "efficient"


def test_a_cpu_computes_the_same_with_every_table(tmp_path: Path) -> None:
    model, inputs = small_model(), batch()
    wanted = run(model, inputs)
    model.use_attention(read_table(written(tmp_path / "table.json", GOOD)))
    assert run(model, inputs).equal(wanted)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**GOOD, "spatial": [[None, "fast"]]}, "spatial 'fast' is not one of flash, efficient"),
        ({**GOOD, "text": [[None, "frames"]]}, "text 'frames' is not one of varlen"),
        ({**GOOD, "temporal": ["flash"]}, "temporal has no pair of keys and kernel: 'flash'"),
        ({name: GOOD[name] for name in ("spatial", "text")}, "there are no rows for temporal"),
        ([1], "it holds a list, not an object"),
        ({**GOOD, "text": [[0, "varlen"]]}, "text has no number of keys: 0"),
        ({**GOOD, "text": [[-3, "varlen"]]}, "text has no number of keys: -3"),
        ({**GOOD, "text": [[True, "varlen"]]}, "text has no number of keys: True"),
        ({**GOOD, "text": [[2.0, "varlen"]]}, "text has no number of keys: 2.0"),
        ({**GOOD, "text": [[9, "math"], [9, "varlen"]]}, "text has 9 keys behind 9: they rise"),
        ({**GOOD, "text": [[None, "math"], [9, "varlen"]]}, "behind the one without a limit"),
        ({**GOOD, "txt": [[None, "varlen"]]}, "'txt' is not a name that a table has"),
        ({**GOOD, "schema": 2}, "schema 2 is not the one that is known"),
        ({**GOOD, "text": ["\x1b[2J"]}, r"keys and kernel: '\\x1b\[2J'"),
    ],
)
def test_files_that_are_no_table_are_refused_with_a_reason(
    tmp_path: Path, data: object, words: str
) -> None:
    path = written(tmp_path / "table.json", data)
    with pytest.raises(ConfigError, match=words) as refused:
        read_table(path)
    assert str(path) in str(refused.value)


def test_a_key_twice_a_large_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    path, text = tmp_path / "table.json", json.dumps(GOOD)
    path.write_text(text[:-1] + ', "text": [[null, "math"]]}')
    with pytest.raises(ConfigError, match="the key 'text' stands in it twice"):
        read_table(path)
    path.write_text(text + " " * (1 << 20))
    with pytest.raises(ConfigError, match="it has more than 1,048,576 bytes"):
        read_table(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it is no plain file"):
        read_table(path)


@pytest.mark.parametrize("row", [["x" * 900_000], [None, "x" * 900_000], [["x"] * 200_000, "math"]])
def test_long_values_are_shown_by_their_beginning(tmp_path: Path, row: object) -> None:
    path = written(tmp_path / "table.json", {**GOOD, "text": [row]})
    with pytest.raises(ConfigError) as refused:
        read_table(path)
    assert len(str(refused.value)) < len(str(path)) + 160


def test_a_file_that_is_not_there_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        read_table(tmp_path / "none.json")
    assert "trainer.bench attention --write" in str(refused.value.hint)


def test_a_table_may_ask_for_flash_attention_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = read_table(written(tmp_path / "table.json", {**GOOD, "flash": "FA3"}))
    activated: list[str] = []
    place = "activate_flash_attention_impl"
    monkeypatch.setattr(torch.nn.attention, place, activated.append, raising=False)
    small_model().use_attention(table)
    assert activated == ["FA3"]

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'flash_attn_interface'")

    monkeypatch.setattr(torch.nn.attention, place, missing, raising=False)
    with pytest.raises(ConfigError, match=r"wants flash attention 3: .*flash_attn_interface") as it:
        small_model().use_attention(table)
    assert "flash_attn_3" in str(it.value.hint)
    monkeypatch.delattr(torch.nn.attention, place)
    with pytest.raises(ConfigError, match="this torch has no place for it"):
        small_model().use_attention(table)
    with pytest.raises(ConfigError, match="flash 'FA9' is not one of FA2, FA3"):
        read_table(written(tmp_path / "table.json", {**GOOD, "flash": "FA9"}))


def test_a_table_without_the_word_takes_what_torch_has() -> None:
    assert Table().flash == "FA2"
