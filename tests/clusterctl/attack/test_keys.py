"""Keys and the agent: what a server is offered, as OpenSSH's own server and agent see it.

A node, a run directory or a hostfile of somebody else gets no connection, no key of this user beyond
those that ssh would offer, and never the agent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.launch import saved_run
from clusterctl.nodes import Node
from tests.clusterctl.hostile.sftp import exactly
from tests.clusterctl.launch.harness import wait_until
from tests.clusterctl.launch.test_saved_run import saved
from tests.clusterctl.runs.attempts_of import Attempts
from tests.ports import free_port

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NEEDS = os.path.exists(SSHD) and os.getuid() == 0 and shutil.which("ssh-agent")  # noqa: PTH110
pytestmark = pytest.mark.skipif(not NEEDS, reason="needs root, OpenSSH's sshd and ssh-agent")
FAST = ("--connect-timeout", "5", "--deadline", "15s")


@dataclass
class Server:
    """An sshd on 127.0.0.1 that says all it hears."""

    port: int
    log: Path
    host_key: Path

    def heard(self) -> str:
        return self.log.read_text(errors="replace")

    def known_as(self) -> str:
        kind, key, *_ = self.host_key.with_suffix(".pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"


class Spied:
    """An agent before which somebody counts: each request that reaches it is kept by its number."""

    def __init__(self, path: Path, real: Path) -> None:
        self.path, self._real, self.requests = path, real, []  # type: Path, Path, list[int]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), end, socket.socket(socket.AF_UNIX) as real:
            real.connect(str(self._real))
            while True:
                for source, target in ((end, real), (real, end)):
                    data = _message(source)
                    if source is end:
                        self.requests.append(data[4])
                    target.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _message(end: socket.socket) -> bytes:
    head = exactly(end, 4)
    return head + exactly(end, int.from_bytes(head, "big"))


def new_key(path: Path) -> str:
    """Its fingerprint, as sshd logs it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", path], check=True, capture_output=True, text=True)
    return shown.stdout.split()[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    (path / ".ssh").mkdir(parents=True, mode=0o700)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return path


@pytest.fixture
def agent(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spied]:
    """It holds a key that no file has."""
    real = tmp_path / "real-agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", real], stdout=subprocess.DEVNULL)
    with socket.socket(socket.AF_UNIX) as one:
        wait_until(lambda: one.connect_ex(str(real)) == 0)
    new_key(tmp_path / "in-agent")
    env = {"SSH_AUTH_SOCK": str(real), "PATH": os.environ["PATH"]}
    subprocess.run(["ssh-add", "-q", tmp_path / "in-agent"], env=env, check=True)
    spied = Spied(tmp_path / "agent", real)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(spied.path))
    yield spied
    spied.close()
    process.terminate()
    process.wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`server("key.pub")` logs in who has this key."""
    started: list[subprocess.Popen[bytes]] = []
    Path("/run/sshd").mkdir(exist_ok=True)  # where it locks its unprivileged half in

    def start(allowed: Path | None = None) -> Server:
        place = tmp_path / f"sshd{len(started)}"
        place.mkdir()
        new_key(place / "host")
        (place / "allowed").write_text(allowed.read_text() if allowed else "")
        port = free_port()
        (place / "config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {place}/host\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {place}/allowed\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nAllowAgentForwarding yes\nLogLevel DEBUG2\n"
        )
        log = place / "log"
        with log.open("wb") as out:
            started.append(subprocess.Popen([SSHD, "-D", "-e", "-f", place / "config"], stderr=out))
        wait_until(lambda: b"Server listening" in log.read_bytes())
        return Server(port, log, place / "host")

    yield start
    for one in started:
        one.terminate()
        one.wait(10)


def hostfile(server: Server, more: str = "") -> str:
    Path("nodes.txt").write_text(f"n1 host=127.0.0.1 port={server.port} user=root {more}\n")
    return "nodes.txt"


def offered(server: Server, *keys: str) -> set[str]:
    return {key for key in keys if key in server.heard()}


@pytest.mark.long
def test_a_node_is_offered_what_ssh_would_offer_and_never_the_agent(
    home: Path,
    agent: Spied,
    tmp_path: Path,
    server: Callable[..., Server],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With ForwardAgent, too: a node of which one is not sure is what clusterctl is made for."""
    one, other = new_key(home / ".ssh/one"), new_key(home / ".ssh/other")
    of_agent = subprocess.run(["ssh-keygen", "-lf", tmp_path / "in-agent"], check=True, capture_output=True, text=True)  # fmt: skip
    node = server(home / ".ssh/one.pub")
    (home / ".ssh/known_hosts").write_text(node.known_as())
    (home / ".ssh/config").write_text(
        f"Host *\n IdentityFile {home}/.ssh/one\n IdentitiesOnly yes\n ForwardAgent yes\n"
    )
    given = (hostfile(node), *FAST)
    assert run(["run", "echo agent ${SSH_AUTH_SOCK-none}", *given]) == 0
    assert "agent none" in capsys.readouterr().out
    for words in (["gpus"], ["runs"], ["stop", "--run", "x", "--yes"]):
        run([*words, *given])
    heard = node.heard()
    assert "Accepted publickey" in heard
    assert "auth-agent-req" not in heard
    assert "x11-req" not in heard
    assert offered(node, one, other, of_agent.stdout.split()[1]) == {one}
    assert 13 not in agent.requests  # nothing was signed: the key is a file


