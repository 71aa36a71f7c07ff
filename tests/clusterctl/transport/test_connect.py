"""Connecting: who is let in, and how each way of failing is named, in time and without harm."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clusterctl.defaults import config_folder
from clusterctl.errors import TransportError
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.nodes import Node
from clusterctl.remote.fanout import Fanout, NodeResult
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.loopback.nodes import LoopbackCluster, make_key
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.transport.shell import Done, run
from tests.clusterctl.transport.test_known_hosts import OTHER_RSA, hashed
from tests.ports import free_port

LIMITS = Limits(tcp_s=1.0, handshake_s=1.5, channel_s=1.0, command_s=1.5)
MARGIN_S = 0.5


@pytest.fixture(scope="module")
def good(module_loopback) -> LoopbackCluster:
    """Three loopback nodes that live as long as this file's tests."""
    return module_loopback(3)


def node_of(cluster, number: int = 0, **changes: object) -> Node:
    """A node of a cluster, with changes to its hostfile line (None takes a word away)."""
    words = shlex.split(cluster.hostfile.read_text().splitlines()[number])
    fields = dict(word.split("=", 1) for word in words[1:])
    fields.update({key: str(value) for key, value in changes.items() if value is not None})
    for key in [key for key, value in changes.items() if value is None]:
        fields.pop(key, None)
    line = " ".join([words[0], *(shlex.quote(f"{k}={v}") for k, v in fields.items())])
    return parse_hostfile(line)[0]


def say_hello(transport: ParamikoTransport, limits: Limits = LIMITS, command: str = "echo hello"):
    def work(node: Node, progress: Progress) -> Done:
        with closing(transport.connect(node, limits, progress)) as connection:
            return run(connection, command, b"", limits.command_s)

    return work


def failure(node: Node, limits: Limits = LIMITS, accept_new: bool = False) -> TransportError:
    with pytest.raises(TransportError) as caught:
        ParamikoTransport(accept_new).connect(node, limits, Progress())
    return caught.value


def sweep_with(bad: Node, good: LoopbackCluster) -> NodeResult[Done]:
    """Ask three good nodes and a bad one; the good ones must not notice. Returns the bad result."""
    nodes = [*read_hostfile(good.hostfile), bad]
    sweep = Fanout(nodes, say_hello(ParamikoTransport()), deadline_s=LIMITS.total_s)
    started = time.monotonic()
    results = {result.node: (result, time.monotonic() - started) for result in sweep}
    bad_result, _ = results.pop(bad)
    for result, arrived_s in results.values():
        assert result.value is not None, result.unreachable
        assert result.value.out == b"hello\n"
        assert arrived_s < 1.0  # promptly: before the shortest limit a bad node can run into
    return bad_result


def test_good_nodes_answer_and_name_their_phases(good: LoopbackCluster) -> None:
    seen: list[str] = []

    class Watched(Progress):
        def enter(self, phase: str) -> None:
            seen.append(phase)
            super().enter(phase)

    with closing(ParamikoTransport().connect(node_of(good), LIMITS, Watched())) as connection:
        run(connection, "true", b"", 5)
    assert seen == ["resolve", "tcp", "banner", "kex", "hostkey", "auth", "channel", "command"]


def assert_dead(result: NodeResult[Done], phase: str, limit_s: float, words: str) -> None:
    assert result.unreachable is not None
    assert (result.unreachable.phase, words in result.unreachable.message) == (phase, True), result
    assert result.unreachable.seconds <= limit_s + MARGIN_S
    assert result.seconds <= LIMITS.total_s + MARGIN_S


def test_refused_port(good: LoopbackCluster) -> None:
    result = sweep_with(node_of(good, port=free_port(), host="127.0.0.1"), good)
    assert_dead(result, "tcp", 0.2, "refused")


def test_silent_port_hangs_before_the_banner(good: LoopbackCluster, listener) -> None:
    result = sweep_with(Node("bad", "127.0.0.1", listener().port), good)
    assert_dead(result, "banner", LIMITS.handshake_s, "no ssh banner within 1.5 s")


def test_banner_and_then_nothing_hangs_in_kex(good: LoopbackCluster, listener) -> None:
    result = sweep_with(Node("bad", "127.0.0.1", listener(b"SSH-2.0-Stuck\r\n").port), good)
    assert_dead(result, "kex", LIMITS.handshake_s, "key exchange not finished within 1.5 s")


