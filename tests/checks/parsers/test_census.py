"""The census's envelope to facts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.facts import Disk, Memory, NodeFacts, Port, PythonEnv, Unknown, to_json
from checks.parsers.census import parse_census
from clusterctl.remote import payload as ship
from tests.checks.sections import NODE
from tests.clusterctl.payload.local import LocalConnection


def raw(out: str, state: str = "ended", rc: int | None = 0, err: str = "") -> dict[str, Any]:
    return {"state": state, "rc": rc, "out": out, "err": err, "seconds": 0.1}


def parse(**sections: Any) -> NodeFacts:
    return parse_census("n1", {"sections": sections, "node": NODE})


@pytest.mark.long
def test_real_census_of_this_machine_is_understood(tmp_path) -> None:
    import sys

    args = {"paths": [str(tmp_path / "not" / "yet")], "python": sys.executable, "ports": [1]}
    facts = parse_census("me", ship.probe(LocalConnection(), "census", args, 60))
    assert isinstance(facts.hostname, str)
    assert isinstance(facts.memory, Memory)
    assert facts.memory.total_bytes > facts.memory.available_bytes > 0
    assert isinstance(facts.load_1min, float)
    assert not isinstance(facts.machine, Unknown)
    assert isinstance(facts.machine.boot_id, str)
    disk = facts.disks[str(tmp_path / "not" / "yet")]
    assert isinstance(disk, Disk)
    assert (disk.path, disk.writable) == (str(tmp_path), True)
    assert facts.interpreter == "works"
    assert isinstance(facts.software, PythonEnv)
    assert facts.software.version == sys.version.split()[0]
    assert facts.software.packages["clusterctl"]
    assert not isinstance(facts.ports[1], Unknown)


def test_every_tool_missing_is_unknown_and_no_exception() -> None:
    facts = parse()
    assert facts.gpus.state == "unreadable"
    assert isinstance(facts.memory, Unknown)
    assert isinstance(facts.software, Unknown)
    assert facts.interpreter == "unknown"


def test_interpreter_missing_broken_or_silent_are_three_things() -> None:
    assert parse(python=raw("", "missing", None, "not found: /x")).interpreter == "missing"
    assert parse(python=raw("", rc=1, err="no module json")).interpreter == "broken"
    assert parse(python=raw("", "error", None, "Permission denied")).interpreter == "broken"
    assert parse(python=raw("", "timeout", None, "no end in 20 s")).interpreter == "unknown"


def test_dead_mount_is_unknown_with_the_reason() -> None:
    facts = parse(**{"disk:/mnt": raw("", "timeout", None, "no end in 10 s, killed")})
    assert facts.disks["/mnt"] == Unknown("no end in 10 s, killed")


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("free", Port(True)),
        ("Address already in use by pid 7: python x", Port(False, "Address already in use by pid 7: python x")),
        ("Permission denied ", Port(False, "this user may not listen there")),
    ],
)  # fmt: skip
def test_ports(text: str, port: Port) -> None:
    assert parse(**{"port:29500": raw(text)}).ports[29500] == port


def test_unknown_is_null_with_its_reason_in_json() -> None:
    data = to_json(parse())
    assert data["memory"] is None
    assert data["unknown"]["memory"] == "not asked"
    json.dumps(data)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["gpus", "gpu_processes", "gpu_owners", "pci", "meminfo", "loadavg", "machine", "python",
     "disk:/", "port:1", "port:x", "disk:", "other"]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=60),
    JSON.map(lambda value: json.dumps(value)),
    st.sampled_from(["{}", "MemTotal: 1 kB\n", "cpus=x\nns_net", '{"python": 3}', "nan 1 2", "[" * 3000]),
)  # fmt: skip
SECTIONS = st.one_of(TEXTS.map(raw), TEXTS.map(lambda text: raw(text, "timeout", None, text)))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, SECTIONS, max_size=6))
def test_any_text_gives_facts(sections) -> None:
    json.dumps(to_json(parse(**sections)))
