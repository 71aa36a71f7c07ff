"""`clusterctl run`: folding, differences, exit codes."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.commands.run import command
from clusterctl.remote.fanout import Fanout
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.launch.harness import wait_until

NAMES = ["n2", "n1", "n10", "n3"]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    return patch(monkeypatch, LocalCluster(tmp_path, NAMES))


def run(cluster: LocalCluster, *args: str) -> int:
    return cli.run(["run", *args, str(cluster.hostfile)])


@pytest.mark.long
def test_equal_outputs_are_folded_under_one_header(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "echo hello; echo world") == 0
    out, err = capsys.readouterr()
    assert out == "== n[1-3,10] (4 nodes)\nhello\nworld\n"
    assert err == ""


@pytest.mark.long
def test_groups_stand_in_hostfile_order(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, 'case $NODE in n1|n3) echo odd;; *) echo "$NODE";; esac') == 0
    assert capsys.readouterr().out == "== n2\nn2\n== n[1,3] (2 nodes)\nodd\n== n10\nn10\n"


@pytest.mark.long
def test_error_texts_are_folded_apart_from_the_output(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "echo $NODE; echo oops >&2") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 8
    assert err == "n[1-3,10]: oops\n"


@pytest.mark.long
def test_diff_shows_the_majority_and_what_differs(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "--diff", "echo a; [ $NODE = n1 ] && echo odd || echo b; echo c") == 0
    assert capsys.readouterr().out.splitlines() == [
        "== n[2-3,10] (3 nodes)", "a", "b", "c",
        "--- n[2-3,10] (3 nodes)", "+++ n1", "@@ -1,3 +1,3 @@", " a", "-b", "+odd", " c",
    ]  # fmt: skip


@pytest.mark.long
def test_diff_of_equal_output_with_another_exit_says_so(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "--diff", "echo a; [ $NODE != n1 ]") == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "--- n[2-3,10] (3 nodes)", "+++ n1 (exit 1)", " (same output)",
    ]  # fmt: skip


@pytest.mark.long
def test_no_fold_prefixes_each_line_in_hostfile_order(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "--no-fold", "echo x; echo oops >&2") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{name}: x" for name in NAMES]
    assert err.splitlines() == [f"{name}: oops" for name in NAMES]


@pytest.mark.long
def test_failed_command_is_exit_1_and_named(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "[ $NODE != n10 ] || { echo broken >&2; exit 7; }") == 1
    out, err = capsys.readouterr()
    assert "== n10 (exit 7)" in out
    assert "n10: broken" in err
    assert "3 of 4 nodes ok; n10: exit 7" in err


@pytest.mark.long
def test_dead_node_is_exit_3_and_hides_nobody(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n1")
    assert run(nodes, "echo x") == 3
    out, err = capsys.readouterr()
    assert out.startswith("== n[2-3,10] (3 nodes)\nx\n")
    assert "error: 1 of 4 nodes did not answer" in err
    assert "n1  banner" in err
    assert "the server sent nothing" in err
    assert "hint: look at sshd" in err


@pytest.mark.long
def test_failure_weighs_more_than_a_dead_node(nodes: LocalCluster) -> None:
    nodes.kill("n1")
    assert run(nodes, "[ $NODE != n10 ]") == 1


def test_command_timeout_kills_and_reports(nodes: LocalCluster, tmp_path: Path, capsys) -> None:
    pid_file = tmp_path / "pid"
    assert (
        run(nodes, "-w", "n1", "--command-timeout", "0.5", f"echo $$ >{pid_file}; sleep 600") == 1
    )
    assert "== n1 (no end in 0.5 s, killed; --command-timeout gives it more time)" in capsys.readouterr().out  # fmt: skip
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


@pytest.fixture
def one_waits(tmp_path: Path) -> Iterator[str]:
    """A command that n10 only ends with the test, so that no thread of it outlives that."""
    end = tmp_path / "end"
    yield f"[ $NODE = n10 ] && until [ -e {end} ]; do sleep 0.02; done; echo hello"
    end.touch()
    wait_until(lambda: not any(t.name.startswith("fanout-") for t in threading.enumerate()))


def interrupt_when_waiting_for(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A real SIGINT while so many nodes have not answered."""

    def meanwhile(self: Fanout) -> None:
        if len(self._open) == count:
            signal.raise_signal(signal.SIGINT)

    begin = Fanout.__init__

    def made(self: Fanout, *args, **options) -> None:
        begin(self, *args, **{**options, "meanwhile": lambda: meanwhile(self)})

    monkeypatch.setattr(Fanout, "__init__", made)


