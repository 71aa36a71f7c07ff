"""What is sent to a node, and what is made of every kind of answer."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.payload import prelude
from clusterctl.remote import payload as ship
from clusterctl.remote.messages import verbs
from tests.clusterctl.payload.local import LocalConnection, tools_only

VERBS = sorted(
    path.stem
    for path in Path(prelude.__file__).parent.glob("*.py")
    if "\ndef main()" in path.read_text()
)
STDLIB = sys.stdlib_module_names
CARRIED = {"pynvml"}
NAMES = """import os
import time
from clusterctl.payload.prelude import ARGS, emit, finish, hold_lease
from clusterctl.payload.tools import section
"""


def _python38() -> str | None:
    found = [
        shutil.which("python3.8"),
        *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")),
    ]
    for path in found:
        if path and subprocess.run([path, "-V"], capture_output=True).returncode == 0:
            return path
    return None


PYTHON38 = _python38()
needs_python38 = pytest.mark.skipif(PYTHON38 is None, reason="no Python 3.8 on this machine")


def shell(command: str, timeout_s: float = 10, max_bytes: int = 1 << 20) -> dict:
    return {"command": command, "timeout_s": timeout_s, "max_bytes": max_bytes}


@pytest.mark.long
def test_remote_command_is_the_same_for_every_verb_and_holds_nothing_of_the_user() -> None:
    connection = LocalConnection()
    ship.probe(connection, "shell", shell("echo secret-word"), 20, lease=True)
    ship.stream(connection, "shell", shell("true")).close()
    assert set(connection.commands) == {ship.command_line()}
    assert "secret-word" not in ship.command_line()
    assert "\n" not in ship.command_line()
    assert ship.command_line().count("'") == 2


@pytest.mark.parametrize("verb", VERBS)
def test_payload_imports_the_standard_library_and_what_came_with_it(verb: str) -> None:
    sent = ship.modules(verb)
    for name, text in modules(verb):
        for node in ast.walk(ast.parse(text, name)):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                imported = inside if set(inside) <= sent.keys() else [node.module]
            for module in imported:
                known = module in sent or module.split(".")[0] in STDLIB | CARRIED
                assert known, f"{name} imports {module}"


def modules(verb: str) -> list[tuple[str, str]]:
    """(name, text) of all that is run on a node for a verb."""
    loader = Path(prelude.__file__).with_name("module_loader.py").read_text()
    return [("loader", loader), *ship.modules(verb).items()]


@pytest.mark.parametrize("verb", VERBS)
def test_payload_is_python_38(verb: str) -> None:
    for name, text in modules(verb):
        ast.parse(text, name, feature_version=(3, 8))


@pytest.mark.long
@needs_python38
@pytest.mark.parametrize("verb", VERBS)
def test_payload_compiles_on_a_real_python_38(verb: str) -> None:
    for name, text in modules(verb):
        subprocess.run(
            [PYTHON38, "-c", "import sys; compile(sys.stdin.read(), sys.argv[1], 'exec')", name],
            input=text.encode(),
            check=True,
            timeout=30,
        )


@needs_python38
def test_payload_runs_on_a_real_python_38(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(PYTHON38)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    answer = ship.probe(
        LocalConnection(env), "shell", shell("echo hello"), 20, nvml=True, lease=True
    )
    assert answer["node"]["python"].startswith("3.8.")
    assert answer["sections"]["command"]["out"] == "hello\n"


def test_envelope_says_who_answered() -> None:
    answer = ship.probe(LocalConnection(), "shell", shell("exit 3"), 20, lease=True)
    assert answer["schema"] == 1
    assert answer["verb"] == "shell"
    assert answer["sections"]["command"]["rc"] == 3
    assert answer["noise"] == ""
    node = answer["node"]
    assert all(node[key] for key in ("hostname", "user", "boot_id"))
    assert node["boottime_s"] > 0
    assert node["time_s"] > 1.6e9


@pytest.mark.long
@pytest.mark.parametrize("greeting", ["echo Welcome to node 7; ", "printf 'no newline'; "])
def test_noise_of_the_shell_is_cut_and_reported(greeting: str) -> None:
    for lease in (False, True):
        answer = ship.probe(LocalConnection(shell=greeting), "census", {}, 30, lease=lease)
        assert answer["noise"] in ("Welcome to node 7", "no newline")
        assert answer["verb"] == "census"


@pytest.mark.parametrize("way", [ship.probe, ship.stream])
def test_missing_python_is_a_start_error_with_a_hint(tmp_path: Path, way) -> None:
    connection = LocalConnection({"PATH": str(tmp_path)})
    with pytest.raises(TransportError) as caught:
        way(connection, "shell", shell("true"), **({"timeout_s": 20} if way is ship.probe else {}))
    assert caught.value.phase == "start"
    assert "python3" in str(caught.value)
    assert "install python3" in caught.value.hint


@pytest.mark.parametrize("way", [ship.probe, ship.stream])
def test_old_python_is_a_start_error(tmp_path: Path, way) -> None:
    # A python3 that says what our first words say on 3.7; a real 3.7 is not everywhere.
    env = tools_only(tmp_path / "real")
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "python3 here is 3.7, too old" >&2\nexit 1\n')
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{env['PATH']}"}
    with pytest.raises(TransportError, match=r"3\.7, too old") as caught:
        way(
            LocalConnection(env),
            "shell",
            shell("true"),
            **({"timeout_s": 20} if way is ship.probe else {}),
        )
    assert caught.value.phase == "start"


def test_bootstrap_refuses_an_old_interpreter_by_itself() -> None:
    olds = [*Path.home().glob(".pyenv/versions/3.[67].*/bin/python3")]
    if not olds:
        pytest.skip("no Python older than 3.8 on this machine")
    done = subprocess.run(
        ["/bin/sh", "-c", ship.command_line()],
        input=ship.request("shell", shell("true")),
        env={"PATH": str(olds[0].parent)},
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert b"too old" in done.stderr


def test_login_refused_by_nologin_is_quoted() -> None:
    connection = LocalConnection(shell="echo This account is currently not available.; exit 1; ")
    with pytest.raises(TransportError, match="not available") as caught:
        ship.probe(connection, "shell", shell("true"), 20)
    assert caught.value.phase == "start"


@pytest.mark.parametrize("lease", [False, True])
def test_payload_that_dies_is_a_command_error_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, lease: bool
) -> None:
    _with_verb(monkeypatch, "def main():\n    raise RuntimeError('boom')\n")
    with pytest.raises(TransportError, match="RuntimeError: boom") as caught:
        ship.probe(LocalConnection(), "test", {}, 20, lease=lease)
    assert caught.value.phase == "command"


def test_payload_that_never_answers_is_left_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_verb(monkeypatch, "def main():\n    hold_lease()\n    time.sleep(600)\n")
    with pytest.raises(TransportError, match=r"no answer in 5 s") as caught:
        ship.probe(LocalConnection(), "test", {}, 5, lease=True)
    assert caught.value.phase == "command"


@pytest.mark.long
def test_carried_nvml_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_verb(
        monkeypatch,
        "def main():\n"
        "    import pynvml\n"
        "    finish({'name': pynvml.__name__, 'has': hasattr(pynvml, 'nvmlInit')})\n",
    )
    answer = ship.probe(LocalConnection(), "test", {}, 30, nvml=True)
    assert (answer["name"], answer["has"]) == ("pynvml", True)


def test_answer_that_is_no_json_is_a_parse_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_verb(monkeypatch, "def main():\n    os.write(1, b'soon\\n')\n")
    with pytest.raises(TransportError) as caught:
        ship.probe(LocalConnection(), "test", {}, 20)
    assert caught.value.phase == "parse"


def test_stream_talks_both_ways_and_ends_with_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_verb(
        monkeypatch,
        "def main():\n"
        "    hold_lease(lambda message: emit({'echo': message}),"
        " lambda: (emit({'bye': 1}), os._exit(7)))\n"
        "    while True:\n"
        "        time.sleep(60)\n",
    )
    with closing(ship.stream(LocalConnection(), "test", {})) as stream:
        assert stream.receive(0.05) is None
        stream.send({"a": 1})
        assert stream.receive(10) == {"echo": {"a": 1}}
        stream.channel.close_stdin()
        assert stream.receive(10) == {"bye": 1}
        with pytest.raises(EOFError):
            stream.receive(10)
        assert stream.channel.wait(10) == 7


def test_traceback_names_the_file_of_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_verb(monkeypatch, "\n\ndef main():\n    raise RuntimeError('boom')\n")
    stream = ship.stream(LocalConnection(), "test", {})
    with pytest.raises(EOFError):
        stream.receive(10)
    assert 'File "clusterctl/payload/test.py", line 8, in main' in stream.stderr_tail()
    stream.close()


def _with_verb(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Send `text` as the verb's file."""
    sent = ship.modules("shell")
    sent["clusterctl.payload.test"] = NAMES + text
    monkeypatch.setattr(ship, "modules", lambda verb: sent)
    monkeypatch.setattr(ship, "_source", ship._source.__wrapped__)
    monkeypatch.setitem(verbs.VERBS, "test", (lambda value: value, verbs.MIB))
