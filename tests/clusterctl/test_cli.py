"""The command line as a user meets it: exit codes, sentences, settings."""

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.errors import UsageError


def _run(*args: str, cwd: Path | None = None, env: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *args],
        capture_output=True, text=True, cwd=cwd, env=env, timeout=60,
    )  # fmt: skip


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.txt"
    path.write_text("b\na[1-2] port=2200\n")
    return path


def test_missing_hostfile_is_one_sentence_and_exit_2(capsys, tmp_path: Path) -> None:
    assert cli.run(["nodes", str(tmp_path / "nope")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"error: hostfile {tmp_path}/nope does not exist"
    assert "hint:" in err
    assert "Traceback" not in err


def test_unknown_command_and_option_are_exit_2(capsys) -> None:
    assert cli.run(["launhc"]) == 2
    said = capsys.readouterr().err
    assert said == "error: no command is called launhc\n  hint: did you mean launch?\n"
    assert cli.run(["nodes", "--jsno"]) == 2
    assert "--json" in capsys.readouterr().err


def test_no_arguments_shows_help_with_exit_codes(capsys) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "could not find out" in out
    for name in cli.COMMANDS:
        assert f"  {name} " in out


def test_help_is_also_a_command(capsys) -> None:
    assert cli.run(["help"]) == 0
    whole = capsys.readouterr().out
    assert cli.run(["--help"]) == 0
    assert capsys.readouterr().out == whole
    assert cli.run(["help", "gpus"]) == 0
    of_gpus = capsys.readouterr().out
    assert cli.run(["gpus", "--help"]) == 0
    assert capsys.readouterr().out == of_gpus


def test_own_options_come_before_those_of_all_commands(capsys) -> None:
    assert cli.run(["gpus", "--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(word) for word in ("--processes", "Nodes and ssh:", "--hostfile", "Output:", "--json")]  # fmt: skip
    assert places == sorted(places)
    assert out.count("--hostfile") == 1


def test_help_imports_click_and_nothing_else() -> None:
    program = (
        "import sys, click; before = set(sys.modules)\n"
        "from clusterctl import cli; cli.run(['--help'])\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    packages = {name.partition(".")[0] for name in done.stderr.split()}
    assert {name for name in done.stderr.split() if name.startswith("clusterctl")} == {
        "clusterctl", "clusterctl.cli", "clusterctl.errors",
    }  # fmt: skip
    assert packages <= {"clusterctl", "click", *sys.stdlib_module_names}
    assert not packages & {"ast", "json", "inspect", "pathlib", "subprocess", "asyncio"}


def test_hostfile_comes_from_argument_then_environment_then_here(
    hostfile: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(hostfile.parent)
    assert cli.run(["nodes", "--fold"]) == 0
    assert sorted(capsys.readouterr().out.strip().split(",")) == ["a[1-2]", "b"]
    other = hostfile.with_name("other.txt")
    other.write_text("z\n")
    monkeypatch.setenv("CLUSTERCTL_HOSTFILE", str(other))
    assert cli.run(["nodes", "--fold"]) == 0
    assert capsys.readouterr().out.strip() == "z"
    assert cli.run(["nodes", "--fold", str(hostfile)]) == 0
    assert "b" in capsys.readouterr().out


def test_settings_file_is_read_and_flags_win(hostfile: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(hostfile.parent)
    Path("clusterctl.toml").write_text('connect-timeout = 1.5\n[nodes]\nonly = "b"\n')
    assert cli.run(["nodes", "-v"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "connect_timeout = 1.5 (default_map)" in err
    assert cli.run(["nodes", "-w", "a1", "--fold"]) == 0
    assert capsys.readouterr().out.strip() == "a1"


def test_settings_file_with_an_unknown_command_is_refused(
    hostfile: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(hostfile.parent)
    Path("clusterctl.toml").write_text("[gpsu]\nonly = 'b'\n")
    assert cli.run(["nodes"]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {Path('clusterctl.toml').absolute()}: no command is called gpsu\n  hint: did you mean [gpus]?\n"  # fmt: skip


def test_order_of_the_hostfile_is_kept(hostfile: Path, capsys) -> None:
    assert cli.run(["nodes", str(hostfile)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["b", "a1", "a2"]


def test_json_is_one_document_with_schema(hostfile: Path, capsys) -> None:
    import json

    assert cli.run(["nodes", str(hostfile), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert [node["name"] for node in document["nodes"]] == ["b", "a1", "a2"]


def _in_shell(words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.quote(sys.executable)} -m clusterctl {words}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **more},
    )  # fmt: skip


@pytest.mark.long
def test_reader_that_goes_away_ends_it_as_sigpipe_does(hostfile: Path) -> None:
    hostfile.write_text("n[1-20000]\n")
    done = _in_shell(f"nodes {hostfile} | head -c 20")
    assert done.returncode == 141
    assert done.stderr == ""
    assert done.stdout.startswith("NODE")


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_output_that_cannot_be_written_is_one_sentence(
    hostfile: Path, where: str, why: str
) -> None:
    hostfile.write_text("n[1-2000]\n")
    printed = [f"nodes {hostfile} {more}" for more in ("", "--json", "-w n1")]
    for words in (*printed, "--help", "nodes --help", "--version"):
        done = _in_shell(f"{words} {where}")
        assert done.stderr == f"error: cannot write to standard output: {why}\n"
        assert done.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_lost_stderr_ends_nothing(hostfile: Path, where: str) -> None:
    done = _in_shell(f"nodes {hostfile} {where}")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4)
    assert _in_shell(f"nodes /no/such/file {where}").returncode == 2
    assert _in_shell(f"no-such-command {where}").returncode == 2


@pytest.mark.long
def test_a_stream_without_unicode_gets_escapes() -> None:
    code = "from clusterctl import cli, output; cli._prepare_streams(); output.Output().line('süd'); output.Output().warn('nörd')"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("s\\xfcd\n", "n\\xf6rd\n")


def test_nothing_of_a_file_is_obeyed_by_the_terminal(tmp_path: Path, capsys) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("n1 user=\x1b]0;owned\x07\n", encoding="utf-8")
    cli.run(["nodes", str(hostfile)])
    cli.run(["nodes", str(tmp_path / "\x1b]0;owned\x07")])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert r"\x1b]0;owned" in shown.err


@pytest.mark.long
def test_piped_output_has_no_escape_codes(hostfile: Path) -> None:
    assert "\x1b" not in _run("nodes", str(hostfile)).stdout
    assert "\x1b" in _run("nodes", str(hostfile), "--color", "always").stdout


def test_foreign_package_named_checks_is_refused_with_its_path(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "checks", raising=False)
    with pytest.raises(UsageError, match="checks"):
        cli._refuse_foreign_packages()


def test_commands_may_open_more_files_than_most_systems_allow_at_first() -> None:
    """1,024: each of a thousand nodes needs one."""
    program = (
        "import atexit, resource\nfrom clusterctl import cli\n"
        "atexit.register(lambda: print(*resource.getrlimit(resource.RLIMIT_NOFILE)))\n"
        "cli.main(['--version'])"
    )
    done = subprocess.run(
        ["bash", "-c", 'ulimit -Sn 256; ulimit -Hn 2000; exec "$@"', "bash", sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "2000 2000"


def test_too_many_open_files_are_one_sentence(hostfile: Path, monkeypatch, capsys) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "ClusterShell/__init__.py")

    monkeypatch.setattr("clusterctl.settings.read_hostfile", fails)
    assert cli.run(["nodes", str(hostfile)]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: this process may open no more files\n  hint: each node needs one")


def test_current_folder_that_has_been_removed_is_one_sentence(
    hostfile: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.run(["launch", "demo", str(hostfile), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert err == "error: the current folder has been removed\n  hint: cd to another one\n"
    assert cli.run(["nodes", str(hostfile)]) == 0


def test_command_longer_than_a_file_name_is_run(capsys, tmp_path: Path) -> None:
    hosts = tmp_path / "nodes.txt"
    hosts.write_text("n1 host=127.0.0.1 port=1\n")
    assert cli.run(["run", f"true {'a' * 300}", str(hosts), "--connect-timeout", "1"]) == 3
    said = capsys.readouterr().err
    assert "too long" not in said
    assert "did not answer" in said


@pytest.mark.parametrize("verb", ["status", "logs", "why", "attach", "report", "gallery"])
@pytest.mark.parametrize(
    "name", ["a" * 300, "9" * 5000, "outputs/" + "b" * 5000], ids=["name", "number", "path"]
)
def test_run_of_a_name_that_no_file_has_is_usage(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run([verb, name]) == 2
    said = capsys.readouterr().err
    assert "there is no run" in said


@pytest.mark.parametrize(
    "words",
    [
        ["a\nGO: 89 checks on 2 nodes"],
        ["status", "a\nGO: 89 checks on 2 nodes"],
        ["nodes", "a\nGO: 89 checks on 2 nodes"],
        ["launch", "--env", "A\nGO: 89 checks on 2 nodes=1", "demo"],
        ["nodes", "--a\nGO: 89 checks on 2 nodes"],
        ["nodes", "-w", "a\nGO: 89 checks on 2 nodes"],
        ["logs", "--rank", "a\nGO: 89 checks on 2 nodes"],
    ],
)
def test_word_with_a_line_break_makes_no_line_of_its_own(
    capsys, hostfile: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(hostfile.parent)
    assert cli.run(words) == 2
    out, err = capsys.readouterr()
    assert r"\nGO: 89" in err, "the word was not quoted"
    assert not [line for line in (out + err).splitlines() if line.startswith("GO")]


@pytest.mark.parametrize("long", ["a" * 100_000, "a b, " * 20_000], ids=["word", "words"])
@pytest.mark.parametrize(
    "words",
    [
        ["nodes", "-w"], ["nodes", "-x"], ["nodes", "--fanout"], ["nodes", "--deadline"], ["nodes"], [],
        ["logs", "--rank"], ["logs", "--tail"], ["logs", "--since"], ["status"], ["nodes", "--color"],
        ["launch", "--env"], ["serve", "--expnums"], ["preflight", "--check"], ["preflight", "--explain"],
    ],
)  # fmt: skip
def test_error_repeats_no_long_word_of_the_user(
    capsys, hostfile: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], long: str
) -> None:
    monkeypatch.chdir(hostfile.parent)
    assert cli.run([*words, long]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err.lower()
    assert len(err) < 2000


def test_run_of_a_name_with_a_line_break_makes_no_line_of_its_own(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("outputs") / "001-x\nGO: 89 checks on 2 nodes"
    run.mkdir(parents=True)
    line = {"event": "run_start", "run_id": "r", "time": 1.0, "mono_s": 1.0}
    (run / "events.jsonl").write_text(f"{json.dumps(line)}\n")
    (run / "metrics.jsonl").write_text("{}\n")
    (run / "telemetry.jsonl").write_text("{}\n")
    for verb in ("status", "report", "why", "logs", "attach", "gallery"):
        for words in ([], [str(run)]):
            cli.run([verb, *words])
            out, err = capsys.readouterr()
            assert "GO: 89" in out + err, verb
            assert not [one for one in (out + err).splitlines() if one.startswith("GO")], verb
