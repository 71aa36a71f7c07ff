"""Public keys and certificates as files hold them: which private key belongs to them."""

from __future__ import annotations

import base64
from pathlib import Path

from trainer.runlog.run_files import read_chosen

MOST_BYTES = 1 << 20  # of a key, which has some thousands
CERTIFICATE = "-cert-v01@openssh.com"
# Strings that make the key, behind its type.
PARTS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "ssh-dss": 4,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
_MAGIC = b"openssh-key-v1\0"


def take(blob: bytes) -> tuple[bytes, bytes]:
    """The string at the start of a blob, after its length, and the rest. Raises `ValueError`."""
    end = 4 + int.from_bytes(blob[:4], "big")
    if len(blob) < max(4, end):
        raise ValueError("cut off")
    return blob[4:end], blob[end:]


def strings(blob: bytes, most: int | None = None) -> list[bytes]:
    """The strings of a blob, the first `most` of them. Raises `ValueError`."""
    found: list[bytes] = []
    while blob and len(found) != most:
        string, blob = take(blob)
        found.append(string)
    return found


def key_type(blob: bytes) -> str:
    return blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode(errors="replace")


def is_key_of(name: str, blob: bytes) -> bool:
    """Whether a blob is a whole public key of that type."""
    try:
        kind, *parts = strings(blob)
    except ValueError:
        return False
    if kind != name.encode() or len(parts) != PARTS.get(name):
        return False
    return name != "ssh-ed25519" or len(parts[0]) == 32


def public_blob(path: Path) -> bytes | None:
    """The public half of the key at `path`, to find it in an agent; None without one.

    As OpenSSH, from the file itself, PATH.pub, or the part of a private key that is not encrypted.
    """
    for file in (path, Path(f"{path}.pub")):
        try:
            words = read_chosen(file, MOST_BYTES, wait_s=0).decode().split()
            blob = base64.b64decode(words[1], validate=True)
            if key_type(blob) == words[0]:
                return blob
        except (OSError, ValueError, IndexError):
            continue
    try:
        lines = read_chosen(path, MOST_BYTES, wait_s=0).decode("ascii").strip().splitlines()
        if lines[0] != "-----BEGIN OPENSSH PRIVATE KEY-----":
            return None
        rest = base64.b64decode("".join(lines[1:-1])).removeprefix(_MAGIC)
        for _ in ("cipher", "derivation", "its options"):
            _, rest = take(rest)
        # After the number of keys, of which there is never more than one.
        return take(rest[4:])[0] or None
    except (OSError, ValueError, IndexError):
        return None


def certified_blob(certificate: bytes) -> bytes | None:
    """The public key that a certificate certifies; None where it is not a certificate."""
    name = key_type(certificate)
    plain = name.removesuffix(CERTIFICATE)
    if plain == name or plain not in PARTS:
        return None
    try:
        _, _, *key = strings(certificate, 2 + PARTS[plain])  # type and nonce come first
    except ValueError:
        return None
    return b"".join(len(part).to_bytes(4, "big") + part for part in (plain.encode(), *key))
