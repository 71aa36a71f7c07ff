from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.transport.ssh_config.read import SshConfig
from clusterctl.transport.ssh_config.values import Hop


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
    assert some.resolve("n1.lab").proxy_jump == (Hop("gate.lab", None, None),)
    assert some.resolve("gate.lab").proxy_jump == ()


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
        config("Include config\n").resolve("node")


def test_hidden_files_of_an_included_folder_are_not_read(config, home: Path) -> None:
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / ".10-lab.swp").write_bytes(b"\0\xff nonsense")
    (home / ".ssh" / "conf.d" / "10-lab").write_text("Port 7001\n")
    assert config("Include conf.d/*\n").resolve("n").port == 7001


@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_files_that_others_may_write_are_refused_as_by_ssh(config, home: Path, mode: int) -> None:
    inner = home / ".ssh" / "inner"
    inner.write_text("Port 7001\n")
    inner.chmod(mode)
    with pytest.raises(TransportError, match=r"inner: other users can write to it.*chmod go-w"):
        config("Include inner\n").resolve("n")


def test_included_file_that_cannot_be_read_is_no_empty_file(config, home: Path) -> None:
    (home / ".ssh" / "inner").symlink_to("inner")
    with pytest.raises(TransportError, match="inner: cannot be read"):
        config("Include in*\n").resolve("n")


def test_every_line_of_a_bad_file_is_a_failure_of_every_host_and_is_parsed_once(
    config, home: Path
) -> None:
    some = config("Port 0\n")
    (home / ".ssh" / "config").unlink()
    for name in ("a", "b"):
        with pytest.raises(TransportError, match="'0' is not a port"):
            some.resolve(name)


def test_crypto_policy_of_rhel_9_is_understood(config, home: Path) -> None:
    (home / ".ssh" / "policy").write_text("Ciphers aes256-ctr\nRSAMinSize 2048\n")
    found = config("Include policy\nHost gpu*\n User u\n").resolve("gpu1")
    assert found.user == "u"
    with pytest.raises(TransportError, match="'big' is not"):
        config("RSAMinSize big\n").resolve("gpu1")


def test_ignore_unknown_lets_other_programs_keywords_pass(config) -> None:
    text = "IgnoreUnknown UseKeychain,My*\nHost *\n UseKeychain yes\n MyOwn x\n Port 7001\n"
    assert config(text).resolve("n").port == 7001


@pytest.mark.parametrize(
    ("text", "name", "port"),
    [
        ("Host Foo\n Port 7001\n", "foo", None),
        ("Host foo\n Port 7001\n", "Foo", None),
        ("Host # nobody\n Port 7001\n", "#", None),
        (
            "Match originalhost a\n Port 7001\nMatch final host b\n User x\nHost a\n HostName b\n",
            "a",
            7001,
        ),
        ("Match canonical\n Port 7001\nMatch final\n User x\n", "a", 7001),
        ("Host a\n HostName b\nMatch final originalhost a\n Port 7001\n", "a", 7001),
        ("# \x0c Port 7001\n", "a", None),
        ("# x\u2028Port 7001\n", "a", None),
    ],
)
def test_lines_hold_for_the_hosts_that_ssh_takes_them_for(
    config, text: str, name: str, port: int | None
) -> None:
    assert config(text).resolve(name).port == port


def test_match_criteria(config) -> None:
    some = config(
        "Host alias\n HostName real.lab\n"
        "Match host *.lab user root\n Port 7001\n"
        "Match originalhost alias !user root\n Port 7002\n"
        'Match exec "test %n = special"\n Port 7003\n'
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
        ("\nMatch host\n Port 1\n", "line 2: Match: Match host needs a value"),
        ("Match exec 'true'\n", "line 1: .*versions of ssh read this differently"),
        (
            "ProxyJump none\nProxyCommand nc %h\n",
            "line 2: versions of ssh differ about a ProxyCommand",
        ),
        ("ProxyJump a, b\n", "line 1: ProxyJump: ' b' has a space in it"),
        ("Match !final\n User x\n", "line 1: versions of ssh differ about a Match !final"),
        ("Host 'open\n", "line 1: Host: a quote is not closed"),
        ("Port many\n", "line 1: Port: 'many' is not a port"),
        ("Host other\n Port many\n", "line 2: Port: 'many' is not a port"),
        ("ServerAliveInterval 1 m\n", "line 1: ServerAliveInterval: expected one value, got 2"),
        ("StrictHostKeyCheking yes\n", r"line 1: .*unknown keyword \(IgnoreUnknown"),
        (
            "CanonicalizeHostname yes\nCanonicalDomains lab\n",
            "line 1: CanonicalizeHostname asks the DNS",
        ),
        ("IdentityFile /k/%q\n", "line 1: %q in '/k/%q' has no meaning here"),
        ("IdentityFile /k/${CLUSTERCTL_TEST_UNSET}\n", "is not set in the environment"),
        ("Include ~/${X}\n", "line 1: .*only some versions of ssh expand this"),
        ("RevokedHostKeys /etc/revoked\n", "line 1: revokedhostkeys /etc/revoked is not supported"),
        ("KnownHostsCommand /bin/x %H\n", "line 1: knownhostscommand /bin/x %H is not supported"),
        ("CheckHostIP yes\n", "line 1: checkhostip yes is not supported"),
        ("PubkeyAuthentication no\n", "line 1: pubkeyauthentication no is not supported"),
        (
            "PreferredAuthentications password\n",
            "preferredauthentications password is not supported",
        ),
        ("BindAddress 10.0.0.1\n", "bindaddress 10.0.0.1 is not supported"),
        ("ProxyCommand x\nProxyUseFdpass yes\n", "line 2: proxyusefdpass yes is not supported"),
        ("User a\0b\n", "contains a NUL byte"),
        ('just one word per line\n"\n', "line 1: just: unknown keyword"),
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
    assert some.resolve("a").proxy_command == "nc a 22"
    assert some.resolve("a").proxy_jump == ()
    assert some.resolve("b").proxy_jump == ()
    assert some.resolve("c").proxy_jump == (Hop("gate", None, None),)
    both = "Host a\n ProxyJump none\n ProxyCommand none\nHost *\n ProxyCommand nc %h\n"
    assert config(both).resolve("a").proxy_command is None


def test_missing_files_say_nothing(tmp_path: Path) -> None:
    one = SshConfig([tmp_path / "none"]).resolve("node")
    assert (one.hostname, one.port, one.user) == ("node", None, None)


@pytest.mark.long
def test_thousand_blocks_resolve_in_a_blink(config) -> None:
    # paramiko: 67 ms for each lookup among 1,000 blocks.
    seconds = {}
    for count in (20, 1000):
        blocks = "".join(f"Host n{i}\n Port {2000 + i}\n" for i in range(count))
        some = config(f"{blocks}Host *\n User u\n")
        some.resolve("other")
        started = time.process_time()
        ports = [some.resolve(f"n{i}").port for i in range(1000)]
        seconds[count] = time.process_time() - started
        assert ports == [2000 + i if i < count else None for i in range(1000)]
    assert seconds[1000] < 15 * seconds[20]  # 50 times the blocks
