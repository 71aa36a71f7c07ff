"""ssh_config as ssh reads it: generated files, every setting compared with what `ssh -G` says.

Where ssh refuses a file, so must we. Where we refuse one that ssh takes, the sentence must say that it
is not supported. Otherwise every value is the same.
"""

from __future__ import annotations

import collections
import os
import pwd
import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.transport.ssh_config.host import HostConfig
from clusterctl.transport.ssh_config.keywords import ALIASES, IGNORED, READERS
from clusterctl.transport.ssh_config.read import SshConfig
from clusterctl.transport.ssh_config.values import Hop, parse_jump

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh to compare with")

NAMES = ("n1", "n2", "N1", "gate.lab", "a.b.lab", "10.0.0.7", "127.1", "::1", "0x7f000001")
UNSUPPORTED = re.compile(
    r"not supported by this backend|which this backend does not do|versions of ssh"
    r"|%C in .* has no meaning"
)
ME = pwd.getpwuid(os.getuid())


class Writer:
    """Writes one configuration out of a seed: the usual, the odd, and now and then the wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.files = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def rarely(self, usual: str, odd: str) -> str:
        return odd if self.random.random() < 0.02 else usual

    def asked(self) -> Asked:
        user, port = self.pick("", "", "bob"), self.pick("", "", "2200")
        return Asked(self.pick(*NAMES), user or None, int(port) if port else None)

    def file(self, depth: int = 0) -> Path:
        """A whole file; its lines stand in blocks, some of which are read from other files."""
        self.files += 1
        path = self.folder / f"{self.files}.conf"
        lines = [self.setting() for _ in range(self.random.randrange(3))]
        for _ in range(self.random.randint(1, 5)):
            lines.append(self.head())
            lines += [self.setting() for _ in range(self.random.randrange(5))]
            if depth < 2 and self.random.random() < 0.2:
                lines.append(self.include(depth))
        path.write_text("\n".join(lines) + self.pick("\n", "", "\r\n"))
        path.chmod(0o666 if depth and self.random.random() < 0.03 else 0o600)
        return path

    def include(self, depth: int) -> str:
        inner = self.folder / f"d{self.files}"
        inner.mkdir()
        for name in ("10-a", "20-b"):
            self.file(depth + 1).rename(inner / name)
        (inner / ".swap").write_text("\0 no configuration at all\n")
        return self.line(
            "Include", self.pick(f"{inner}/*", f"{inner}/10-a {inner}/none", f'"{inner}/*-b"')
        )

    def line(self, keyword: str, value: str) -> str:
        joint = self.pick(" ", " ", "=", " = ", "\t", "  ")
        spelled = self.pick(keyword, keyword, keyword.lower(), keyword.upper())
        comment = self.pick("", "", "", "", " # a comment", "  \t")
        if keyword in ("ProxyCommand", "ProxyJump", "Match"):
            comment = ""  # ssh 9.2 takes a comment behind some of these for a part of them
        return f"{self.pick('', '  ', chr(9))}{spelled}{joint}{value}{comment}"

    def head(self) -> str:
        if self.random.random() < 0.6:
            patterns = [self.pick(*NAMES, "n*", "*.lab", "?1", "*", "!n2", "![a-z]*", "[n]1", "10.*")
                        for _ in range(self.random.randint(1, 3))]  # fmt: skip
            return self.line("Host", self.rarely(" ".join(patterns), '"open'))
        return self.line(
            "Match", " ".join(self.criterion() for _ in range(self.random.randint(1, 2)))
        )

    def criterion(self) -> str:
        joint = self.pick(" ", " ", "=")
        value = self.pick(
            "n1", "n*,gate.lab", "!n2,*", "*.lab", "N1", '"n1,n2"', "127.0.0.1", "::1"
        )
        return self.rarely(
            self.pick("", "", "!") + self.pick(
                f"host{joint}{value}", f"originalhost {value}", f"user{joint}{self.pick('root', 'bob,!root', '*')}",
                f"localuser {self.pick(ME.pw_name, 'nobody')}", "final", "canonical", 'exec "test %n = n1"',
                'exec "test %h:%p:%r = gate.lab:22:root"', "exec true", "Final",
            ),
            self.pick("all", "host", "exec 'true'", 'host "n1', "host = n1", "nonsense x"),
        )  # fmt: skip

    def setting(self) -> str:
        keyword = self.pick(*VALUES)
        values = VALUES[keyword]
        if keyword == "CanonicalizeHostname" and self.random.random() < 0.6:
            return self.line("Port", "22")  # else most files would ask the DNS
        odd = self.pick(
            *WRONG.get(keyword, ()) * 3, "", "a b", '"open', "%q", "none", "a b c # d", "#", "yes"
        )
        if keyword.lower() in IGNORED:
            odd = values[0]  # what we pass over we do not check
        return self.line(keyword, self.rarely(self.pick(*values), odd))


VALUES: dict[str, tuple[str, ...]] = {
    "AddressFamily": ("any", "inet", "INET6"),
    "CanonicalizeFallbackLocal": ("yes", "no"),
    "CanonicalizeHostname": ("no", "yes", "always", "false", "True"),
    "CanonicalizeMaxDots": ("0", "1", "2"),
    "CanonicalDomains": ("none", "nowhere.invalid"),
    "CertificateFile": ("~/.ssh/c-cert.pub", "/k/%h", '"/k/my cert"'),
    "CheckHostIP": ("no", "no", "no", "yes"),
    "Compression": ("yes", "no"),
    "ForwardAgent": ("no", "yes"),
    "GlobalKnownHostsFile": ("none", "/g/one", "/g/one /g/two", "/g/%h"),
    "HostKeyAlias": ("alias", "Alias.Lab"),
    "HostName": ("%h.lab", "10.0.0.9", "real.LAB", "n1", "%h", "100%%", "127.2", "fe80::0:1"),
    "IdentitiesOnly": ("yes", "no", "Yes", "true", "FALSE"),
    "IdentityAgent": ("none", "SSH_AUTH_SOCK", "$CLUSTERCTL_TEST_AGENT", "~/agent", "/run/%u.%i", "/a/${CLUSTERCTL_TEST_AGENT}"),
    "IdentityFile": ("~/.ssh/k1", "~/.ssh/k1", "~/%r@%h", "/k/%n-%p", "none", '"/k/my key"', "/k/my\\ key", "/k/a#b",
                     "%d/k/%L.%l", "/k/%C", "/k/%k%%", "/k/${CLUSTERCTL_TEST_AGENT}", "'/k/q'"),
    "KnownHostsCommand": ("none", "none", "/bin/true %H"),
    "Port": ("22", "2222", "ssh", "65535", "070", "+22"),
    "ProxyCommand": ("none", "nc %h %p", "'nc' \"%h\" %r@%n:%p # no comment", "=nc %k %%"),
    "ProxyJump": ("none", "gate", "me@gate:2222", "a@b@gate", "%r@gate", "one,two:22,me@three", "ssh://me@gate:99", "[::1]:22", "10.0.0.1", "NONE"),
    "PubkeyAuthentication": ("yes", "yes", "unbound"),
    "RequiredRSASize": ("1024", "2048"),
    "RevokedHostKeys": ("none", "none", "/r/keys"),
    "SendEnv": ("LANG LC_*",),
    "ServerAliveInterval": ("0", "30", "1m", "1h30m", "2M5s", "1w", "none"),
    "StrictHostKeyChecking": ("yes", "no", "ask", "accept-new", "off", "True", "Accept-New"),
    "User": ("root", "bob", "Me@corp.com", "bob"),
    "UserKnownHostsFile": ("none", "/dev/null", "~/kh", "/u/%h /u/%r", '"/u/my file" /u/2', "/u/%C", "/u/${CLUSTERCTL_TEST_AGENT}/%k"),
}  # fmt: skip


WRONG: dict[str, tuple[str, ...]] = {
    "IdentityFile": ("/k/${CLUSTERCTL_TEST_UNSET}", "~nobody-here/k", "/k/${"),
    "Port": ("0", "22x", "65536"),
    "ProxyJump": ("gate:99999", "a,,b", "@gate", "%q@gate"),
    "ServerAliveInterval": ("x", "5 m", "1y", "99999999999"),
    "StrictHostKeyChecking": ("ON", "maybe"),
}


@dataclass(frozen=True)
class Asked:
    """What stands on ssh's command line, and in a hostfile."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def options(self) -> list[str]:
        return ["-l", self.user] * bool(self.user) + ["-p", str(self.port)] * bool(self.port)


