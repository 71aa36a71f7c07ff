"""Which keys are offered, and in whose name: agents, files, public halves and certificates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.identities import Identities, _load
from clusterctl.transport.paramiko_backend import ParamikoTransport
from clusterctl.transport.public_keys import certified_blob, public_blob
from clusterctl.transport.ssh_config.read import SshConfig

pytestmark = pytest.mark.skipif(not shutil.which("ssh-agent"), reason="no ssh-agent")


def keygen(*options: object) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, options)], check=True, timeout=30)


def add(agent: Path, key: Path) -> None:
    done = subprocess.run(
        ["ssh-add", key], env={"SSH_AUTH_SOCK": str(agent), "PATH": "/usr/bin:/bin"}, capture_output=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def new_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    keygen("-t", kind, "-N", passphrase, "-C", path.name, "-f", path)
    return path


def locked_in_agent(agent: Path, path: Path) -> Path:
    """A key that needs a passphrase, which the agent has been given."""
    add(agent, new_key(path))
    keygen("-p", "-P", "", "-N", "secret", "-f", path)
    return path


def offered(home: Path, text: str) -> tuple[list[str], list[str]]:
    path = home / ".ssh" / "config"
    path.write_text(text)
    offer = Identities().offer(SshConfig([path]).resolve("node"), None)
    return [identity.name for identity in offer.identities], offer.problems


def test_a_public_key_file_chooses_one_of_the_agent_s_keys(home: Path, agent: Path) -> None:
    for name in ("one", "two"):
        add(agent, new_key(home / name))
    (home / "two").unlink()
    text = f"IdentityAgent {agent}\nIdentitiesOnly yes\nIdentityFile {home}/two.pub\n"
    assert offered(home, text) == (["agent:two"], [])


def test_a_public_key_file_without_an_agent_says_so(home: Path) -> None:
    new_key(home / "one")
    names, (problem,) = offered(home, f"IdentityFile {home}/one.pub\nIdentityAgent none\n")
    assert (names, problem) == (
        [],
        f"{home}/one.pub is a public key, and no agent holds its private half",
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_an_encrypted_key_without_its_public_half_is_found_in_the_agent(
    home: Path, agent: Path, kind: str
) -> None:
    key = new_key(home / "one", kind)
    add(agent, key)
    keygen("-p", "-P", "", "-N", "secret", "-f", key)
    Path(f"{key}.pub").unlink()
    text = f"IdentityAgent {agent}\nIdentitiesOnly yes\nIdentityFile {key}\n"
    assert offered(home, text) == (["agent:one"], [])


def test_identity_agent_may_be_a_variable(
    home: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(agent, new_key(home / "one"))
    monkeypatch.setenv("CLUSTERCTL_TEST_AGENT", str(agent))
    assert offered(home, "IdentityAgent $CLUSTERCTL_TEST_AGENT\n") == (["agent:one"], [])
    assert offered(home, "IdentityAgent ${CLUSTERCTL_TEST_AGENT}\n") == (["agent:one"], [])
    assert offered(home, "IdentityAgent $CLUSTERCTL_TEST_UNSET\n") == ([], [])


def test_identity_file_none_offers_no_default_key(home: Path) -> None:
    new_key(home / ".ssh" / "id_ed25519")
    assert offered(home, "IdentityFile none\n") == ([], [])
    assert offered(home, "") == ([f"{home}/.ssh/id_ed25519"], [])


def certify(home: Path, *keys: Path) -> Path:
    """Certificates beside the keys, for root; returns the authority's public key."""
    authority = new_key(home / "authority")
    for key in keys:
        keygen("-s", authority, "-I", "test", "-n", "root,worker", f"{key}.pub")
    return Path(f"{authority}.pub")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_tells_which_key_it_is_about(home: Path, kind: str) -> None:
    key = new_key(home / "one", kind)
    certify(home, key)
    certificate = public_blob(Path(f"{key}-cert.pub"))
    assert certificate is not None
    assert certified_blob(certificate) == public_blob(key)


@pytest.mark.long
def test_certificates_are_offered_beside_their_keys(home: Path) -> None:
    one, two = new_key(home / "one"), new_key(home / "two", "rsa")
    certify(home, one, two)
    names, problems = offered(home, f"IdentityFile {one}\nIdentityFile {two}\n")
    assert (names, problems) == ([f"{one}-cert", f"{two}-cert", str(one), str(two)], [])
    named = f"IdentityFile {one}\nCertificateFile {two}-cert.pub\nCertificateFile {home}/none\n"
    names, problems = offered(home, named)
    assert names == [str(one)]
    assert problems == [
        f"the certificate {two}-cert.pub belongs to none of the keys",
        f"CertificateFile {home}/none is not a readable certificate",
    ]


@pytest.fixture(params=["ed25519", "rsa"])
def certified_node(lab, home: Path, request: pytest.FixtureRequest):
    """A node whose sshd lets in root by certificates alone, and the key that has one."""
    nodes = lab(1)
    node = nodes.nodes[0]
    key = new_key(node.directory / "user", request.param)
    authority = certify(node.directory, key)
    config = node.directory / "sshd_config"
    text = re.sub(
        r"^AuthorizedKeysFile .*$",
        "AuthorizedKeysFile none",
        config.read_text(),
        flags=re.MULTILINE,
    )
    config.write_text(f"{text}\nTrustedUserCAKeys {authority}\n")
    node.kill_sshd()
    node.start_sshd()
    base = f"Host node\n HostName {node.address}\n User root\n UserKnownHostsFile {nodes.known_hosts}\n"
    return node, key, base


WAYS = {
    "file": "IdentityFile {key}\n",
    "named": "IdentityFile {key}\nCertificateFile {key}-cert.pub\n",
    "agent holds the key": "IdentityAgent {agent}\nIdentitiesOnly yes\nIdentityFile {key}.pub\nCertificateFile {cert}\n",
    "agent holds both": "IdentityAgent {agent}\n",
}


@pytest.mark.long
@pytest.mark.lab
@pytest.mark.parametrize("way", WAYS)
def test_sshd_lets_in_a_certificate(certified_node, home: Path, agent: Path, way: str) -> None:
    _, key, base = certified_node
    certificate = Path(f"{key}-cert.pub")
    moved = (
        certificate.rename(home / "elsewhere-cert.pub")
        if way == "agent holds the key"
        else certificate
    )
    if "agent" in way:
        add(agent, key)
        key.unlink()
    config = home / ".ssh" / "config"
    config.write_text(base + WAYS[way].format(key=key, agent=agent, cert=moved))
    transport = ParamikoTransport(config=SshConfig([config]))
    transport.connect(Node("node"), Limits(), Progress()).close()


@pytest.mark.long
@pytest.mark.lab
def test_sshd_refuses_the_key_without_its_certificate(certified_node, home: Path) -> None:
    _, key, base = certified_node
    Path(f"{key}-cert.pub").unlink()
    config = home / ".ssh" / "config"
    config.write_text(base + f"IdentityFile {key}\n")
    with pytest.raises(TransportError, match="refused for user root") as caught:
        ParamikoTransport(config=SshConfig([config])).connect(Node("node"), Limits(), Progress())
    assert caught.value.phase == "auth"


@pytest.mark.parametrize("place", ["pipe", "/dev/zero"])
def test_key_that_is_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / place
    assert public_blob(path) is None
    assert _load(path) == f"{path} is no plain file"