def test_not_ssh_is_a_banner_failure(good: LoopbackCluster, listener) -> None:
    port = listener(b"HTTP/1.1 400 Bad Request\r\n" * 100).port
    assert_dead(sweep_with(Node("bad", "127.0.0.1", port), good), "banner", 1.0, "Indecipherable")


def test_hang_up_before_the_banner_is_tried_twice_and_told(good: LoopbackCluster, listener) -> None:
    closing = listener(hang_up=True)
    result = sweep_with(Node("bad", "127.0.0.1", closing.port), good)
    assert_dead(result, "banner", 1.5, "closed the connection before its banner (twice)")
    assert closing.visits == 2
    assert "retried after" in result.notes[0]


def test_name_that_does_not_resolve(good: LoopbackCluster) -> None:
    result = sweep_with(Node("no-such-node.invalid"), good)
    assert result.unreachable is not None
    assert result.unreachable.phase == "resolve"
    assert result.unreachable.seconds <= LIMITS.tcp_s + MARGIN_S


def test_name_that_is_no_name() -> None:
    assert failure(Node("x" * 70 + ".lab")).phase == "resolve"


def test_hang_in_the_command(good: LoopbackCluster) -> None:
    nodes = read_hostfile(good.hostfile)
    transport = ParamikoTransport()

    def work(node: Node, progress: Progress) -> Done:
        command = "sleep 60" if node == nodes[1] else "echo hello"
        return say_hello(transport, command=command)(node, progress)

    results = {r.node.name: r for r in Fanout(nodes, work, deadline_s=LIMITS.total_s)}
    assert_dead(results["node-2"], "command", LIMITS.command_s, "still running after 1.5 s")
    assert results["node-1"].value is not None
    assert results["node-3"].seconds < 1.0


def test_unknown_key_is_refused_and_the_hint_lets_it_in(good: LoopbackCluster, home: Path) -> None:
    node = node_of(good, known_hosts=None)
    error = failure(node)
    assert error.phase == "hostkey"
    assert "unknown host key (ssh-ed25519)" in str(error)
    assert error.hint is not None
    assert "--accept-new" in error.hint
    if shutil.which("ssh-keyscan"):
        line = error.hint.split("or: ")[1].replace("~", str(home))
        subprocess.run(line, shell=True, check=True, capture_output=True, timeout=20)
        ParamikoTransport().connect(node, LIMITS, Progress()).close()


def test_accept_new_writes_our_own_file_once(good: LoopbackCluster) -> None:
    node, progress = node_of(good, known_hosts=None), Progress()
    ParamikoTransport(accept_new=True).connect(node, LIMITS, progress).close()
    text = (config_folder() / "known_hosts").read_text()
    assert text.count("\n") == 1
    assert "accepted ssh-ed25519 SHA256:" in progress.notes[0]
    ParamikoTransport().connect(node, LIMITS, Progress()).close()
    ParamikoTransport(accept_new=True).connect(node, LIMITS, Progress()).close()
    assert (config_folder() / "known_hosts").read_text() == text


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_key_is_neither_unknown_nor_accepted_where_a_file_cannot_be_read(
    good: LoopbackCluster, home: Path, accept_new: bool
) -> None:
    """It may say there that the key has changed or is revoked."""
    (home / ".ssh" / "known_hosts").mkdir(parents=True)
    error = failure(node_of(good, known_hosts=None), accept_new=accept_new)
    why = f"{home}/.ssh/known_hosts cannot be read (Is a directory)"
    assert error.phase == "hostkey"
    assert f"cannot tell whether the host key (ssh-ed25519) is known: {why}" in str(error)
    assert not (config_folder() / "known_hosts").exists()