def ask_ssh(path: Path, asked: Asked, *options: str) -> dict[str, list[str]] | None:
    """`ssh -G` as keyword to values, None when ssh refuses."""
    done = subprocess.run(
        ["ssh", "-G", *options, *asked.options, "-F", str(path), "--", asked.host],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    if done.returncode:
        return None
    found: dict[str, list[str]] = collections.defaultdict(list)
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found[keyword].append(value)
    return found


def files_of_ssh(path: Path, asked: Asked, raw: list[str]) -> str | None:
    """Files as ssh expands them. -G shows identities unexpanded, known_hosts files expanded."""
    words = " ".join('"' + word.replace('"', '\\"') + '"' for word in raw if word != "none")
    if not words:
        return ""
    found = ask_ssh(path, asked, "-o", f"UserKnownHostsFile={words}")
    return None if found is None else found["userknownhostsfile"][0]


def expected(path: Path, asked: Asked, defaults: dict[str, list[str]]) -> dict[str, object] | None:
    """What ssh makes of the file, in our words; None when it refuses."""
    real = ask_ssh(path, asked)
    if real is None:
        return None
    (hostname,), (port,), (user,) = real["hostname"], real["port"], real["user"]
    alias = real["hostkeyalias"][0] if "hostkeyalias" in real else None
    tokens = {
        "h": hostname,
        "p": port,
        "r": user,
        "n": asked.host,
        "k": alias or asked.host,
        "%": "%",
    }

    def put(text: str) -> str:
        return re.sub("%(.?)", lambda found: tokens[found[1]], text)

    identities: str | None = ""
    if real["identityfile"] != defaults["identityfile"]:
        identities = files_of_ssh(path, asked, real["identityfile"])
    certificates = files_of_ssh(path, asked, real["certificatefile"])
    if identities is None or certificates is None:
        return None  # ssh -G does not look at them, a login does
    strict = {"true": "yes", "false": "no"}
    return {
        "hostname": hostname,
        "port": port,
        "user": user,
        "address_family": real["addressfamily"][0],
        "identity_files": identities,
        "certificate_files": certificates,
        "identities_only": real["identitiesonly"] == ["yes"],
        "identity_agent": real["identityagent"][0] if "identityagent" in real else None,
        "proxy_jump": [
            Hop(put(hop.host), hop.port, put(hop.user) if hop.user else None)
            for hop in parse_jump(real["proxyjump"][0])
        ] if "proxyjump" in real else None,
        "proxy_command": put(real["proxycommand"][0]) if "proxycommand" in real else None,
        "host_key_alias": alias,
        "user_known_hosts": real["userknownhostsfile"][0],
        "global_known_hosts": real["globalknownhostsfile"][0],
        "strict_host_keys": strict.get(real["stricthostkeychecking"][0], real["stricthostkeychecking"][0]),
        "keepalive_s": int(real["serveraliveinterval"][0]),
        "required_rsa_bits": int(real["requiredrsasize"][0]),
    }  # fmt: skip


def in_the_same_words(one: HostConfig, defaults: dict[str, list[str]]) -> dict[str, object]:
    def files(some: tuple[str, ...] | None, keyword: str) -> str:
        if some is None:
            return defaults[keyword][0]
        return "none" if some == ("none",) else " ".join(some)

    return {
        "hostname": one.hostname,
        "port": str(one.port or 22),
        "user": one.user or ME.pw_name,
        "address_family": one.address_family or "any",
        "identity_files": " ".join(one.identity_files or ()),
        "certificate_files": " ".join(one.certificate_files),
        "identities_only": one.identities_only,
        "identity_agent": one.identity_agent,
        "proxy_jump": list(one.proxy_jump) or None,
        "proxy_command": one.proxy_command,
        "host_key_alias": one.host_key_alias,
        "user_known_hosts": files(one.user_known_hosts, "userknownhostsfile"),
        "global_known_hosts": files(one.global_known_hosts, "globalknownhostsfile"),
        "strict_host_keys": {None: "ask", "off": "no"}.get(
            one.strict_host_keys, one.strict_host_keys
        ),
        "keepalive_s": one.keepalive_s or 0,
        "required_rsa_bits": one.required_rsa_bits or 1024,
    }


def compare(path: Path, asked: Asked, defaults: dict[str, list[str]]) -> str:
    """`same`, `both refuse` or `not supported`; anything else fails the test."""
    try:
        theirs = expected(path, asked, defaults)
    except KeyError:
        theirs = None  # a %-token without meaning: a login refuses it, ssh -G does not look at it
    refusal = ""
    try:
        ours = in_the_same_words(
            SshConfig([path]).resolve(asked.host, asked.user, asked.port), defaults
        )
    except TransportError as error:
        refusal = str(error)
    text = path.read_text()
    if refusal:
        is_said = UNSUPPORTED.search(refusal)
        assert theirs is None or is_said, f"ssh takes for {asked} what we refuse: {refusal}\n{text}"
        return "both refuse" if theirs is None else "not supported"
    assert theirs is not None, f"ssh refuses for {asked} what we take\n{text}"
    assert ours == theirs, f"for {asked}\n{text}"
    return "same"


def campaign(
    seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> collections.Counter[str]:
    monkeypatch.setenv("HOME", ME.pw_dir)  # ssh takes it from the password database
    monkeypatch.setenv("CLUSTERCTL_TEST_AGENT", "/run/agent")
    monkeypatch.delenv("CLUSTERCTL_TEST_UNSET", raising=False)
    defaults = ask_ssh(Path("/dev/null"), Asked("n1"))
    assert defaults is not None
    counts: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        inner = folder / str(seed)
        inner.mkdir()
        writer = Writer(seed, inner)
        counts[compare(writer.file(), writer.asked(), defaults)] += 1
    print(f"{len(seeds)} configurations: {dict(counts)}")
    return counts


@pytest.mark.long
def test_generated_configurations_are_resolved_as_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = campaign(range(60), tmp_path, monkeypatch)
    assert counts["same"] >= 20


@pytest.mark.slow
def test_many_generated_configurations_are_resolved_as_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = campaign(range(1000, 1500), tmp_path, monkeypatch)
    assert counts["same"] >= 200


def test_every_keyword_of_the_installed_ssh_is_known() -> None:
    shown = ask_ssh(Path("/dev/null"), Asked("n1"))
    assert shown is not None
    assert {keyword.lower() for keyword in shown} - {"host"} <= {*READERS, *IGNORED, *ALIASES}


@pytest.mark.parametrize(
    "name",
    [
        "a$(id)",
        "a`id`",
        "a b",
        "a;b",
        "a|b",
        "-oProxyCommand=id",
        "a\nb",
        "a'b",
        "(a)",
        "a,b",
        "a\\b",
    ],
)
def test_names_that_ssh_refuses_are_refused(name: str) -> None:
    with pytest.raises(TransportError, match=r"host name .* (shell|begins with)"):
        SshConfig([]).resolve(name)
    if ask_ssh(Path("/dev/null"), Asked(name)) is not None:
        assert name == "a,b", "ssh takes it"
        pytest.skip("an older ssh, which took this name")


@pytest.mark.parametrize("user", ["a;b", "$(id)", "a|b", "-x", "a -oB"])
def test_users_that_ssh_refuses_are_refused(user: str) -> None:
    assert ask_ssh(Path("/dev/null"), Asked("n1", user)) is None
    with pytest.raises(TransportError, match="user name"):
        SshConfig([]).resolve("n1", user)


@pytest.mark.parametrize(
    "name", ["a_b", "a+b", "a=b", "a%b", "a#b", "A.B.", "10.1", "fe80::1%lo", "\u00e4"]
)
def test_odd_names_that_ssh_takes_are_taken(name: str) -> None:
    shown = ask_ssh(Path("/dev/null"), Asked(name))
    assert shown is not None
    assert SshConfig([]).resolve(name).hostname == shown["hostname"][0]
