"""JSON and configs of others: whatever stands there, it is data or one sentence, never a traceback."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.data.features.feature_caches import make_place
from tests.trainer.data.tables import write_table
from trainer.config import load as configuration
from trainer.data.__main__ import main as data
from trainer.data.features import check as features_check
from trainer.data.features.cache import Features
from trainer.data.features.files import FeaturesError
from trainer.data.features.key import encoder_width
from trainer.data.manifest import shards
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.errors import ConfigError, TrainerError
from trainer.infer.prompts import parse_prompts
from trainer.runlog import run_files
from trainer.runlog.atomic_file import sha256_of
from trainer.runlog.json_file import (
    LARGEST,
    MAX_DEPTH,
    count,
    number,
    object_of,
    parse,
    read_object,
    text,
    whole,
)
from trainer.runlog.telemetry import decode
from trainer.weights.contents import inspect
from trainer.weights.load import read_weights

ODD = {
    "deep list": "[" * 60_000,
    "deep and whole": "[" * 60_000 + "]" * 60_000,
    "deep object": '{"a":' * 60_000 + "1" + "}" * 60_000,
    "deep inside": '{"weight_map": %s, "rows": %s, "config": %s, "d_model": %s, "schema": 1}'
    % (("[" * 5000 + "]" * 5000,) * 4),
    "just parsed": '{"config": ' + '{"a":' * 400 + "1" + "}" * 400 + "}",
    "empty": "",
    "cut": '{"a": [1, 2',
    "a list": "[1, 2]",
    "a number": "17",
    "null": "null",
    "no numbers": '{"rows": [NaN, Infinity], "group_rows": NaN, "schema": 1, "d_model": Infinity}',
    "long number": '{"d_model": ' + "9" * 5000 + ', "rows": [1e999], "schema": 1}',
    "other types": '{"weight_map": [1], "rows": 5, "group_rows": "x", "config": 5, "d_model": {}}',
    "names": '{"weight_map": {"a": "../../etc/passwd", "b": 5, "c": ["x"], "d": "a\\u0000b"}}',
    "surrogate": '{"weight_map": {"a": "\\ud800.safetensors"}, "config": {"\\ud800": 1}}',
}
BYTES = {**{name: text.encode() for name, text in ODD.items()}, "no UTF-8": b'{"a": "\xff\xfe"}'}


def of_weights(folder: Path, text: bytes) -> object:
    save_file({"a": torch.zeros(2)}, folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(text)
    return read_weights(folder)


def of_a_model(folder: Path, text: bytes) -> object:
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
    (folder / "config.json").write_bytes(text)
    return inspect(str(folder))


def of_an_encoder(folder: Path, text: bytes) -> object:
    (folder / "config.json").write_bytes(text)
    return encoder_width(str(folder))


def of_a_run(folder: Path, text: bytes) -> object:
    (folder / "config.json").write_bytes(text)
    return configuration.load(str(folder / "config.json"), [])


def of_shards(folder: Path, text: bytes) -> object:
    source = write_table(folder / "m.csv", 20)
    assert data(["shard", str(source), "-q", "--force"]) == 0
    (folder / "m.shards" / shards.INDEX).write_bytes(text)
    return list(read_manifest(folder / "m.shards").paths)


def of_features(folder: Path, text: bytes) -> object:
    (folder / "features.json").write_bytes(text)
    return Features(folder)


def of_a_prompt(folder: Path, text: bytes) -> object:
    line = "a cat " + text.decode("utf-8", "replace").replace("\n", " ")
    return parse_prompts([line if line.endswith("}") else line + "}"])


def of_work_under_way(folder: Path, text: bytes) -> object:
    work = folder / ".o.csv.work"
    work.mkdir()
    (work / "state.json").write_bytes(text)
    assert (
        data(["convert", str(write_table(folder / "m.csv", 20)), str(folder / "o.csv"), "-q"]) == 0
    )
    return len((folder / "o.csv").read_text())


READERS: list[Callable[[Path, bytes], object]] = [
    of_weights, of_a_model, of_an_encoder, of_a_run, of_shards, of_features, of_a_prompt,
    of_work_under_way,
]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", BYTES)
def test_odd_json_is_one_sentence_wherever_it_stands(
    tmp_path: Path, read: Callable[[Path, bytes], object], kind: str
) -> None:
    try:
        read(tmp_path, BYTES[kind])
    except TrainerError as error:
        said = error.full_text()
        assert said.startswith("error: ")
        assert len(said) < 1000


@pytest.mark.long
def test_depth_has_a_limit_and_data_of_any_width_has_none() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        whole = MAX_DEPTH - 1
        assert parse(opening * whole + "1" + closing * whole)
        for depth in (MAX_DEPTH + 1, 900, 100_000):
            with pytest.raises(ValueError, match="nested more than 100 levels deep"):
                parse(opening * depth + "1" + closing * depth)
    assert len(parse(json.dumps({str(n): [n, {}] for n in range(50_000)}))) == 50_000


def test_a_file_has_a_limit_and_is_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_object(path, 8) == {"a": 1}
    with pytest.raises(ValueError, match="more than 7 bytes"):
        read_object(path, 7)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="holds a list, not an object"):
        read_object(path)
    path.write_text('{"b": {"a": 1, "a": 2}}')
    assert read_object(path) == {"b": {"a": 2}}
    with pytest.raises(ValueError, match="the key 'a' stands in it twice"):
        read_object(path, once=True)


LEAVES: list[Any] = [None, True, -1, 0, 1, 2**70, 0.5, float("nan"), float("inf"), "", "x", "../x",
                     "\ud800", [], [1], [[1]], {}, {"a": 1}, "9" * 40]  # fmt: skip


def changed(document: Any, draw: random.Random) -> Any:
    """The same with one value, key or length anywhere changed."""
    whole = copy.deepcopy(document)
    places = list(_places(whole))
    holder, key = draw.choice(places)
    what = draw.randrange(5)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[draw.choice(["-", "--5", "²", "1" * 30, "\ud800", "_base_"])] = holder.pop(key)
    else:
        holder[key] = draw.choice(LEAVES)
    return whole


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


@pytest.mark.long
def test_a_run_s_config_with_anything_changed_is_a_config_or_one_sentence(tmp_path: Path) -> None:
    draw, path = random.Random(1), tmp_path / "config.json"
    said: list[str] = []
    for short in ("demo", "stage1"):
        plain = json.loads(json.dumps(configuration.to_dict(configuration.load(short))))
        for _ in range(150):
            path.write_text(json.dumps({"config": changed(plain, draw)}))
            try:
                configuration.load(str(path), [])
            except ConfigError as error:
                said.append(str(error))
    assert 75 < len(said) < 300
    assert all(sentence.startswith(f"{path}") for sentence in said)


@dataclass(frozen=True)
class Made:
    """A finished cache and what it was made of."""

    cache: Path
    manifest: Manifest
    buckets: Buckets


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = make_place(tmp_path_factory.mktemp("place"), identity=True)
    assert place.encode(place.folder / "cache") == 0
    return Made(place.folder / "cache", place.manifest(), place.plan().buckets)


def use(made: Made) -> None:
    """All that a run and the verb `features` do with a cache."""
    cache = made.cache
    features = Features(cache)
    features.check_files()
    features.check_rows(made.manifest, made.buckets)
    features_check.describe(cache, features.document)
    opened = features.shards()
    try:
        for at in range(len(features.clips)):
            opened.latents(at, 0, 1)
        opened.text("clip number 1")
    finally:
        opened.close()
    assert features.key["latents"]["kind"] == "exact"
    assert min(features.text_channels, features.encoder_channels, features.max_tokens) > 0


@pytest.mark.long
def test_a_cache_whose_document_is_changed_is_used_or_one_sentence(made: Made) -> None:
    draw, cache = random.Random(2), made.cache
    path = cache / "features.json"
    whole = path.read_text()
    refused = 0
    try:
        use(made)
        for _ in range(200):
            path.write_text(json.dumps(changed(json.loads(whole), draw)))
            try:
                use(made)
            except FeaturesError:
                refused += 1
    finally:
        path.write_text(whole)
    assert refused > 100


@pytest.mark.parametrize(
    "name", ["../../secret.bin", "/etc/passwd", "a/b.safetensors", "..", "", "a\0.safetensors", 5]
)
def test_a_shard_s_name_is_that_of_a_file_beside_the_document(made: Made, name: object) -> None:
    path = made.cache / "features.json"
    whole = path.read_text()
    try:
        for change in ("shards", "index"):
            document = json.loads(whole)
            if change == "index":
                document["index"] = name
            else:
                document["shards"][0][0] = name
            path.write_text(json.dumps(document))
            with pytest.raises(FeaturesError, match=r"features\.json is damaged"):
                Features(path.parent)
    finally:
        path.write_text(whole)


@pytest.mark.long
def test_an_index_whose_numbers_are_changed_is_used_or_one_sentence(made: Made) -> None:
    """With the hash of the changed file in the document, as somebody who wants harm would have it."""
    rng, cache = np.random.default_rng(3), made.cache
    path, index = cache / "features.json", next(made.cache.glob("index-*"))
    document, before = json.loads(path.read_text()), index.read_bytes()
    header = 8 + int.from_bytes(before[:8], "little")
    refused = 0
    try:
        for turn in range(150):
            changed_bytes = bytearray(before)
            low, high = (8, header) if turn % 3 == 0 else (header, len(before))
            for at in rng.integers(low, high, 3):
                changed_bytes[at] = rng.integers(0, 256)
            index.write_bytes(changed_bytes)
            path.write_text(json.dumps({**document, "index_sha256": sha256_of(index)}))
            try:
                use(made)
            except FeaturesError:
                refused += 1
    finally:
        index.write_bytes(before)
        path.write_text(json.dumps(document))
    use(made)
    assert refused > 50


DEEP = "x = 1\nfor _ in range({}):\n    x = {}\n"


@pytest.mark.parametrize("depth", [99, 150, 400, 900, 5000, 200_000])
@pytest.mark.parametrize("form", ["[x]", "(x,)", "{'a': x}"])
def test_a_deep_config_file_is_one_sentence(tmp_path: Path, form: str, depth: int) -> None:
    path = tmp_path / "deep.py"
    path.write_text(DEEP.format(depth, form))
    with pytest.raises(ConfigError, match=r"x is nested more than 100 levels|unknown|no key"):
        configuration.load(path)


@pytest.mark.parametrize(
    "text", ["x = " + "(" * 5000, "x = " + "[" * 150 + "]" * 150, "x = " + "-" * 90_000 + "1"]
)
def test_a_config_file_that_python_cannot_parse_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"deep\.py"):
        configuration.load(path)


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_without_a_float_is_no_json(sign: str) -> None:
    for digits in (301, 309, 400, 5000):
        with pytest.raises(ValueError, match="digits"):
            parse(f'[{{"mono_s": {sign}{"9" * digits}}}]')
        assert decode(f'{{"kind": "event", "name": "x", "time_s": {sign}{"9" * digits}}}') is None
    assert float(parse(f"{sign}{'9' * 300}".encode())) == pytest.approx(float(f"{sign}1e300"))


ODD = (None, True, [], {}, b"x", math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("value", ODD)
def test_other_types_are_none(value: object) -> None:
    assert (text(value), whole(value), count(value), number(value)) == ("", None, None, None)


def test_limits_are_in_the_range() -> None:
    assert (text("abc"), text("abc", 2)) == ("abc", "ab")
    assert [whole(one, 0, 2) for one in (-1, 0, 2, 3, 1.0, "1")] == [None, 0, 2, None, None, None]
    assert [count(one) for one in (-1, LARGEST, LARGEST + 1)] == [None, LARGEST, None]
    assert [number(one, 0, 2) for one in (-1, 0, 2.0, 2.1)] == [None, 0.0, 2.0, None]
    assert (whole(10**400), number(10**400)) == (10**400, None)


def test_lines_and_files_without_an_object_are_empty(tmp_path: Path) -> None:
    assert object_of(b'{"a": 1}') == {"a": 1}
    for line in (b"", b"[1]", b'{"a"', b"\xff", b"[" * 10_000):
        assert object_of(line) == {}
        (tmp_path / "file").write_bytes(line)
        assert run_files.object_in(tmp_path, "file") == {}
    assert run_files.object_in(tmp_path, "missing") == {}
