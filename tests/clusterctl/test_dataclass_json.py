"""What is encoded is decoded; what cannot be a field is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from clusterctl.dataclass_json import LEFT_OUT, Misshapen, decode, encode
from clusterctl.node_name import NodeName


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    name: NodeName
    ranks: tuple[int, ...] = ()
    pair: tuple[str, float] = ("a", 1.0)


@dataclass(frozen=True)
class Whole:
    path: Path
    parts: tuple[Part, ...]
    colour: Colour = Colour.RED
    names: frozenset[NodeName] = frozenset()
    why: Mapping[NodeName, str] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"
    part: Part | None = None
    more: dict[str, Any] = field(default_factory=dict)
    own: float = field(default=0.0, metadata=LEFT_OUT)


GOLDEN = (
    '{"path": "/a", "parts": [{"name": "n1", "ranks": [0, 1], "pair": ["a", 1.0]}], "colour": "red", '
    '"names": ["n1", "n2"], "why": {"n1": "x"}, "device": "cuda", "part": null, "more": {"a": [1]}}'
)  # fmt: skip
WHOLE = Whole(
    Path("/a"), (Part("n1", (0, 1)),), Colour.RED, frozenset({"n2", "n1"}), {"n1": "x"}, "cuda",
    more={"a": [1]}, own=1.0,
)  # fmt: skip


def test_what_is_encoded_is_decoded() -> None:
    assert json.dumps(encode(WHOLE)) == GOLDEN
    found = decode(Whole, json.loads(GOLDEN))
    assert encode(found) == encode(WHOLE)
    assert (found.own, found.parts) == (0.0, WHOLE.parts)
    assert decode(Whole, {"path": "/a", "parts": [], "later": 1}) == Whole(Path("/a"), ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": 7}, "path should be of type Path, is the number 7"),
        ({"parts": {}}, "parts should be of type tuple[Part, ...], is an object with 0 keys"),
        ({"parts": [{"name": "n1"}, 7]}, "parts[1] should be an object, is the number 7"),
        ({"parts": [{"name": "-x"}]}, "parts[0].name should be of type NodeName, is the text '-x'"),
        ({"parts": [{}]}, "parts[0].name should be there, is null"),
        ({"parts": [{"name": "n1", "ranks": [True]}]}, "is a list of 1"),
        ({"part": {"name": "n1", "pair": ["a"]}}, "part.pair should be a list of 2, is a list of 1"),
        ({"colour": "blue"}, "colour should be a Colour, is the text 'blue'"),
        ({"names": [[]]}, "names should be a list of plain values, is a list of 1"),
        ({"names": ["a b"]}, "names should be of type frozenset[NodeName], is a list of 1"),
        ({"why": {"../x": ""}}, "why should be of type Mapping[NodeName, str], is an object"),
        ({"device": "tpu"}, "is the text 'tpu'"),
        ({"more": "x" * 99}, "more should be of type dict[str, Any], is a text of 99 characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_field_is_refused_with_its_place(change: Any, said: str) -> None:
    with pytest.raises(Misshapen) as error:
        decode(Whole, {**json.loads(GOLDEN), **change})
    assert said in str(error.value)
    with pytest.raises(Misshapen, match="it should be an object, is a list of 0"):
        decode(Whole, [])