@pytest.mark.long
def test_ctrl_c_shows_the_answers_that_are_there(
    nodes: LocalCluster, one_waits: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_when_waiting_for(monkeypatch, 1)
    assert run(nodes, one_waits) == 130
    out, err = capsys.readouterr()
    assert out == "== n[1-3] (3 nodes)\nhello\n"
    assert "1 of 4 nodes did not answer" in err
    assert re.search(r"n10 +\w+ +\S+ s +interrupted before it answered", err), err
    assert err.endswith("interrupted\n")


@pytest.mark.long
def test_ctrl_c_with_json_is_one_document_of_all_nodes(
    nodes: LocalCluster, one_waits: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_when_waiting_for(monkeypatch, 1)
    assert run(nodes, "--json", one_waits) == 130
    found = {one["node"]: one for one in json.loads(capsys.readouterr().out)["nodes"]}
    assert [name for name in NAMES if found[name]["unreachable"] is None] == ["n2", "n1", "n3"]
    assert found["n10"]["unreachable"]["message"] == "interrupted before it answered"


@pytest.mark.parametrize("words", [["uname", "-r", "nodes.txt"], ["uname", "x", "y"]])
def test_words_that_are_not_quoted_are_told(words: list[str], capsys) -> None:
    assert cli.run(["run", *words]) == 2
    assert "clusterctl run 'uname -r' nodes.txt" in capsys.readouterr().err


def test_a_file_is_no_command(nodes: LocalCluster, capsys) -> None:
    assert cli.run(["run", str(nodes.hostfile)]) == 2
    assert "is a file of this folder, not a command" in capsys.readouterr().err


def test_a_long_command_is_given_ten_minutes() -> None:
    (option,) = [one for one in command.params if one.name == "command_timeout"]
    assert option.default == 600


def test_quoting_reaches_the_node_untouched(nodes: LocalCluster, capsys) -> None:
    text = """printf '%s\\n' "it's" '$HOME' "a;b"; cat; exit 0"""
    assert run(nodes, "-w", "n1", text) == 0
    assert capsys.readouterr().out == "== n1\nit's\n$HOME\na;b\n"


def test_lines_end_at_newlines_only(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "-w", "n1", "--no-fold", r"printf '10%%\r20%%\n\n\f\n'") == 0
    assert capsys.readouterr().out == "n1: 10%\\r20%\nn1: \nn1: \\x0c\n"


@pytest.mark.long
def test_json_has_every_node_in_order(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n1")
    assert run(nodes, "--json", "echo $NODE; [ $NODE != n3 ]") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "run")
    assert [node["node"] for node in document["nodes"]] == NAMES
    by_name = {node["node"]: node for node in document["nodes"]}
    assert by_name["n2"]["out"] == "n2\n"
    assert by_name["n3"]["rc"] == 1
    assert by_name["n1"]["unreachable"]["phase"] == "banner"


@pytest.mark.long
def test_quiet_is_one_line(nodes: LocalCluster, capsys) -> None:
    assert run(nodes, "-q", "[ $NODE != n3 ]") == 1
    assert capsys.readouterr() == ("3 of 4 nodes ok; n3: exit 1\n", "")


@pytest.mark.long
def test_very_verbose_shows_the_phases_of_each_node(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n1")
    run(nodes, "-vv", "true")
    lines = [line for line in capsys.readouterr().err.splitlines() if ", command " in line]
    assert [line.split(":")[0] for line in lines] == ["n2", "n10", "n3"]
    assert re.fullmatch(r"n2: resolve \d\.\d{3}, tcp \d\.\d{3}, command \d\.\d{3} s", lines[0])


@pytest.mark.long
def test_verbose_shows_timings_and_the_shells_noise(nodes: LocalCluster, capsys) -> None:
    nodes.nodes["n1"].shell = "echo Welcome; "
    assert run(nodes, "-v", "echo x") == 0
    out, err = capsys.readouterr()
    assert " s)\nx\n" in out
    assert "n1: the shell says at its start: Welcome" in err


@pytest.mark.long
def test_a_flood_of_any_bytes_comes_whole(nodes: LocalCluster, capsys) -> None:
    assert (
        cli.run(["run", "head -c 3500000 /dev/zero", str(nodes.hostfile), "--json", "-w", "n1"])
        == 0
    )
    for node in json.loads(capsys.readouterr().out)["nodes"]:
        assert (node["rc"], node["truncated"]) == (0, False)
        assert node["out"] == "\0" * 3_500_000


@pytest.mark.long
def test_what_is_cut_is_said(nodes: LocalCluster, capsys) -> None:
    text = "head -c 5000000 /dev/zero | tr '\\0' x; head -c 2000000 /dev/zero >&2; exit 3"
    assert cli.run(["run", text, str(nodes.hostfile), "--json", "-w", "n1"]) == 1
    for node in json.loads(capsys.readouterr().out)["nodes"]:
        assert (node["rc"], node["truncated"]) == (3, True)
        assert (len(node["out"]), len(node["err"])) == (4 << 20, 1 << 20)
    assert cli.run(["run", text, str(nodes.hostfile), "-w", "n1"]) == 1
    assert "output cut" in capsys.readouterr().out


@pytest.mark.long
def test_escapes_in_output_are_shown_not_obeyed(nodes: LocalCluster, capsys) -> None:
    text = r"printf 'a\033]52;c;cm0=\007\033[31mred\033[0m\tb\n'; printf 'e\033[2J\n' >&2"
    for more in ([], ["--no-fold"], ["--diff"], ["-v"]):
        assert cli.run(["run", text, str(nodes.hostfile), *more]) == 0
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
        assert "a\\x1b]52;c;cm0=\\x07red\tb\n" in shown.out
        assert "e\\x1b[2J" in shown.err
    cli.run(["run", text, str(nodes.hostfile), "--json"])  # JSON has what came, escaped by itself
    document = capsys.readouterr().out
    assert "\x1b" not in document
    assert json.loads(document)["nodes"][0]["out"] == "a\x1b]52;c;cm0=\x07\x1b[31mred\x1b[0m\tb\n"
