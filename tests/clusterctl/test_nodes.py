"""Hostfiles and node sets: order kept, every mistake named with its line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import HostfileError
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.node_sets import expand
from clusterctl.nodes import Node, fold, select

# The first lines of the hostfile that `colossalai run` users have: one name a line.
PLAIN = "ml-64-node-001\nml-64-node-002\n\nml-64-node-003\n"


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def test_plain_names_one_a_line() -> None:
    assert names(parse_hostfile(PLAIN)) == ["ml-64-node-001", "ml-64-node-002", "ml-64-node-003"]


def test_addresses_are_names_too() -> None:
    assert names(parse_hostfile("10.0.0.2\n10.0.0.1\nfe80::1\n")) == [
        "10.0.0.2",
        "10.0.0.1",
        "fe80::1",
    ]


def test_keys_comments_quotes_and_order() -> None:
    nodes = parse_hostfile(
        "# the lab\n"
        "b host=10.0.0.2 port=2222 user=me slots=8 identity='~/my key' rack=7  # a comment\n"
        "root@a\n"
    )
    assert names(nodes) == ["b", "a"]
    assert nodes[0] == Node("b", "10.0.0.2", 2222, "me", 8, "~/my key")
    assert nodes[0].labels == (("rack", "7"),)
    assert (nodes[1].user, nodes[1].address) == ("root", "a")


def test_node_sets_expand_in_the_order_written() -> None:
    nodes = parse_hostfile("n[3,1-2],z slots=2\nm\n")
    assert names(nodes) == ["n1", "n2", "n3", "z", "m"]
    assert [node.slots for node in nodes] == [2, 2, 2, 2, None]


def test_user_holds_for_the_whole_set() -> None:
    nodes = parse_hostfile("root@n[1-2]\n")
    assert [(node.user, node.name) for node in nodes] == [("root", "n1"), ("root", "n2")]


def test_padding_is_kept() -> None:
    assert expand("ml-64-node-[008-011]") == [f"ml-64-node-{i:03d}" for i in range(8, 12)]


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb slots=2\r\n")
    assert names(read_hostfile(path)) == ["a", "b"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no node"),
        ("# only\n\n", "names no node"),
        ("a\nb\na\n", "line 3: a is already defined on line 1"),
        ("n[1-3]\nn2\n", "line 2: n2 is already defined on line 1"),
        ("me@a\nyou@a\n", "line 2: a is already defined on line 1"),
        ("a\nb slots\n", "line 2: 'slots' is not key=value"),
        ("a =8\n", "line 1: '=8' is not key=value"),
        ("a slots=\n", "line 1: 'slots=' is not key=value"),
        ("a slots=two\n", "line 1: slots=two is not a number from 1 to 1024"),
        ("a slots=0\n", "line 1: slots=0"),
        ("a port=70000\n", "line 1: port=70000 is not a number from 1 to 65535"),
        ("a port=２２\n", "line 1: port=２２"),
        ("a slots=1 slots=2\n", "line 1: slots= is given twice"),
        ("a\n\nb 'open\n", "line 3: No closing quotation"),
        ("n[1-\n", "line 1: 'n[1-' is not a node set"),
        ("n[5-1]\n", "line 1: 'n[5-1]' is not a node set"),
        ("n[a-c]\n", "line 1: 'n[a-c]' is not a node set"),
        ("n[1-2] host=10.0.0.1\n", "line 1: host=10.0.0.1 cannot stand for 2 nodes"),
        ("me@a user=you\n", "line 1: two users, me and you"),
        ("@a\n", "line 1"),
        ("@@a\n", "line 1"),
        ("n[1-1000000000]\n", "line 1: 'n[1-1000000000]' names more than 100,000 nodes"),
        ("n[1-90000]m[1-90000]\n", "names more than 100,000 nodes"),
        ("n[0-9999]-[0-9999]\n", "names more than 100,000 nodes"),
        ("n[1-60000],m[1-60000]\n", "names more than 100,000 nodes"),
        (f"n[1-{'9' * 5000}]\n", "names more than 100,000 nodes"),
        ("n[1-60000]\nm[1-60000]\n", "line 2: up to here there are more than 100,000 nodes"),
        (
            "a host='$(touch x)'\n",
            "line 1: host name '$(touch x)' contains '$', which a shell could interpret",
        ),
        ("'a`id`'\n", "line 1: host name 'a`id`' contains '`'"),
        ("-oProxyCommand=x\n", "line 1: host name '-oProxyCommand=x' begins with '-'"),
        ("a user='x;id'\n", "line 1: user name 'x;id' contains ';'"),
        ("'x|y@a'\n", "line 1: user name 'x|y' contains '|'"),
        ("a\u202eb\n", "line 1: host name 'a\\u202eb' contains"),
        ("a@\n", "line 1: 'a@' is not a node name"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, words: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "nodes.txt")
    assert "nodes.txt" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("r1-20240101-n[1-4]", 4),
        ("n[1-100000/1000]", 100),
        ("n[1-40000]!n[3-40000]", 2),
        ("n[1-300]m[1-300]", 90_000),
        ("gpu-20240101-20250101", 1),
    ],
)
def test_only_ranges_in_brackets_count_as_nodes(text: str, count: int) -> None:
    assert len(expand(text)) == count


def test_a_set_that_is_too_large_is_refused_before_it_is_built() -> None:
    started = time.process_time()
    for text in ("n[1-90000]m[1-90000]", "n[0-9999]-[0-9999]", "n[ 1 - 900000000 ]"):
        with pytest.raises(HostfileError):
            expand(text)
    assert time.process_time() - started < 1  # the first took over 20 s


def own_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_known_hosts_is_taken_from_a_hostfile_of_ours(tmp_path: Path) -> None:
    path = own_file(tmp_path / "nodes.txt", f"a known_hosts={tmp_path}/later\n")
    assert dict(read_hostfile(path)[0].labels) == {"known_hosts": f"{tmp_path}/later"}


@pytest.mark.parametrize("writable", ["nodes.txt", "known_hosts", "."])
def test_known_hosts_that_others_could_have_written_is_refused(
    tmp_path: Path, writable: str
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    known = own_file(folder / "known_hosts", "")
    path = own_file(folder / "nodes.txt", f"a known_hosts={known}\n")
    (folder / writable).chmod(0o777)
    with pytest.raises(HostfileError, match=r"known_hosts=.* is not taken: .* by other users"):
        read_hostfile(path)
    plain = own_file(folder / "plain.txt", "a\n")
    plain.chmod(0o666)
    assert names(read_hostfile(plain)) == ["a"]  # without known_hosts= it can say little


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_known_hosts_in_somebody_else_s_hostfile_is_refused(tmp_path: Path) -> None:
    path = own_file(tmp_path / "nodes.txt", f"a known_hosts={tmp_path}/known_hosts\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(HostfileError, match="belongs to user 65534"):
        read_hostfile(path)


def test_missing_and_unreadable_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HostfileError, match=r"does not exist") as caught:
        read_hostfile(tmp_path / "none.txt")
    assert "nodes.txt.example" in (caught.value.hint or "")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00a")
    for path, why in (
        (tmp_path, "it is a folder, no plain file"),
        (tmp_path / "binary", "it is not text in UTF-8"),
    ):
        with pytest.raises(HostfileError, match=f"cannot be read: {why}"):
            read_hostfile(path)


def test_shipped_example_is_valid() -> None:
    example = Path(__file__).parents[2] / "nodes.txt.example"
    assert len(read_hostfile(example)) >= 3


def test_select_keeps_the_hostfile_s_order() -> None:
    nodes = parse_hostfile("c\nb\na\nd\n")
    assert names(select(nodes, "a,c,d")) == ["c", "a", "d"]
    assert names(select(nodes, without="b")) == ["c", "a", "d"]
    assert names(select(nodes, "a,b,c", "b")) == ["c", "a"]
    assert names(select(nodes)) == ["c", "b", "a", "d"]


@pytest.mark.parametrize(
    ("only", "without", "words"),
    [
        ("zz", None, "-w: zz is not in the hostfile"),
        (None, "n[7-9]", r"-x: n\[7-9\] is not in the hostfile"),
        ("n1", "n1", "leave no node"),
    ],
)
def test_select_refuses_strangers_and_nothing(only, without, words: str) -> None:
    with pytest.raises(HostfileError, match=words):
        select(parse_hostfile("n[1-3]\n"), only, without)


NAMES = st.lists(
    st.builds(
        "{}{:0{}d}".format,
        st.sampled_from(["n", "ml-64-node-", "gpu", "rack2-n"]),
        st.integers(0, 300),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=40,
    unique=True,
)


@pytest.mark.long
@given(NAMES)
def test_fold_and_expand_are_inverse_as_sets(some: list[str]) -> None:
    assert set(expand(fold(some))) == set(some)


@given(NAMES)
def test_expand_never_doubles_and_names_stay_in_hostfile_order(some: list[str]) -> None:
    nodes = parse_hostfile("\n".join(some))
    assert names(nodes) == some
    assert names(select(nodes, fold(some))) == some


def nodes_or_sentence(text: str) -> list[Node]:
    """At least one node, or a `HostfileError` that names the file; never anything else."""
    try:
        nodes = parse_hostfile(text, "nodes.txt")
    except HostfileError as error:
        return [] if str(error).startswith("nodes.txt") else pytest.fail(str(error))
    return nodes or pytest.fail("no node and no error")


@pytest.mark.parametrize("text", ["a@,", "n1,root@", "n1,root@ ,n2"])
def test_a_user_without_a_node_is_a_sentence(text: str) -> None:
    with pytest.raises(HostfileError, match=r"^nodes\.txt line 1: "):
        parse_hostfile(text, "nodes.txt")


@given(st.text(max_size=60))
def test_any_text_gives_nodes_or_a_sentence(text: str) -> None:
    nodes = nodes_or_sentence(text)
    assert len(set(names(nodes))) == len(nodes)


@given(st.lists(st.sampled_from(["a", "n[1-3]", "x=1", "slots=2", "[", "]", ",", "@", "#", "'"])))
def test_any_mix_of_pieces_gives_nodes_or_a_sentence(pieces: list[str]) -> None:
    for joint in ("", " ", "\n"):
        nodes_or_sentence(joint.join(pieces))
