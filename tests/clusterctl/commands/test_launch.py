"""`clusterctl launch` as a user types it: signals, exit codes, what it prints."""

from __future__ import annotations

import grp
import io
import json
import os
import signal
from pathlib import Path

import pytest

from checks.finding import Finding, Report, Verdict
from clusterctl import cli
from clusterctl.commands import launch
from clusterctl.errors import Declined
from clusterctl.launch.inputs import LaunchLine
from clusterctl.launch.start import Prepared
from clusterctl.output import Output
from tests.clusterctl.commands.user import SHORT, User
from tests.clusterctl.launch.harness import ranks_of, tagged


@pytest.mark.long
def test_ctrl_c_in_a_script_stops_everything(user: User) -> None:
    process = user.start(*SHORT)
    run_id = user.run_id()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "stopping on all nodes; once more to kill at once" in err
    assert "no process of the run is left on 2 nodes" in err
    assert tagged(run_id) == []


@pytest.mark.long
def test_sigterm_ends_only_the_view(user: User) -> None:
    """All processes of a machine get it when it goes down: the run's owner has said nothing."""
    process = user.start(*SHORT)
    run_id = user.run_id()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3, err
    assert "error: ended by SIGTERM; the run goes on" in err
    assert f"clusterctl attach {user.run_dir} shows it, clusterctl stop ends it" in err
    assert len(ranks_of(run_id)) == 2


@pytest.mark.long
def test_failed_rank_is_told_with_its_last_lines_and_exit_code_1(user: User) -> None:
    user.program("import sys\nprint('out of cheese', flush=True)\nsys.exit(7)\n")
    code, _, err = user.type(*SHORT, "--nproc_per_node", "1", "-w", "node-2")
    assert code == 1
    assert "error: rank 0 on node-2: exit code 7\n  | out of cheese\n" in err
    assert f"logs: {user.run_dir}/ranks/" in err


