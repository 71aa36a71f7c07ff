"""Lines that are written for other tools are refused with what to write; near misses are no labels."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import HostfileError
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.nodes import select


def refused(text: str) -> str:
    """The sentence about a hostfile with its hint."""
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "nodes.txt")
    assert str(caught.value).startswith("nodes.txt line ")
    return f"{caught.value}\n{caught.value.hint}"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("node1:8", "for 8 ranks write 'node1 slots=8', for a port port=8"),
        ("10.0.0.179:512", "for 512 ranks write '10.0.0.179 slots=512', for a port port=512"),
        ("node1:4022", "for port 4022 write 'node1 port=4022'"),
        ("node01:ppn=8:gpus=4", "write 'node01 slots=8'"),
        ("node1:8:mlx5_0", "write 'node1 slots=8'"),
        ("n[1-3]:8", "write 'n[1-3] slots=8'"),
        ("node1:8,node2:8", "give each node a line of its own, with slots=8"),
        ("node1 8", "write 'node1 slots=8'"),
        ("node1 8 all.q@node1 UNDEFINED", "write 'node1 slots=8'"),
        ("node1 slots:8", "write slots=8"),
        ("node1 slots = 8", "write key=value in one word"),
        ("node1 slots=8 max_slots=8", "leave it out, the line has slots="),
        ("node1 max-slots=20 slots=2", "leave it out, the line has slots="),
        ("node1 max_slots=20", "write slots=20, or"),
        ("node1 slots=2 slots=20", "keep one: slots=2 or slots=20"),
        ("node1 slots=0", "leave the line out"),
        ("node1 slots=auto", "number of processes"),
        ("node1 port=0", "leave port= out"),
        ("rank 0=node1", "write each node once"),
        ("rank 0=node1 slot=0-15", "write each node once"),
        ("rank 12 = node1 slot=1:0", "write each node once"),
        ("node-[1:30] ansible_host=10.42.0.[31:60]", "write 'node-[1-30]'"),
        ("node[01:16]", "write 'node[01-16]'"),
        ("node[1:9:2],m[3..4]", "write 'node[1-9/2]'"),
        ("m[3..4].lan", "write 'm[3-4].lan'"),
        ("node-[1-30] ansible_host=10.42.0.[31:60]", "give each node a line of its own"),
        ("node[a:f]", "write a set as n[1-3,7]"),
        ("gpu1:22", "for port 22 write 'gpu1 port=22'"),
        ("10.0.0.5:29500", "write '10.0.0.5 port=29500'"),
        ("ubuntu@gpu1:2222", "for port 2222 write 'gpu1 port=2222 user=ubuntu'"),
        ("gpu1 ubuntu", "write 'gpu1 user=ubuntu'"),
        ("gpu1 10.0.0.2", "write 'gpu1 host=10.0.0.2'"),
        ("10.0.0.2 gpu1", "write 'gpu1 host=10.0.0.2'"),
        ("ssh://root@gpu1:2222/", "write 'gpu1 port=2222 user=root'"),
        ("https://gpu1/x", "write 'gpu1'"),
        ("[::1]:22", "write 'NAME host=::1 port=22'"),
        ("[::1]", "write 'NAME host=::1'"),
        ("fe80::1%eth0", "write 'NAME host=fe80::1%eth0'"),
        ("gpu1 -p 2222", "port=2222, user=NAME"),
        ("Host gpu1", "is a line of ssh_config"),
        ("  HostName 10.0.0.1", "is a line of ssh_config"),
        ("gpu1 ssh-ed25519 AAAAC3", "is a line of known_hosts"),
        ("[gpus]", "is a section of an inventory"),
        ("[all:vars]", "is a section of an inventory"),
        ("node1 ansible_host=10.0.0.5", "write host=10.0.0.5"),
        ("node1 ansible_port=2222", "write port=2222"),
        ("node1 ansible_ssh_private_key_file=~/.ssh/id", "write identity=~/.ssh/id"),
        ("node1 ansible_connection=local", "is a variable of ansible"),
        ("all:", "is YAML or JSON"),
        ("---", "is YAML or JSON"),
        ("- node1", "is YAML or JSON"),
        ("    node1:", "is YAML or JSON"),
        ('{"hosts": ["n1"]}', "is YAML or JSON"),
        ("n1, n2", "write the names of one line without spaces: n1,n2"),
        ("node1\nnode1", "for more ranks there write slots=N"),
        ("n1 password=x", "logs in with keys only"),
        ("n1 prot=22", "write port=22, or"),
        ("n1 prt=22", "write port=22, or"),
        ("n1 Port=22", "write port=22, or"),
        ("n1 ports=22", "write port=22, or"),
        ("n1 hostt=10.0.0.1", "write host=10.0.0.1, or"),
        ("n1 hsot=10.0.0.1", "write host=10.0.0.1, or"),
        ("n1 uesr=me", "write user=me, or"),
        ("n1 slot=8", "write slots=8, or"),
        ("n1 identiy=~/.ssh/id", "write identity=~/.ssh/id, or"),
        ("n1 known_host=~/x", "write known_hosts=~/x, or"),
        ("n1 host=10.0.0.1:22", "write 'n1 host=10.0.0.1 port=22'"),
        ("n1 host=me@10.0.0.1", "write 'n1 host=10.0.0.1 user=me'"),
        ("n1 host=[::1]", "write host=::1"),
        ("n1 host=ssh://x", "write host=x"),
        ("bü", "write a name of these, and host=bü"),
        ("n{1..3},m", "write a set as n[1-3,7]"),
    ],
)
def test_other_tools_lines_are_refused_with_what_to_write(line: str, hint: str) -> None:
    said = refused(line if "\n" in line else f"good\n{line}")
    assert hint in said
    assert "line 2" in said


@pytest.mark.parametrize(
    "line",
    [
        "n1 rack=7 row=3 gpus=8 part=left cost=low role=head",
        "n1 host=fe80::1%eth0",
        "fe80::1",
        "::1 port=22",
        "n1. slots=8",
        "N_1-a.lab.example.com",
        "10.0.0.1",
    ],
)
def test_own_labels_and_all_addresses_are_good(line: str) -> None:
    assert len(parse_hostfile(line)) == 1


@pytest.mark.parametrize(
    ("only", "hint"),
    [
        ("n00[12]", "[12] is the number 12; write [1-2] for 1 and 2"),
        ("n00[137]", "write [1,3,7] for 1 and 3 and 7"),
        ("n001", "clusterctl nodes lists what is"),
        ("gpu1", "the hostfile has the full name gpu1.example.com"),
        ("n{1..2}", "a set is written n[1-3,7]"),
        ("n*", "a set is written n[1-3,7]"),
    ],
)
def test_a_set_as_shells_write_it_is_explained(only: str, hint: str) -> None:
    nodes = parse_hostfile("n[1-3]\ngpu1.example.com\n")
    with pytest.raises(HostfileError, match="is not in the hostfile") as caught:
        select(nodes, only)
    assert hint in str(caught.value.hint)


GROUPS = """
[Main]
default: mine
[mine]
map: case "$GROUP" in bad) echo "n1,@x';touch PWNED;echo'";; loop) echo @loop;; two) echo 'n[1-2],@rest';; rest) echo n7;; esac
all: echo n[1-9]
list: echo two rest
"""  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@two", "n1\nn2\nn7"),
        ("@mine:two,m", "n1\nn2\nn7\nm"),
        ("n[1-9]!@two", "n3\nn4\nn5\nn6\nn8\nn9"),
        ("@*", "n1\nn2\nn3\nn4\nn5\nn6\nn7\nn8\nn9"),
        ("root@n[1-2],@rest", "root@n1\nroot@n2\nn7"),
        ("@bad", "is not the name of a group"),
        ("@loop", "is in itself, or nested too deeply"),
        ("@x';touch PWNED;echo'", "is not the name of a group"),
        ("@none", "names no node"),
    ],
)
def test_groups_are_asked_by_name_and_their_answer_is_data(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "groups.conf").write_text(GROUPS)
    command = [sys.executable, "-m", "clusterctl", "nodes", "--expand", text]
    here = str(Path(__file__).parents[2])
    env = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path), "PYTHONPATH": here}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)  # fmt: skip
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("n1 known_hosts=/a\0b", "NUL"),
        ("n1 identity=/a\0b", "NUL"),
        ("n\0", "NUL"),
        ("n1 known_hosts=~nosuchuser/x", "no home folder ~nosuchuser"),
        ("n1 identity=~nosuchuser/x", "no home folder ~nosuchuser"),
        (f"n1 port={'9' * 5000}", "is not a number from 1 to 65535"),
        (f"n1 slots={'9' * 5000}", "is not a number from 1 to 1024"),
        ("n" * 10_000_000, "has more than 100,000 characters"),
        (f"n[{'1,' * 2_000_000}1]", "has more than 100,000 characters"),
        ("[" * 500_000, "has more than 100,000 characters"),
        ("[" * 99_000, "do not match"),
        (f"n[{'1,' * 49_000}1", "do not match"),
    ],
    ids=range(12),
)
def test_value_or_line_that_nobody_writes_is_a_sentence(line: str, why: str) -> None:
    assert why in refused(line)


def test_set_of_a_user_has_a_longest_size() -> None:
    with pytest.raises(HostfileError, match="more than 100,000 characters"):
        select(parse_hostfile("n1"), "n1," * 50_000, None)


def test_words_are_those_of_a_shell() -> None:
    (node,) = parse_hostfile("n1\t user=a  rack='a b' # a comment\r\n")
    assert (node.name, node.user, node.labels) == ("n1", "a", (("rack", "a b"),))


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/full", "/dev/tty", "."])
def test_hostfile_that_is_a_device_is_refused_unread(place: str) -> None:
    with pytest.raises(HostfileError, match=r"no plain file|cannot be read"):
        read_hostfile(Path(place))


def test_pipe_as_hostfile_is_read_to_its_end_and_waited_for_no_longer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(HostfileError, match=r"its writer has not ended it within 0\.1 s"):
        read_hostfile(pipe, 0.1)
    program = "for name in b a; do echo $name; sleep 0.05; done"
    command = f"{shlex.quote(sys.executable)} -m clusterctl nodes --json <({program})"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert [one["name"] for one in json.loads(done.stdout)["nodes"]] == ["b", "a"], done.stderr


def test_pipe_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    for command in ("yes n", "exec sleep 60"):
        writer = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with pytest.raises(HostfileError, match=r"more than 16,777,216 bytes|has not ended it"):
            read_hostfile(Path(f"/dev/fd/{writer.stdout.fileno()}"), 0.2)
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_hostfile_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "nodes.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(HostfileError, match="more than 16,777,216 bytes"):
        read_hostfile(tmp_path / "nodes.txt")