@pytest.mark.long
def test_who_has_another_host_key_is_offered_nothing(
    home: Path, agent: Spied, server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown, and changed: before the host key is known, no key of this user is named."""
    new_key(home / ".ssh/id_ed25519")
    node, elsewhere = server(home / ".ssh/id_ed25519.pub"), server()
    for known in ("", node.known_as().replace(node.known_as().split()[2], elsewhere.known_as().split()[2])):  # fmt: skip
        (home / ".ssh/known_hosts").write_text(known)
        for words in (["gpus"], ["run", "true"], ["preflight"]):
            assert run([*words, hostfile(node), *FAST]) == 3
    assert "host key" in capsys.readouterr().out
    assert "Connection from" in node.heard()
    assert "userauth-request" not in node.heard()
    assert 13 not in agent.requests


@pytest.mark.long
def test_a_given_run_directory_makes_no_connection(
    home: Path,
    agent: Spied,
    tmp_path: Path,
    server: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names this user's key, a server, and that server's host key."""
    new_key(home / ".ssh/id_ed25519")
    node = server(home / ".ssh/id_ed25519.pub")
    attempts = Attempts()
    attempts.attempt()
    attempts.train(2)
    given = attempts.write(tmp_path / "work/outputs/001-given")
    (given / "known_hosts").write_text(node.known_as())
    place = saved(given)
    evil = Node("n1", "127.0.0.1", node.port, "root", identity=str(home / ".ssh/id_ed25519"), labels=(("known_hosts", str(given / "known_hosts")),))  # fmt: skip
    plan = replace(place.plan, shares=(replace(place.plan.shares[0], node=evil),))
    with monkeypatch.context() as of_maker:
        of_maker.setenv("HOME", str(tmp_path / "other"))
        replace(place, plan=plan, accept_new=True).write()
    assert (given / saved_run.FILE).exists()
    for words in (["status"], ["attach"], ["why"], ["logs"], ["report"], ["compare"], ["gallery"], ["plan-checkpoints"], ["watch", "--for", "0.2", "--run"], ["top", "--once", "--run"]):  # fmt: skip
        run([*words, str(given)])
    assert "Connection from" not in node.heard()
    assert agent.requests == []
    replace(place, plan=plan).write()  # the same of this user is used
    run(["status", str(given)])
    assert "Accepted publickey" in node.heard()


def test_a_hostfile_or_config_of_somebody_else_gets_no_key(
    home: Path, agent: Spied, server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    new_key(home / ".ssh/id_ed25519")
    node = server(home / ".ssh/id_ed25519.pub")
    path = Path(hostfile(node, f"identity={home}/.ssh/id_ed25519 known_hosts={Path.cwd()}/hosts"))
    Path("hosts").write_text(node.known_as())
    for other in (path, Path("hosts")):
        os.chown(other, 65534, 65534)
        assert run(["gpus", str(path), *FAST]) == 2
        assert "belongs to user 65534" in capsys.readouterr().err
        os.chown(other, 0, 0)
    path = Path(hostfile(node, f"identity={home}/.ssh/id_ed25519"))
    os.chown(path, 65534, 65534)  # shared hostfiles are common: the host key protects from this one
    assert run(["gpus", str(path), *FAST]) == 3
    assert "Connection from" in node.heard()
    assert "userauth-request" not in node.heard()
    os.truncate(node.log, 0)
    Path("clusterctl.toml").write_text(f'[gpus]\nhostfile = "{path}"\n')
    os.chown("clusterctl.toml", 65534, 65534)
    assert run(["gpus", *FAST]) == 2
    assert "Connection from" not in node.heard()
    assert agent.requests == []