@pytest.mark.long
def test_json_is_one_document_however_it_ends(user: User) -> None:
    user.program("print('done')")
    code, out, _ = user.type(*SHORT, "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["exit_code"]) == (0, True, 0)
    assert document["run_dir"] == str(user.run_dir)
    user.program("import sys; sys.exit(7)")
    code, out, _ = user.type(*SHORT, "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["exit_code"]) == (1, False, 1)
    assert "exit code 7" in document["reason"]
    code, out, _ = user.type("--json", "--min-free", "1e9", "--yes", *NO_DATA)
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    assert "preflight" in document["reason"]


NO_DATA = ("--dataset.data-path", "/nowhere/clips.csv")  # it is looked for on the nodes
ELSEWHERE = {"files": ("/nowhere/clips.csv",), "on_head": ()}
WRITES = """import os
folder = os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "checkpoints")
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, os.environ["RANK"]), "w").close()
print("done")
"""


@pytest.mark.long
def test_what_a_launch_writes_is_for_its_user_alone(user: User) -> None:
    user.program(WRITES)
    code, _, err = user.type(*SHORT, preexec_fn=lambda: os.umask(0o022))
    assert code == 0, err
    found = [user.outputs, *user.outputs.rglob("*")]
    names = {path.name for path in found}
    assert names >= {"plan.json", "events.jsonl", "0.log", "1.log", "checkpoints", ".run-id"}
    assert [path for path in found if path.stat().st_mode & 0o077] == []


@pytest.mark.long
def test_what_a_launch_writes_can_be_shared_with_a_group(user: User) -> None:
    user.program(WRITES)
    group = grp.getgrgid(os.getgid()) if os.getuid() else grp.getgrall()[-1]
    code, _, err = user.type(*SHORT, "--share", group.gr_name, preexec_fn=lambda: os.umask(0o022))
    assert code == 0, err
    assert f"readable by group {group.gr_name}" in err
    found = [path for path in [user.outputs, *user.outputs.rglob("*")] if path.name != ".lock"]
    for path in found:
        assert path.stat().st_gid == group.gr_gid, path
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
    assert user.type(*SHORT, "--share", "no-such-group")[0] == 2


@pytest.mark.long
def test_overrides_reach_the_trainer_as_they_are(user: User) -> None:
    user.program("import json, sys; print(json.dumps(sys.argv[1:]))")
    words = ["--dataset.data-path", "a b;echo 'INJECTED'", "--lr", "1e-4"]
    code, _, err = user.type(*SHORT, *words)
    assert code == 0, err
    assert json.loads((user.run_dir / "ranks/1.log").read_text()) == [str(user.config), *words]


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The trainer's words of a dry run that connects to nobody."""
    code = cli.run(["launch", *words, "--dry-run", "--skip-preflight", "--json"])
    assert code == 0, capsys.readouterr().err
    program: list[str] = json.loads(capsys.readouterr().out)["plan"]["program"]
    return program[3:]


def test_words_of_the_trainer_are_told_from_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("n[1-2]\n")
    (tmp_path / "c.py").write_text("")
    monkeypatch.setattr(
        "clusterctl.launch.inputs.resolve", lambda *_, **__: LaunchLine("M-1", ELSEWHERE)
    )
    assert dry(capsys, "c.py", "--lr", "1e-4") == ["--lr", "1e-4"]  # no HOSTFILE: nodes.txt here
    assert dry(capsys, "c.py", "nodes.txt", "--lr", "-1", "-qv") == ["--lr", "-1"]
    assert dry(capsys, "c.py", "--nproc_per_node", "2", "--a.b=x", "-w", "n1", "y") == [
        "--a.b=x",
        "y",
    ]
    sizes = ["--bucket", "1", "2", "--load", "outputs/3"]
    assert dry(capsys, "c.py", *sizes, "--outputs", "o") == sizes
    assert dry(capsys, "--hostfile", "nodes.txt", "c.py") == []
    code = cli.run(
        ["launch", "c.py", "--dry-run", "--skip-preflight", "--json", "--", "-w", "--yes"]
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out)["plan"]["program"][3:] == ["-w", "--yes"]


@pytest.mark.long
def test_key_that_the_trainer_has_not_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("demo", "nodes.txt", "--nosuch", "3"), ("demo", "--nosuch", "nodes.txt")):
        assert cli.run(["launch", *words, "--yes"]) == 2
        assert capsys.readouterr().err == "error: --nosuch: there is no key nosuch\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("--nproc_per_nod", "2"), ("--hostfil", "x"), ("nodes.txt", "more"), ("--outputs",)]
)
def test_slips_do_not_reach_the_trainer(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("n1\n")
    (tmp_path / "c.py").write_text("")
    assert cli.run(["launch", "c.py", *words]) == 2


def test_busy_gpus_alone_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = Finding(
        "gpu.busy", Verdict.FAIL, ("n1",), evidence="1 process on the GPUs: alice python"
    )
    broken = Finding("gpu.count", Verdict.FAIL, ("n1",), "7 of 8")
    good = Finding("host.disk", Verdict.PASS, ("n1",), "2 TB free")

    def judge(*findings: Finding, yes: bool = False) -> int:
        report = Report(("n1",), findings)
        return launch._judge(Output(), Prepared("cuda", {"n1": 8}, report), assume_yes=yes)

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert judge(good) == 0
    assert judge(busy, good, yes=True) == 0
    assert judge(busy, broken, yes=True) == 1
    with pytest.raises(Declined, match="nothing was started") as declined:
        judge(busy, good)
    assert declined.value.exit_code == 4
    assert "in use on n1" in (declined.value.hint or "")
    assert "alice python" in capsys.readouterr().err


@pytest.mark.long
def test_dry_run_shows_the_plan_and_starts_nothing(user: User) -> None:
    secrets = {"WANDB_API_KEY": "wandb-0123456789", "FOO_TOKEN": "foo-0123456789"}
    for words in ((), ("--json",)):
        code, out, err = user.type(*SHORT, "--dry-run", "--nccl", "ethernet", *words, **secrets)
        assert code == 0, err
        assert "WANDB_API_KEY" in out
        assert "NCCL_IB_DISABLE" in out
        assert "FOO_TOKEN" not in out
        assert "0123456789" not in out + err
    assert not user.outputs.exists()


@pytest.mark.long
def test_hostfile_with_comments_slots_user_and_alias(user: User) -> None:
    first, second = user.cluster.hostfile.read_text().splitlines()
    fields = dict(word.split("=", 1) for word in second.split()[1:])
    hostfile = user.directory / "mixed.txt"
    hostfile.write_text(
        f"# the cluster\n\n{first} slots=2  # two ranks\n"
        f"{fields['user']}@{fields['host']} port={fields.get('port', '22')} "
        f"identity={fields['identity']} known_hosts={fields['known_hosts']}\n"
    )
    user.program("import os; print(os.environ['CLUSTERCTL_NODE'])")
    code, _, err = user.type(*SHORT, hostfile=hostfile)
    assert code == 0, err
    logs = [(user.run_dir / "ranks" / f"{rank}.log").read_text() for rank in range(3)]
    assert logs == ["node-1\n", "node-1\n", f"{fields['host']}\n"]


@pytest.mark.long
def test_node_may_be_an_alias_of_ssh_config(user: User) -> None:
    fields = dict(
        word.split("=", 1) for word in user.cluster.hostfile.read_text().split()[1:6] if "=" in word
    )
    home = user.directory / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(
        f"Host trainbox\n  HostName {fields['host']}\n  Port {fields.get('port', '22')}\n"
        f"  User {fields['user']}\n  IdentityFile {fields['identity']}\n"
    )
    hostfile = user.directory / "alias.txt"
    hostfile.write_text(f"trainbox known_hosts={user.cluster.known_hosts}\n")
    user.program("print('ran')")
    code, _, err = user.type(
        *SHORT, "--master_addr", fields["host"], hostfile=hostfile, HOME=str(home)
    )
    assert code == 0, err
    assert (user.run_dir / "ranks" / "0.log").read_text() == "ran\n"


@pytest.mark.long
def test_wrong_usage_is_exit_2(user: User) -> None:
    code, _, err = user.type(*SHORT, hostfile=user.directory / "missing.txt")
    assert (code, "missing.txt" in err) == (2, True)
    code, _, err = user.type(*SHORT, "--env", "no-equals-sign")
    assert (code, "is neither NAME=VALUE nor NAME" in err) == (2, True)
    user.config.unlink()
    assert user.type(*SHORT)[0] == 2
    assert not user.outputs.exists()


@pytest.mark.long
def test_secret_can_be_named_and_is_not_typed(user: User) -> None:
    user.program("import os; print(os.environ['MY_PAT'])")
    code, _, err = user.type(*SHORT, "--env", "MY_PAT", MY_PAT="pat-123456")
    assert code == 0, err
    assert (user.run_dir / "ranks/0.log").read_text() == "pat-123456\n"
    assert "other users of this machine can read" not in err
    assert "pat-123456" not in (user.run_dir / "plan.json").read_text() + err
    code, _, err = user.type(*SHORT, "--env", "MY_PAT=pat-123456")
    assert "other users of this machine can read --env MY_PAT=…; --env MY_PAT alone" in err
    code, _, err = user.type(*SHORT, "--env", "MY_PAT")
    assert (code, "your environment has no such variable" in err) == (2, True)


@pytest.mark.long
def test_unreachable_node_is_exit_3_and_nothing_is_started(user: User) -> None:
    hostfile = user.directory / "dead.txt"
    hostfile.write_text(
        user.cluster.hostfile.read_text() + "dead host=127.0.0.1 port=1 identity=/none\n"
    )
    for words in (SHORT, ("--min-free", "0", "--yes", *NO_DATA)):
        code, _, err = user.type(*words, hostfile=hostfile)
        assert code in ((3,) if words is SHORT else (1, 3)), err
        assert "tcp" in err
        assert "nothing was started" in err
    assert not list(user.outputs.glob("*/ranks/*.log"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--spares", "node-2", "-w", "node-[1-2]"],
            "node-2 is in -w node-[1-2] and in --spares node-2",
        ),
        (
            ["--spares", "node-2", "-x", "node-2"],
            "node-2 is in --spares node-2 and is left out by -x",
        ),
        (["--spares", "node-[1-2]"], "no node is left to begin with: all are spares or excluded"),
        (["--min-nodes", "3"], "--min-nodes 3 is more than the 2 nodes of the run"),
    ],
)
def test_wrong_choices_of_nodes_are_refused(user: User, words: list[str], text: str) -> None:
    code, _, err = user.type(*SHORT, *words)
    assert code == 2
    assert f"error: {text}" in err
    assert not user.outputs.exists()


@pytest.mark.parametrize("words", [["--", "python", "ddp.py"], ["--yes", "--lr", "1e-4"]])
def test_words_of_another_program_alone_are_told_where_to_go(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["launch", *words]) == 2
    said = capsys.readouterr().err
    assert "CONFIG comes before the trainer's words" in said
    assert "own-program.md" in said


@pytest.mark.long
def test_line_of_a_tutorial_that_names_a_script_says_what_to_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.txt").write_text("n1\n")
    words = ["--hostfile", str(tmp_path / "nodes.txt"), "scripts/train.py", "configs/stage1.py"]
    assert cli.run(["launch", *words, "--data-path", "a.csv", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "launch starts the trainer itself and takes one CONFIG" in said
    assert "leave out scripts/train.py: clusterctl launch configs/stage1.py HOSTFILE" in said


def test_ctrl_c_before_anything_is_started_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch, "read_hostfile", lambda _: signal.raise_signal(signal.SIGINT))
    (tmp_path / "nodes.txt").write_text("localhost\n")
    assert cli.run(["launch", "demo", str(tmp_path / "nodes.txt")]) == 130
    assert capsys.readouterr().err.endswith("interrupted; nothing was started\n")