def test_accept_new_writes_to_a_home_without_locks(
    good: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    node = node_of(good, known_hosts=None)
    ParamikoTransport(accept_new=True).connect(node, LIMITS, Progress()).close()
    assert (config_folder() / "known_hosts").read_text().count("\n") == 1


def test_changed_key_is_refused_even_with_accept_new(good: LoopbackCluster, home: Path) -> None:
    other = make_key(home / "other")
    path = home / ".ssh" / "known_hosts"
    path.write_text(f"# mine\n[127.0.0.1]:{good.ports[0]} ssh-ed25519 {other}\n")
    error = failure(node_of(good, known_hosts=None), accept_new=True)
    assert error.phase == "hostkey"
    assert f"has changed: {path} line 2 has ssh-ed25519 SHA256:" in str(error)
    assert error.hint is not None
    assert f"ssh-keygen -R '[127.0.0.1]:{good.ports[0]}' -f {path}" in error.hint


def test_revoked_key_is_refused(good: LoopbackCluster, home: Path) -> None:
    known = good.known_hosts.read_text().splitlines()[0]
    (home / ".ssh" / "known_hosts").write_text(f"{known}\n@revoked {known}\n")
    assert "is revoked in" in str(failure(node_of(good, known_hosts=None)))


@pytest.mark.parametrize("accept_new", [False, True])
@pytest.mark.parametrize("hide", [False, True], ids=["plain", "hashed"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{name} ssh-ed25519 {other}", "has changed: .* has ssh-ed25519 SHA256:"),
        ("{name} ssh-rsa {rsa}", "has changed: .* has ssh-rsa SHA256:.* shows ssh-ed25519"),
        ("@revoked {name} ssh-ed25519 {key}", "is revoked in"),
        ("{name} ssh-ed25519 {key}\n@revoked {name} ssh-ed25519 {key}", "is revoked in"),
        ("@revoked 127.0.0.1 ssh-ed25519 {key}", "is revoked in"),
    ],
)
def test_no_changed_or_revoked_key_is_taken_however_it_is_recorded(
    good: LoopbackCluster, home: Path, line: str, words: str, hide: bool, accept_new: bool
) -> None:
    name, _, key = good.known_hosts.read_text().splitlines()[0].split()
    shown = hashed(name) if hide else name
    text = line.format(name=shown, key=key, other=make_key(home / "other"), rsa=OTHER_RSA)
    (home / ".ssh" / "known_hosts").write_text(text + "\n")
    with pytest.raises(TransportError, match=words) as caught:
        ParamikoTransport(accept_new).connect(node_of(good, known_hosts=None), LIMITS, Progress())
    assert caught.value.phase == "hostkey"
    assert not (config_folder() / "known_hosts").exists()


def test_an_alias_is_looked_for_without_the_port(good: LoopbackCluster, home: Path) -> None:
    _, kind, key = good.known_hosts.read_text().splitlines()[0].split()
    (home / ".ssh" / "config").write_text("HostKeyAlias My-GPU\n")
    node = node_of(good, known_hosts=None)
    (home / ".ssh" / "known_hosts").write_text(f"[my-gpu]:{node.port} {kind} {key}\n")
    assert failure(node).phase == "hostkey"
    (home / ".ssh" / "known_hosts").write_text(f"my-gpu {kind} {key}\n")
    ParamikoTransport().connect(node, LIMITS, Progress()).close()


@pytest.mark.parametrize(
    ("strict", "files", "recorded"),
    [
        ("accept-new", "", True),
        ("no", "UserKnownHostsFile /dev/null", False),
        ("no", "UserKnownHostsFile none", None),  # ssh has nowhere to write the key
        ("yes", "", None),
    ],
)
def test_ssh_config_decides_about_new_keys_as_for_ssh(
    good: LoopbackCluster, home: Path, strict: str, files: str, recorded: bool | None
) -> None:
    (home / ".ssh" / "config").write_text(f"StrictHostKeyChecking {strict}\n{files}\n")
    node = node_of(good, known_hosts=None)
    if recorded is None:
        assert failure(node).phase == "hostkey"
    else:
        ParamikoTransport().connect(node, LIMITS, Progress()).close()
        assert (config_folder() / "known_hosts").exists() == recorded


def test_port_user_key_and_address_come_from_ssh_config(good: LoopbackCluster, home: Path) -> None:
    line = node_of(good)
    (home / ".ssh" / "config").write_text(
        f"Host gpu1\n HostName 127.0.0.1\n Port {line.port}\n User {line.user}\n"
        f" IdentityFile {line.identity}\n UserKnownHostsFile {good.known_hosts}\n"
    )
    ParamikoTransport().connect(Node("gpu1"), LIMITS, Progress()).close()
    wrong = failure(Node("gpu1", port=free_port()))
    assert wrong.phase == "tcp"  # the hostfile wins over ssh_config


@pytest.mark.parametrize("spell", ["$(touch {})", "`touch {}`", "a;touch {}", "a\ntouch {}"])
@pytest.mark.parametrize("place", ["name", "host", "user", "jump host"])
def test_no_name_reaches_a_shell_as_a_command(home: Path, spell: str, place: str) -> None:
    trap = home / "trap"
    name = spell.format(trap)
    text = 'Match exec "test %h-%n-%r = x"\n Port 2\nHost *\n ProxyCommand echo %h %n %r\n'
    if place == "jump host":
        hop = name.replace("\n", "\t").partition("/")[0]
        text = f"Host gpu1\n ProxyJump {hop}\n{text}"
    (home / ".ssh" / "config").write_text(text)
    if place == "name":
        with pytest.raises(ValueError, match="which a shell could interpret"):
            Node(name)
    else:
        given = {} if place == "jump host" else {place: name}
        assert failure(Node("gpu1", **given)).phase == "resolve"
    assert not trap.exists()


def test_key_that_is_not_let_in(good: LoopbackCluster, home: Path) -> None:
    make_key(home / "stranger")
    error = failure(node_of(good, identity=home / "stranger"))
    assert error.phase == "auth"
    assert f"refused for user {node_of(good).user}: {home}/stranger" in str(error)
    assert error.hint is not None
    assert "ssh-copy-id -p" in error.hint


def test_user_that_is_not_let_in(good: LoopbackCluster) -> None:
    assert "refused for user nobody-here" in str(failure(node_of(good, user="nobody-here")))


def test_no_key_at_all(good: LoopbackCluster) -> None:
    error = failure(node_of(good, identity=None))
    assert error.phase == "auth"
    assert "no key to log in as" in str(error)


def test_missing_and_broken_key_files_are_named(good: LoopbackCluster, home: Path) -> None:
    assert "nowhere does not exist" in str(failure(node_of(good, identity=home / "nowhere")))
    (home / "broken").write_text("no key at all\n")
    assert "broken is not a usable private key" in str(
        failure(node_of(good, identity=home / "broken"))
    )


def locked(source: Path, path: Path) -> Path:
    """A copy of a private key that needs a passphrase, with its public half beside it."""
    key = serialization.load_ssh_private_key(source.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    secret = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, secret)
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    Path(f"{path}.pub").write_bytes(public + b" locked\n")
    return path


def test_key_with_a_passphrase_is_named_with_what_to_do(good: LoopbackCluster, home: Path) -> None:
    key = locked(good.identity, home / "locked")
    error = failure(node_of(good, identity=key))
    assert f"{key} needs a passphrase and is not in an agent: ssh-add {key}" in str(error)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="no ssh-agent")
