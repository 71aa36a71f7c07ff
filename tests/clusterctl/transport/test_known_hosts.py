from __future__ import annotations

import base64
import hmac
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.transport.known_hosts import KnownHosts, fingerprint, lookup_name

ED, RSA = "ssh-ed25519", "ssh-rsa"


def public(key_type: str, *parts: bytes) -> str:
    """A public key in base64: its type and its parts, each with its length."""
    some = (key_type.encode(), *parts)
    return base64.b64encode(b"".join(len(one).to_bytes(4, "big") + one for one in some)).decode()


KEY = public(ED, b"first".ljust(32))
OTHER = public(ED, b"other".ljust(32))
OTHER_RSA = public(RSA, b"\1\0\1", b"n".ljust(257))
OTHER_ECDSA = public("ecdsa-sha2-nistp256", b"nistp256", b"q".ljust(65))


def hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def write(tmp_path: Path):
    def make(*lines: str) -> KnownHosts:
        path = tmp_path / "known_hosts"
        path.write_text("\n".join(lines) + "\n")
        return KnownHosts([path])

    return make


@pytest.mark.parametrize(
    ("line", "host", "port", "state"),
    [
        (f"node {ED} {KEY}", "node", 22, "known"),
        (f"node {ED} {KEY}", "NODE", 22, "known"),
        (f"a,node,10.0.0.1 {ED} {KEY} comment here", "10.0.0.1", 22, "known"),
        (f"[node]:2222 {ED} {KEY}", "node", 2222, "known"),
        (f"[node]:2222 {ED} {KEY}", "node", 22, "unknown"),
        (f"*.lab,!bad.lab {ED} {KEY}", "n1.lab", 22, "known"),
        (f"*.lab,!bad.lab {ED} {KEY}", "bad.lab", 22, "unknown"),
        (f"[10.0.0.?]:22022 {ED} {KEY}", "10.0.0.7", 22022, "known"),
        (f"{hashed('node')} {ED} {KEY}", "node", 22, "known"),
        (f"{hashed('[node]:2222')} {ED} {KEY}", "node", 2222, "known"),
        (f"{hashed('node')} {ED} {OTHER}", "node", 22, "changed"),
        (f"node {ED} {OTHER}", "node", 22, "changed"),
        (f"node ssh-rsa {OTHER_RSA}", "node", 22, "changed"),
        (f"{hashed('node')} ssh-rsa {OTHER_RSA}", "node", 22, "changed"),
        # Looked for with the port, then without it: there only this very key counts.
        (f"node {ED} {KEY}", "node", 2222, "known"),
        (f"{hashed('node')} {ED} {KEY}", "node", 2222, "known"),
        (f"node {ED} {OTHER}", "node", 2222, "unknown"),
        (f"@revoked node {ED} {KEY}", "node", 2222, "revoked"),
        (f"[node]:2222 {ED} {OTHER}\nnode {ED} {KEY}", "node", 2222, "changed"),
        # What ssh skips: keys of another type than they say, cut keys, spaces that are none.
        (f"node ssh-rsa {KEY}", "node", 22, "unknown"),
        (f"node {ED} {KEY[:40]}", "node", 22, "unknown"),
        (f"node {ED} {OTHER[:-8]}", "node", 22, "unknown"),
        (f"# old\x0cnode {ED} {KEY}", "node", 22, "unknown"),
        (f"# old\u2028node {ED} {KEY}", "node", 22, "unknown"),
        (f"node\xa0{ED}\xa0{KEY}", "node", 22, "unknown"),
        (f"node {ED} {KEY}\r", "node", 22, "known"),
        (f" \tnode\t {ED}\t{KEY}", "node", 22, "known"),
        (f"n[o]de {ED} {KEY}", "node", 22, "unknown"),
        (f"!node,* {ED} {KEY}", "node", 22, "unknown"),
        (f"@revoked node {ED} {KEY}", "node", 22, "revoked"),
        (f"@revoked * {ED} {KEY}\nnode {ED} {KEY}", "node", 22, "revoked"),
        (f"@cert-authority *.lab {ED} {OTHER}\nn.lab {ED} {KEY}", "n.lab", 22, "known"),
        ("# comment\n\nnonsense\n|1|bad|x ssh-rsa\n@strange node x y", "node", 22, "unknown"),
        (f"|1|%%%|%%% {ED} {KEY}\n|2|a|b {ED} {KEY}", "node", 22, "unknown"),
    ],
    ids=range(34),  # keys are random; a name must be the same in every process
)
def test_lines_are_understood(write, line: str, host: str, port: int, state: str) -> None:
    assert write(line).check(host, port, ED, KEY).state == state


