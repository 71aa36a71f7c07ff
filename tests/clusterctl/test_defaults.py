"""clusterctl.toml: who may set what, who wins, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from clusterctl import cli
from clusterctl.defaults import PERSONAL, options

NOBODY = 65534
HARMLESS = frozenset(
    (
        # which nodes, how long, how they are shown
        "hostfile", "only", "without", "include", "exclude", "fanout", "connect_timeout",
        "command_timeout", "deadline", "json", "quiet", "verbose", "color", "interval", "for", "fold",
        "no_fold", "expand", "processes", "watch", "diff", "profile", "limit", "pairs", "growth",
        "no_history", "list", "explain", "theme", "speed", "readonly", "run", "run_dir", "replay", "demo",
        "print", "samples", "sites", "native_suspects", "blocking", "dump_timeout", "no_ras", "wait", "patience",
        "exec_timeout", "clip_timeout", "keep", "dry_run",
        # what is trained or looked at, and how it is judged
        "outputs", "columns", "seed", "steps", "score", "device", "nccl", "nproc_per_node", "master_addr",
        "master_port", "env_from_facts", "grace", "start_timeout", "hang_timeout", "keep_for", "look", "min_free",
        "orphan_timeout", "stack_timeout", "no_memory",
        "detach", "max_restarts", "spares", "min_nodes", "wait_for_nodes",
        "launch", "shared", "check", "skip", "skip_check", "severity", "active", "root", "workers",
        "follow", "rank", "node", "since", "attempt", "tail", "logs",
        "max_wrong_rows", "command", "reason", "mtbf", "save_stall", "step_time", "ranks",
        "max_loss_increase", "max_slowdown", "history", "nodes", "columns",
        "preset", "weights", "expnums", "last_step", "every", "only_first_of_epoch", "compute_only",
        "validate", "no_videos",
    )
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a home of the user's own beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "nodes.txt").write_text("b\na[1-2] port=2200\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLUSTERCTL_HOSTFILE", raising=False)
    (tmp_path / "config" / "clusterctl").mkdir(parents=True)
    return folder


@pytest.fixture
def own(here: Path) -> Path:
    return here.parent / "config" / "clusterctl" / "clusterctl.toml"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.run(list(words)) == 2
    return capsys.readouterr().err


def test_every_option_is_judged_personal_or_harmless() -> None:
    found = {key for name in cli.COMMANDS for key in options(command(name))}
    assert found - PERSONAL - HARMLESS == set(), "may somebody's project set them?"
    assert set() == PERSONAL & HARMLESS
    assert PERSONAL - found == set()


def command(name: str) -> click.Command:
    found = cli.group.get_command(click.Context(cli.group), name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("watch", 'exec = "/bin/evil"'), ("launch", "yes = true"), ("nodes", "accept-new = true"),
        ("stop", "sudo = true"), ("dump-stacks", 'py-spy = "/tmp/x"'), ("launch", 'env = ["LD_PRELOAD=x"]'),
        ("preflight", 'junit = "/root/.bashrc"'), ("top", "web = true"),
    ],
)  # fmt: skip
def test_folder_sets_nothing_that_runs_programs_or_lowers_guards(
    here: Path, own: Path, capsys, verb: str, line: str
) -> None:
    for text in (f"[{verb}]\n{line}\n", f"{line}\n"):
        (here / "clusterctl.toml").write_text(text)
        said = refusal(capsys, verb, "--dry-run" if verb in ("launch", "stop") else "--only", "b")
        assert "it may have come with a project" in said
        assert str(own) in said
    (here / "clusterctl.toml").unlink()
    own.write_text(f"[{verb}]\n{line}\n")
    assert cli.run([verb, "--help"]) == 0


def test_own_file_sets_them_and_the_folder_stands_over_the_rest(
    here: Path, own: Path, capsys
) -> None:
    own.write_text('accept-new = true\nconnect-timeout = 7\n[nodes]\nonly = "b"\n')
    (here / "clusterctl.toml").write_text('[nodes]\nonly = "a1"\n')
    assert cli.run(["nodes", "-v"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[0] == "a1"
    assert "accept_new = True (default_map)" in err
    assert "connect_timeout = 7.0 (default_map)" in err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's file")
def test_file_of_another_user_is_refused(here: Path, capsys) -> None:
    path = here / "clusterctl.toml"
    path.write_text('[nodes]\nonly = "a1"\n')
    os.chown(path, NOBODY, NOBODY)
    assert f"{path} belongs to user {NOBODY}" in refusal(capsys, "nodes")


def test_file_that_others_can_write_is_refused(here: Path, capsys) -> None:
    path = here / "clusterctl.toml"
    path.write_text('[nodes]\nonly = "a1"\n')
    path.chmod(0o646)
    assert "can be changed by other users (mode 0646)" in refusal(capsys, "nodes")
    path.chmod(0o600)
    assert cli.run(["nodes"]) == 0


def test_hostfile_from_flag_environment_and_file_in_that_order(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    for name in ("flag", "environment", "file"):
        (here / name).write_text(f"{name}\n")
    (here / "clusterctl.toml").write_text('hostfile = "file"\n')

    def node(*words: str) -> str:
        assert cli.run(["nodes", "--fold", *words]) == 0
        return str(capsys.readouterr().out.strip())

    assert node() == "file"
    assert node("--hostfile", "flag") == node("flag") == "flag"
    monkeypatch.setenv("CLUSTERCTL_HOSTFILE", "environment")
    assert node() == "environment"
    assert (
        node("--hostfile", "flag") == node("flag") == node("flag", "--hostfile", "flag") == "flag"
    )
    assert cli.run(["nodes", "flag", "--hostfile", "file"]) == 2


def test_dashes_and_fanout_are_taken_in_tables_too(here: Path, capsys) -> None:
    (here / "clusterctl.toml").write_text("fanout = 7\n[nodes]\nconnect-timeout = 1.5\n")
    assert cli.run(["nodes", "-v"]) == 0
    said = capsys.readouterr().err
    assert "width = 7 (default_map)" in said
    assert "connect_timeout = 1.5 (default_map)" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("conect-timeout = 1\n", "no option --conect-timeout"),
        ("[nodes]\nonyl = 'b'\n", "no option --onyl of [nodes]"),
        ("[nodes]\nwidth = 5\n", "no option --width of [nodes]"),
        ("[gpsu]\nonly = 'b'\n", "no command is called gpsu"),
        ("x = " + "[" * 5000 + "\n", "nested too deeply"),
        ("x =\n", "cannot be read"),
        ("# " + "x" * (1 << 20) + "\n", "longer than 1 MiB"),
    ],
)
def test_slips_are_refused_with_a_sentence(here: Path, capsys, text: str, sentence: str) -> None:
    (here / "clusterctl.toml").write_text(text)
    said = refusal(capsys, "nodes")
    assert sentence in said
    assert "Traceback" not in said
    if "conect" in text:
        assert "hint: did you mean --connect-timeout?" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'fanout = "x"',
            "fanout = 'x' is no value of --fanout\n  hint: -f, --fanout INTEGER RANGE",
        ),
        ('fanout = "x"', "1<=x<=1024]"),
        ("fanout = [1]", "fanout = [1] is no value of --fanout"),
        ("[nodes]\nonly = ['a']", "only = ['a'] is no value of --only"),
        ("[nodes.only]\na = 1", "only = {'a': 1} is no value of --only"),
        (
            '[nodes]\nfold = "maybe"',
            "fold = 'maybe' is no value of --fold\n  hint: true or false\n",
        ),
        ("fanout = inf", "fanout = inf is no value of --fanout"),
        ("fanout = 3.7", "fanout = 3.7 is no value of --fanout"),
        ('connect-timeout = "soon"', "connect_timeout = 'soon' is no value of --connect-timeout"),
    ],
)
def test_wrong_value_names_the_file_and_what_is_allowed(
    here: Path, capsys, text: str, sentence: str
) -> None:
    (here / "clusterctl.toml").write_text(text)
    said = refusal(capsys, "nodes")
    assert said.startswith("error: clusterctl.toml: ")
    assert sentence in said


def test_key_of_other_commands_only_is_fine_at_the_top(here: Path, capsys) -> None:
    (here / "clusterctl.toml").write_text('theme = "clusterctl-day"\nseverity = "a=warn"\n')
    assert cli.run(["nodes"]) == 0
    assert cli.run(["preflight", "--list"]) == 0  # one text for an option that may be repeated


def test_what_is_no_file_is_not_waited_for(here: Path, capsys) -> None:
    os.mkfifo(here / "clusterctl.toml")
    assert cli.run(["nodes"]) == 0
    (here / "clusterctl.toml").unlink()
    (here / "clusterctl.toml").mkdir()
    assert cli.run(["nodes"]) == 0


@pytest.mark.parametrize("verb", ["status", "gpus"])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("status = 1", "status"), ("[[status]]", "status"), ("[[gpus]]", "gpus"),
        ("status = []", "status"), ("[[nodes]]\nonly = 1", "nodes"), ('push = "x"', "push"),
    ],
)  # fmt: skip
def test_command_that_is_no_table_is_refused(
    here: Path, capsys, verb: str, text: str, key: str
) -> None:
    (here / "clusterctl.toml").write_text(f"{text}\n")
    said = refusal(capsys, verb)
    assert f"{key} is the name of a command" in said
    assert f"write [{key}]" in said


@pytest.mark.parametrize("text", ["gpus = []", "gpus = 1", 'nodes = "x"'])
def test_option_with_the_name_of_its_command_is_a_sentence(here: Path, capsys, text: str) -> None:
    (here / "clusterctl.toml").write_text(f"{text}\n")
    assert cli.run([text.split()[0], "--help"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_number_of_thousands_of_digits_is_a_sentence(here: Path, capsys) -> None:
    (here / "clusterctl.toml").write_text(f"fanout = {'9' * 5000}\n")
    said = refusal(capsys, "nodes")
    assert "it holds a number of thousands of digits" in said
    assert "sys." not in said
