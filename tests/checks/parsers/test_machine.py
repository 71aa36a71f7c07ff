"""Limits, mounts, network, processes, git and files: lines of the census."""

from __future__ import annotations

import json
import sys

from checks.facts import Blocked, Disk, FileSeen, GitState, Unknown
from checks.parsers import machine as parse
from checks.parsers.census import parse_census
from checks.parsers.clock import parse_clock
from checks.parsers.section import parsed
from clusterctl.remote import payload as ship
from tests.checks.sections import ended, lacking
from tests.clusterctl.payload.local import LocalConnection


def test_real_look_at_this_machine_is_understood(tmp_path) -> None:
    (tmp_path / "data.csv").write_text("x" * 321)
    args = {
        "everything": True, "growth_s": 0.02, "names": ["@", "localhost"], "nvml": True, "wandb": True,
        "files": [str(tmp_path / "data.csv"), "/nope"], "python": sys.executable,
    }  # fmt: skip
    facts = parse_census("me", ship.probe(LocalConnection(), "census", args, 60, nvml=True))
    assert not isinstance(facts.clock, Unknown)
    assert isinstance(facts.clock.moved_s, float)
    assert abs(facts.clock.moved_s) < 0.5
    assert not isinstance(facts.clock.daemons, Unknown)
    assert not isinstance(facts.shell_limits, Unknown)
    assert not isinstance(facts.network, Unknown)
    assert any(one.name == "lo" for one in facts.network.interfaces)
    assert facts.network.names["localhost"]
    assert not isinstance(facts.mounts, Unknown)
    assert isinstance(facts.mounts[0].disk, Disk)
    assert not isinstance(facts.processes, Unknown)
    assert facts.processes.count > 1
    assert not isinstance(facts.system, Unknown)
    assert not isinstance(facts.fabric, Unknown)
    assert facts.files == {
        str(tmp_path / "data.csv"): FileSeen(True, False, 321, 1), "/nope": FileSeen(False, False, 0, 0),
    }  # fmt: skip
    assert facts.wandb in (True, False)
    assert not isinstance(facts.software, Unknown)
    assert "pytest" in facts.software.installed


def test_limits_minus_one_is_unlimited() -> None:
    found = parse.read_limits("nofile=1048576\nnproc=-1\nmemlock=-1\nshm=1024\nshm_free=512\n")
    assert not isinstance(found, Unknown)
    assert (found.open_files, found.memlock_bytes, found.shm_bytes) == (1048576, None, 1024)
    assert isinstance(parse.read_limits("nofile=5\n"), Unknown)


def test_dead_mount_is_named_beside_the_living_ones() -> None:
    space = {
        "asked": "/",
        "free": 1,
        "total": 2,
        "inodes_free": 1,
        "inodes": 2,
        "writable": True,
        "is_folder": True,
    }
    lines = [
        json.dumps({"path": "/", "kind": "ext4", "source": "/dev/sda", "read_only": False, **space}),
        json.dumps({"path": "/data", "kind": "nfs4", "source": "fs:/d", "read_only": False, "error": "no answer in 4 s"}),
    ]  # fmt: skip
    found = parse.read_mounts("\n".join(lines))
    assert not isinstance(found, Unknown)
    assert [one.path for one in found] == ["/", "/data"]
    assert found[1].disk == Unknown("no answer in 4 s")
    assert found[1].is_network
    assert isinstance(parsed(lacking("timeout", "no end"), parse.read_mounts), Unknown)
    assert isinstance(parse.read_mounts("\n".join([*lines, "half of a li"])), Unknown)


def test_interfaces_with_addresses_and_names() -> None:
    sections = {
        "network": ended("eth0\tup\t9000\t25000\t1\nlo\tunknown\t65536\t?\t0\nib0\tdown\t4092\t-1\t1\n"),
        "addresses": ended("1: lo    inet 127.0.0.1/8 scope host lo\n2: eth0    inet 10.0.0.2/24 brd 10.0.0.255 scope global eth0\n"
                           "2: eth0@if3    inet6 fe80::1/64 scope link\n"),
        "name:@": ended("127.0.1.1"), "name:n1": ended("error\tName or service not known"),
    }  # fmt: skip
    found = parse.parse_network(sections)
    assert not isinstance(found, Unknown)
    eth = found.interfaces[0]
    assert (eth.up, eth.mtu, eth.speed_mbps, eth.is_hardware) == (True, 9000, 25000, True)
    assert eth.addresses == ("10.0.0.2/24", "fe80::1/64")
    assert isinstance(found.interfaces[2].speed_mbps, Unknown)
    assert found.names == {"@": ("127.0.1.1",), "n1": Unknown("Name or service not known")}


def test_processes() -> None:
    text = "count\t99\ndaemon\tchronyd\t7\nzombie\tsh\nblocked\t12\tcp\t400\tnfs_wait\nblocked\t13\tx\t?\t?\n"
    found = parse.read_processes(text)
    assert not isinstance(found, Unknown)
    assert found.zombies == ("sh",)
    assert found.blocked[0] == Blocked(12, "cp", "nfs_wait", 400.0)
    assert isinstance(found.blocked[1].since_s, Unknown)
    assert isinstance(parse.read_processes(""), Unknown)


def test_git_state() -> None:
    commit = "0123456789" * 4
    sections = {
        "git_head": ended(commit + "\n"),
        "git_status": ended("## main...origin/main\n M a.py\n?? b\n"),
    }
    assert parse.parse_git(sections) == GitState(commit, ("a.py", "b"))
    assert isinstance(parse.parse_git({"git_head": ended("fatal", 128)}), Unknown)
    assert isinstance(parse.parse_git({"git_head": ended(commit)}), Unknown)


def test_clock_step_while_the_payload_ran() -> None:
    found = parse_clock({"began": ended("999.500000 46.500000")}, 50.0, 1000.0)
    assert not isinstance(found, Unknown)
    assert found.moved_s == -3.0  # 950 now, 953 at the start
    silent = parse_clock({"began": ended("x")}, 50.0, 1000.0)
    assert not isinstance(silent, Unknown)
    assert isinstance(silent.moved_s, Unknown)