def test_agent_opens_what_a_passphrase_locks(
    good: LoopbackCluster, home: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = locked(good.identity, home / "locked")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    subprocess.run(["ssh-add", good.identity], check=True, capture_output=True, timeout=10)
    transport = ParamikoTransport()
    nodes = [node_of(good, number, identity=key) for number in range(3)]
    # Many signatures at once over the agent's one socket.
    work = say_hello(transport)
    assert all(r.value for r in Fanout(nodes, work, deadline_s=LIMITS.total_s))
    transport.connect(node_of(good, identity=None), LIMITS, Progress()).close()


def test_agent_that_is_not_there_is_only_mentioned_when_it_was_needed(
    good: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone"))
    ParamikoTransport().connect(node_of(good), LIMITS, Progress()).close()
    assert "agent at" in str(failure(node_of(good, identity=None)))


@pytest.mark.long
def test_keys_are_read_once_for_many_nodes(good: LoopbackCluster, tmp_path: Path) -> None:
    copy = tmp_path / "key"
    copy.write_bytes(good.identity.read_bytes())
    transport = ParamikoTransport()
    transport.connect(node_of(good, 0, identity=copy), LIMITS, Progress()).close()
    copy.unlink()
    transport.connect(node_of(good, 1, identity=copy), LIMITS, Progress()).close()
