"""known_hosts as ssh reads them: generated files, against ssh-keygen and against logins by ssh."""

from __future__ import annotations

import base64
import collections
import hmac
import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.defaults import config_folder
from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.known_hosts import KnownHosts, fingerprint
from clusterctl.transport.paramiko_backend import ParamikoTransport
from clusterctl.transport.ssh_config.read import SshConfig
from tests.lab import LabNode

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh to compare with")

TYPES = ("ed25519", "ecdsa", "rsa")
PORT = 2222
ALIAS = "GPU.lab"


@pytest.fixture(scope="module")
def strange_keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Public keys that the machine does not have, one of each type."""
    return make_keys(tmp_path_factory.mktemp("keys"))


def make_keys(folder: Path) -> list[str]:
    for kind in TYPES:
        path = folder / f"host_{kind}"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True, timeout=60
        )
    return [" ".join((folder / f"host_{kind}.pub").read_text().split()[:2]) for kind in TYPES]


class Writer:
    """Writes a known_hosts file out of a seed, about one machine and others."""

    def __init__(self, seed: int, address: str, keys: list[str], strange: list[str]) -> None:
        self.random = random.Random(seed)
        self.address, self.keys, self.strange = address, keys, strange

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def file(self) -> str:
        lines = [self.line() for _ in range(self.random.randrange(6))]
        return "\n".join(lines) + self.pick("\n", "", "\r\n")

    def line(self) -> str:
        dice = self.random.random()
        if dice < 0.1:
            return self.pick(
                "",
                "# a comment",
                "  ",
                "one word",
                "|1|x|y ssh-rsa AAAA",
                f"#{self.address} {self.keys[0]}",
            )
        marker = self.pick(*[""] * 8, "@revoked ", "@cert-authority ", "@strange ", "@revoked  ")
        key = self.pick(*self.keys * 2, *self.strange)
        if dice < 0.2:
            key = self.pick(
                key[:-9],
                key.replace(" ", " x", 1),
                "ssh-rsa " + self.keys[0].split()[1],
                key.split()[0],
            )
        return f"{self.pick('', '', ' ')}{marker}{self.names()} {key}{self.pick('', ' a comment', '  ', chr(13))}"

    def names(self) -> str:
        address, alias = self.address, ALIAS.lower()
        some = [address, f"[{address}]:{PORT}", alias, ALIAS, f"[{alias}]:{PORT}", "other.lab", "10.231.*", "*.lab", "*",
                f"[{address}]:*", f"!{address}", f"?{address[1:]}", f"[{address}]:22", f"!{alias}", "[1]0.231.*"]  # fmt: skip
        names = ",".join(self.random.choice(some) for _ in range(self.random.randint(1, 2)))
        if self.random.random() < 0.35 and not set(names) & set("*?!,"):
            return self.hashed(names)
        return names

    def hashed(self, name: str) -> str:
        salt = self.random.randbytes(20 if self.random.random() < 0.9 else 8)
        digest = hmac.digest(salt, name.encode(), "sha1")
        return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def lines_of_ssh(path: Path, name: str) -> set[tuple[int, str, str]]:
    """Line, marker and fingerprint of everything that ssh-keygen finds about a name."""
    done = subprocess.run(
        ["ssh-keygen", "-l", "-F", name, "-f", str(path)], capture_output=True, text=True, timeout=20
    )  # fmt: skip
    found = re.findall(
        r"^# Host .* found: line (\d+) ?(\w*)\s*\n\S+ \S+ (SHA256:\S+)", done.stdout, re.MULTILINE
    )
    return {(int(line), marker, print_) for line, marker, print_ in found}


def lines_of_ours(path: Path, name: str) -> set[tuple[int, str, str]]:
    marks = {"revoked": "REVOKED", "cert-authority": "CA", "": ""}
    file = KnownHosts([path])._all()[0]
    return {(e.line, marks[e.marker], fingerprint(e.key)) for e in file.find(name, None)}


def search(seeds: range, folder: Path, strange: list[str]) -> int:
    found = 0
    keys = make_keys(folder)
    for seed in seeds:
        path = folder / f"known_hosts_{seed}"
        path.write_bytes(Writer(seed, "10.231.0.10", keys, strange).file().encode())
        for name in ("10.231.0.10", f"[10.231.0.10]:{PORT}", ALIAS.lower()):
            ours, theirs = lines_of_ours(path, name), lines_of_ssh(path, name)
            assert ours == theirs, f"seed {seed}, {name}\n{path.read_text()}"
            found += len(ours)
    print(f"{len(seeds)} known_hosts files, {found} lines found in them by both")
    return found


@pytest.mark.long
def test_generated_files_are_searched_as_by_ssh_keygen(
    tmp_path: Path, strange_keys: list[str]
) -> None:
    assert search(range(25), tmp_path, strange_keys) > 25


@pytest.mark.slow
def test_many_generated_files_are_searched_as_by_ssh_keygen(
    tmp_path: Path, strange_keys: list[str]
) -> None:
    assert search(range(1000, 1400), tmp_path, strange_keys) > 400


@dataclass(frozen=True)
class Machine:
    """A lab node whose sshd has host keys of three types and listens at two ports."""

    node: LabNode
    keys: list[str]


@pytest.fixture
def machine(lab) -> Machine:
    node = lab(1).nodes[0]
    keys = make_keys(node.directory)
    config = node.directory / "sshd_config"
    own = re.sub(r"^HostKey .*$", "", config.read_text(), flags=re.MULTILINE)
    more = "".join(f"HostKey {node.directory}/host_{kind}\n" for kind in TYPES)
    config.write_text(f"{own}\nPort {PORT}\n{more}".replace(f"ListenAddress {node.address}", ""))
    node.kill_sshd()
    node.start_sshd()
    return Machine(node, keys)


def log_in(seeds: range, folder: Path, machine: Machine, strange: list[str]) -> None:
    """Each seed: two files, a port, perhaps an alias, and a policy; ssh and we log in by them."""
    counts: collections.Counter[str] = collections.Counter()
    lab = machine.node.lab
    for seed in seeds:
        writer = Writer(seed, machine.node.address, machine.keys, strange)
        strict = writer.pick("yes", "accept-new", "accept-new", "ask", "no")
        files = [folder / f"{seed}-user", folder / f"{seed}-global"]
        texts = [writer.file(), writer.file()]
        user_file = writer.pick(*[str(files[0])] * 5, "none", "/dev/null")
        config = folder / f"{seed}-config"
        config.write_text(
            f"Host node\n HostName {machine.node.address}\n User root\n IdentityFile {lab.identity}\n"
            f" IdentitiesOnly yes\n StrictHostKeyChecking {strict}\n UserKnownHostsFile {user_file}\n"
            f" Port {writer.pick('22', str(PORT))}\n KexAlgorithms curve25519-sha256\n"
            f" GlobalKnownHostsFile {files[1]}\n" + writer.pick("", "", f" HostKeyAlias {ALIAS}\n")
        )
        for path, text in zip(files, texts, strict=True):
            path.write_bytes(text.encode())
        (config_folder() / "known_hosts").unlink(missing_ok=True)
        ours = "accepted"
        try:
            transport = ParamikoTransport(config=SshConfig([config]))
            transport.connect(Node("node"), Limits(), Progress()).close()
        except TransportError as error:
            ours = "refused" if error.phase == "hostkey" else str(error)
        for path, text in zip(files, texts, strict=True):
            assert path.read_bytes().decode() == text  # the user's files are only read
        done = subprocess.run(
            ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "UpdateHostKeys=no", "node", "true"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        theirs = "refused" if "Host key verification failed" in done.stderr else "accepted"
        assert theirs == "refused" or done.returncode == 0, f"seed {seed}: {done.stderr}"
        where = f"seed {seed}: we {ours}, ssh {theirs}\n{config.read_text()}\n{texts[0]}\n---\n{texts[1]}\n{done.stderr}"
        # A changed or revoked key is never taken here, which StrictHostKeyChecking no would allow.
        assert ours == theirs or (strict == "no" and ours == "refused"), where
        counts[f"ssh {theirs}, we {ours}"] += 1
    print(f"{len(seeds)} logins: {dict(counts)}")
    assert (
        min(counts["ssh accepted, we accepted"], counts["ssh refused, we refused"])
        > len(seeds) // 5
    )


@pytest.mark.long
@pytest.mark.lab
def test_logins_are_accepted_and_refused_as_by_ssh(
    tmp_path: Path, machine: Machine, strange_keys: list[str]
) -> None:
    log_in(range(12), tmp_path, machine, strange_keys)


@pytest.mark.lab
@pytest.mark.slow
def test_many_logins_are_accepted_and_refused_as_by_ssh(
    tmp_path: Path, machine: Machine, strange_keys: list[str]
) -> None:
    log_in(range(1000, 1100), tmp_path, machine, strange_keys)