def test_changed_key_names_file_and_line(write, tmp_path: Path) -> None:
    verdict = write("# one", f"x {ED} {KEY}", f"node {ED} {OTHER}").check("node", 22, ED, KEY)
    assert verdict.entry is not None
    assert verdict.entry.where == f"{tmp_path}/known_hosts line 3"


def test_a_second_key_of_the_same_type_is_known_too(write) -> None:
    known = write(f"node {ED} {OTHER}", f"node {ED} {KEY}")
    assert known.check("node", 22, ED, KEY).state == "known"


def test_recorded_types_are_told(write) -> None:
    known = write(f"node ssh-rsa {OTHER_RSA}", f"nod? ecdsa-sha2-nistp256 {OTHER_ECDSA}")
    both = ("ssh-rsa", "ecdsa-sha2-nistp256")
    assert known.check("node", 22, ED, KEY).types == both
    assert known.types("node", 22) == both


def test_types_of_hashed_lines_are_told_once_a_key_does_not_fit(write) -> None:
    known = write(f"{hashed('node')} ssh-rsa {OTHER_RSA}", f"node {ED} {OTHER}")
    assert known.types("node", 22) == (ED,)
    assert set(known.check("node", 22, ED, KEY).types) == {ED, RSA}


def test_a_revoked_key_is_not_asked_for(write) -> None:
    known = write(f"node {ED} {OTHER}", f"@revoked * {ED} {OTHER}", f"node ssh-rsa {OTHER_RSA}")
    assert known.types("node", 22) == (RSA,)


@pytest.mark.parametrize("host", ["*", "n?", "a#b", "@a", "[a"])
def test_a_name_that_would_be_a_pattern_is_not_written(tmp_path: Path, host: str) -> None:
    path = tmp_path / "known_hosts"
    assert KnownHosts([path]).accept(path, host, 22, ED, KEY).state == "unknown"
    assert not path.exists()


def test_authority_is_told_when_nothing_else_is_known(write) -> None:
    verdict = write(f"@cert-authority *.lab {ED} {OTHER}").check("n.lab", 22, ED, KEY)
    assert verdict.state == "unknown"
    assert verdict.authority is not None


def test_missing_file_knows_nobody(tmp_path: Path) -> None:
    assert KnownHosts([tmp_path / "none"]).check("node", 22, ED, KEY).state == "unknown"


def test_accept_writes_one_private_line_and_is_known_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "known_hosts"
    known = KnownHosts([path])
    assert known.check("node", 2222, ED, KEY).state == "unknown"
    assert known.accept(path, "node", 2222, ED, KEY).state == "known"
    assert known.check("node", 2222, ED, KEY).state == "known"
    assert path.read_text() == f"[node]:2222 {ED} {KEY}\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_accept_mends_a_last_line_without_newline(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"a {ED} {OTHER}")
    KnownHosts([path]).accept(path, "b", 22, ED, KEY)
    assert path.read_text() == f"a {ED} {OTHER}\nb {ED} {KEY}\n"


def test_accept_sees_what_another_process_wrote_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    known = KnownHosts([path])
    known.check("node", 22, ED, KEY)  # the file is read now, and empty
    path.write_text(f"node {ED} {OTHER}\n")
    assert known.accept(path, "node", 22, ED, KEY).state == "changed"
    assert path.read_text().count("\n") == 1


def test_many_threads_accept_without_losing_a_line(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    known = KnownHosts([path])
    with ThreadPoolExecutor(16) as pool:
        states = list(pool.map(lambda i: known.accept(path, f"n{i}", 22, ED, KEY).state, range(64)))
    assert set(states) == {"known"}
    assert sorted(path.read_text().split()[::3]) == sorted(f"n{i}" for i in range(64))


def test_thousand_hosts_are_looked_up_in_a_blink(tmp_path: Path) -> None:
    # paramiko: 47 s for the hashed half (reference measurement). The limit is loose on purpose.
    path = tmp_path / "known_hosts"
    keys = [public(ED, os.urandom(32)) for _ in range(1000)]
    names = [f"node-{i}" for i in range(1000)]
    for hide in (False, True):
        path.write_text(
            "".join(
                f"{hashed(n) if hide else n} {ED} {k}\n" for n, k in zip(names, keys, strict=True)
            )
        )
        known = KnownHosts([path])
        started = time.process_time()
        assert all(
            known.check(n, 22, ED, k).state == "known" for n, k in zip(names, keys, strict=True)
        )
        assert time.process_time() - started < 0.5


def test_fingerprint_is_openssh_s() -> None:
    assert fingerprint(base64.b64encode(b"").decode()) == (
        "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
    )


def test_lookup_name_has_the_port_unless_it_is_22() -> None:
    assert lookup_name("N", 22) == "n"
    assert lookup_name("::1", 2200) == "[::1]:2200"
