"""Files of a checkpoint and configurations of any content: one sentence, never a traceback."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.checkpoint.saving import save
from trainer.checkpoint import files as checkpoint
from trainer.config.load import Config
from trainer.data.plan.buckets import Buckets
from trainer.errors import CheckpointError, ConfigError
from trainer.guards.guards import FILE, Guards
from trainer.resume import read_source, take_guards
from trainer.weights import checkpoints

GOOD = {
    checkpoint.RUNNING: {"schema": 1, "epoch": 0, "global_step": 4, "samples": 8, "bad_samples": 0, "ema_updates": 4, "world": 2, "bad_clips": ["a.mp4"]},
    checkpoint.SCHEDULE: {"schema": 1, "steps": 4, "lr": 1e-4},
    checkpoint.SAMPLER: {},
    FILE: {"schema": 1, "skips": {"norms": {"16px 8f": [1.5]}, "skipped": [3], "count": 1}, "spikes": None, "rollbacks": {"tries": 0, "point": 0}},
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ENTRIES = [(file, name) for file, entry in GOOD.items() for name in (*entry, None)]
many = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def write(folder: Path, documents: dict) -> Path:
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return folder


@contextlib.contextmanager
def named(file: str) -> Iterator[None]:
    """Nothing may be raised but a sentence that names the file."""
    said = ""
    try:
        yield
    except CheckpointError as error:
        said = str(error)
    assert not said or file in said


@pytest.mark.long
@many
@given(JSON, st.sampled_from(ENTRIES))
def test_any_json_beside_the_tensors_is_taken_or_refused_by_name(tmp_path, value, entry):
    file, name = entry
    documents = {**GOOD, file: value if name is None else {**GOOD[file], name: value}}
    with named(file):
        source = read_source(write(tmp_path, documents))
        counts = GOOD[checkpoint.RUNNING].keys() - {"schema", "bad_clips"}
        assert all(isinstance(source.running[key], int) for key in counts)
        assert isinstance(source.schedule.get("steps", source.schedule.get("last_epoch")), int)
        plan: Any = SimpleNamespace(buckets=Buckets.parse({"16px": {8: (1.0, 4)}}))
        guards = Guards(Config(), plan, Mock())
        take_guards(guards, source, None)
        assert all(limit > 0 for limit in (guards._skips.begin(("16px 8f",)),))


@pytest.mark.long
@many
@given(st.binary(max_size=60), st.sampled_from(sorted(GOOD)))
def test_any_bytes_beside_the_tensors_are_taken_or_refused_by_name(tmp_path, data, file):
    write(tmp_path, GOOD)
    (tmp_path / file).write_bytes(data)
    with named(file):
        read_source(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = save(tmp_path_factory.mktemp("run"), 1)
    return path


@pytest.mark.long
@many
@given(JSON, st.sampled_from(["schema", "files", None, "file"]))
def test_any_json_as_manifest_is_refused_by_name_or_names_whole_files(whole, value, name):
    manifest = whole / checkpoints.MANIFEST
    before = manifest.read_text()
    document = json.loads(before)
    if name == "file":
        document["files"]["a.json"] = value
    else:
        document = value if name is None else {**document, name: value}
    try:
        manifest.write_text(json.dumps(document))
        with contextlib.suppress(CheckpointError):
            checkpoint.verify(whole)
            assert name == "schema" or document == json.loads(before) or document["files"] == {}
    finally:
        manifest.write_text(before)


@many
@given(st.binary(max_size=40))
def test_latest_may_hold_anything(whole, data):
    pointer = whole.parent / checkpoints.LATEST
    pointer.write_bytes(data)
    assert checkpoints.find(whole.parent) == whole


@many
@given(st.binary(max_size=200))
def test_any_bytes_as_seen_ids_are_ids_or_refused_by_name(tmp_path, data):
    path = tmp_path / checkpoint.SEEN
    for content in (data, b"\x93NUMPY\x01\x00" + data):
        path.write_bytes(content)
        with named(checkpoint.SEEN):
            assert checkpoint.read_array(path).dtype == np.uint64


@pytest.mark.long
@many
@given(JSON | st.dictionaries(st.sampled_from(["144p", "360p", "64px"]), JSON | st.dictionaries(st.sampled_from([1, 51, "51", 0]), JSON | st.tuples(JSON, JSON), max_size=2), max_size=2))  # fmt: skip
def test_any_bucket_config_is_taken_or_refused_in_one_sentence(config):
    with contextlib.suppress(ConfigError):
        buckets = Buckets.parse(config)
        assert buckets.cells
        assert Buckets.parse(json.loads(json.dumps(config))).hash == buckets.hash
