"""Ciphers and the like of ssh_config: a list can make us stricter, never laxer."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.paramiko_backend import ParamikoTransport
from clusterctl.transport.ssh_config.patterns import limited
from clusterctl.transport.ssh_config.read import SshConfig

OURS = ("aes128-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
SUPPORTED = (*OURS, "aes256-cbc")


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("aes256-ctr,aes128-ctr,chacha20-poly1305@openssh.com", ["aes256-ctr", "aes128-ctr"]),
        ("+aes256-cbc", [*OURS, "aes256-cbc"]),
        ("-aes*-ctr", ["aes128-gcm@openssh.com"]),
        ("^aes256-ctr", ["aes256-ctr", "aes128-gcm@openssh.com", "aes128-ctr"]),
        ("chacha20-poly1305@openssh.com", []),
        ("*-gcm@openssh.com", ["aes128-gcm@openssh.com"]),
    ],
)
def test_lists_replace_add_remove_and_prefer(spec: str, chosen: list[str]) -> None:
    assert list(limited(OURS, SUPPORTED, spec)) == chosen


def test_two_names_of_one_algorithm_are_the_same() -> None:
    ours = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
    assert limited(ours, ours, "curve25519-sha256") == ours[:1]


@pytest.fixture
def node(lab, home: Path):
    """A lab node with an RSA host key of 2048 bits beside its own, and one way to log in to it."""
    nodes = lab(1)
    one = nodes.nodes[0]
    key = one.directory / "host_rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", key], check=True)
    config = one.directory / "sshd_config"
    config.write_text(f"{config.read_text()}\nHostKey {key}\n")
    one.kill_sshd()
    one.start_sshd()
    with nodes.known_hosts.open("a") as file:
        file.write(f"{one.address} {' '.join(Path(f'{key}.pub').read_text().split()[:2])}\n")

    def connect(text: str):
        path = home / ".ssh" / "config"
        path.write_text(
            f"Host node\n HostName {one.address}\n User root\n IdentityFile {nodes.identity}\n"
            f" UserKnownHostsFile {nodes.known_hosts}\n{text}\n"
        )
        transport = ParamikoTransport(config=SshConfig([path]))
        with closing(transport.connect(Node("node"), Limits(), Progress())) as connection:
            wire = connection.transport
            return wire.remote_cipher, wire.remote_mac, wire.host_key_type

    return connect


@pytest.mark.long
@pytest.mark.lab
def test_the_lists_of_ssh_config_decide_what_is_used(node) -> None:
    text = "Ciphers aes256-ctr\nMACs hmac-sha2-512\nHostKeyAlgorithms rsa-sha2-256\n"
    text += "KexAlgorithms curve25519-sha256\nPubkeyAcceptedAlgorithms ssh-ed25519\n"
    assert node(text) == ("aes256-ctr", "hmac-sha2-512", "rsa-sha2-256")


@pytest.mark.long
@pytest.mark.lab
@pytest.mark.parametrize(
    ("text", "phase", "words"),
    [
        ("Ciphers chacha20-poly1305@openssh.com", "kex", "ciphers chacha20.*this backend has none"),
        ("HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com", "kex", "hostkeyalgorithms"),
        ("PubkeyAcceptedAlgorithms rsa-*", "auth", "PubkeyAcceptedAlgorithms excludes"),
        ("HostKeyAlgorithms rsa-sha2-512\nRequiredRSASize 3000", "hostkey", "fewer than 3000 bits"),
    ],
)
def test_what_a_list_leaves_out_is_not_used(node, text: str, phase: str, words: str) -> None:
    with pytest.raises(TransportError, match=words) as caught:
        node(text)
    assert caught.value.phase == phase
