from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.transport.ssh_config import SshConfig


@pytest.fixture
def config(home: Path):
    def make(text: str) -> SshConfig:
        path = home / ".ssh" / "config"
        path.write_text(text)
        return SshConfig([path])

    return make


def test_first_value_wins_and_identities_add_up(config) -> None:
    one = config(
        "Host node\n User a\n IdentityFile ~/k1\nHost *\n User b\n Port=2222\n IdentityFile ~/k2\n"
    ).resolve("node")
    assert (one.user, one.port) == ("a", 2222)
    assert [Path(name).name for name in one.identity_files] == ["k1", "k2"]


def test_settings_before_the_first_host_hold_for_all(config) -> None:
    assert config("User early\nHost x\n User late\n").resolve("x").user == "early"


def test_negated_pattern_excludes(config) -> None:
    some = config("Host *.lab !gate.lab\n ProxyJump gate.lab\n")
    assert some.resolve("n1.lab").proxy_jump == "gate.lab"
    assert some.resolve("gate.lab").proxy_jump is None


def test_tokens_and_quotes(config, home: Path) -> None:
    one = config(
        'Host n\n HostName %h.example.org\n IdentityFile "~/my keys/%r-%n" # why\n User bob\n'
    ).resolve("n")
    assert one.hostname == "n.example.org"
    assert one.identity_files == (f"{home}/my keys/bob-n",)


def test_include_is_read_in_place_and_relative_to_dot_ssh(config, home: Path) -> None:
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / "10-lab").write_text("Host n*\n Port 7001\n User inner\n")
    (home / ".ssh" / "conf.d" / "20-other").write_text("Port 7002\n")
    some = config("User first\nInclude conf.d/*\nPort 7003\n")
    assert (some.resolve("n1").port, some.resolve("n1").user) == (7001, "first")
    assert some.resolve("x").port == 7002


def test_include_inside_a_host_block_holds_for_it_alone(config, home: Path) -> None:
    (home / ".ssh" / "more").write_text("Port 7001\nHost b\n User deep\n")
    some = config("Host a b\n Include more\n User late\nHost *\n Port 7002\n")
    assert some.resolve("a").port == 7001
    assert some.resolve("a").user == "late"
    assert some.resolve("b").user == "deep"
    assert some.resolve("c").port == 7002
    assert some.resolve("c").user is None


def test_include_that_circles_ends_with_a_sentence(config) -> None:
    with pytest.raises(TransportError, match="16 deep"):
        config("Include config\n")


def test_match_criteria(config) -> None:
    some = config(
        "Host alias\n HostName real.lab\n"
        "Match host *.lab user root\n Port 7001\n"
        "Match originalhost alias !user root\n Port 7002\n"
        "Match exec 'test %n = special'\n Port 7003\n"
        "Match all\n User anyone\n"
    )
    assert some.resolve("alias", "root").port == 7001
    assert some.resolve("alias", "me").port == 7002
    assert some.resolve("special").port == 7003
    assert some.resolve("other").port is None
    assert some.resolve("other").user == "anyone"


def test_match_final_sees_the_resolved_name(config) -> None:
    some = config("Match final host n.real\n Port 7001\nHost n\n HostName n.real\n")
    assert some.resolve("n").port == 7001
    assert some.resolve("m").port is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Match localnetwork 10.0.0.0/8\n Port 1\n",
            "line 1: 'Match localnetwork' is not supported",
        ),
        ("\nMatch host\n Port 1\n", "line 2: Match host needs a value"),
        ("Host 'open\n", "line 1: No closing quotation"),
        ("Port many\n", "'many' is no number"),
        ("CanonicalizeHostname yes\nCanonicalDomains lab\n", "canonicalize"),
    ],
)
def test_what_cannot_be_decided_is_said_with_its_line(config, text: str, words: str) -> None:
    with pytest.raises(TransportError, match=words) as caught:
        config(text).resolve("node")
    assert caught.value.phase == "resolve"


def test_unsupported_match_is_no_matter_where_another_criterion_fails(config) -> None:
    assert config("Match localnetwork 10.0.0.0/8 host other\n Port 1\n").resolve("n").port is None


def test_jump_and_command_compete_and_none_turns_off(config) -> None:
    some = config(
        "Host a\n ProxyCommand nc %h %p\nHost b\n ProxyJump none\nHost *\n ProxyJump gate\n"
    )
    assert some.resolve("a").proxy_command == "nc %h %p"
    assert some.resolve("a").proxy_jump is None
    assert some.resolve("b").proxy_jump is None
    assert some.resolve("c").proxy_jump == "gate"


def test_missing_files_say_nothing(tmp_path: Path) -> None:
    one = SshConfig([tmp_path / "none"]).resolve("node")
    assert (one.hostname, one.port, one.user) == ("node", None, None)


def test_thousand_blocks_resolve_in_a_blink(config) -> None:
    # paramiko: 67 ms for each lookup among 1,000 blocks.
    some = config(
        "".join(f"Host n{i}\n Port {2000 + i}\n" for i in range(1000)) + "Host *\n User u\n"
    )
    started = time.process_time()
    assert [some.resolve(f"n{i}").port for i in range(1000)] == list(range(2000, 3000))
    assert time.process_time() - started < 0.5


@pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh to compare with")
def test_equal_to_ssh_dash_g(config, home: Path) -> None:
    (home / ".ssh" / "inc").write_text("Host n?\n Port 99\nMatch originalhost n2\n User two\n")
    some = config(
        f"Host n3 !n9\n HostName %h.x\n Port 3\nInclude {home}/.ssh/inc\nHost n*\n HostKeyAlias al\n"
        "Match host *.x\n User matched\nHost *\n ServerAliveInterval 7\n User all\n"
    )
    for name in ("n1", "n2", "n3", "n9", "other"):
        # -F: ssh takes its home from the password database, not from $HOME.
        shown = subprocess.run(
            ["ssh", "-G", "-F", str(home / ".ssh/config"), name],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout  # fmt: skip
        real = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
        one = some.resolve(name)
        assert one.hostname == real["hostname"]
        assert (one.user, one.keepalive_s) == (real["user"], int(real["serveraliveinterval"]))
        assert str(one.port or 22) == real["port"]
