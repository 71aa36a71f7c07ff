"""Public keys and certificates as files hold them: which private key belongs to them."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

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


def strings(blob: bytes) -> list[bytes]:
    """The strings that a blob is made of, each behind its length. Raises ValueError."""
    found = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            raise ValueError("cut off")
        found.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return found


def pack(parts: list[bytes]) -> bytes:
    """The inverse of `strings`."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def key_type(blob: bytes) -> str:
    """The type that a public key or a certificate begins with."""
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
    """The public half of the key at `path`, to find it in an agent; None where it is not found.

    Looked for as OpenSSH does: in the file itself, in PATH.pub, in the part of a private key that
    is never encrypted.
    """
    for file in (path, Path(f"{path}.pub")):
        try:
            words = file.read_text(encoding="utf-8").split()
            blob = base64.b64decode(words[1], validate=True)
            if key_type(blob) == words[0]:
                return blob
        except (OSError, ValueError, IndexError):
            continue
    try:
        lines = path.read_text(encoding="ascii").strip().splitlines()
        if lines[0] != "-----BEGIN OPENSSH PRIVATE KEY-----":
            return None
        rest = base64.b64decode("".join(lines[1:-1])).removeprefix(_MAGIC)
        for _ in ("cipher", "derivation", "its options"):
            rest = rest[4 + int.from_bytes(rest[:4], "big") :]
        rest = rest[4:]  # how many keys; there is never more than one
        return rest[4 : 4 + int.from_bytes(rest[:4], "big")] or None
    except (OSError, ValueError, IndexError, binascii.Error):
        return None


def certified_blob(certificate: bytes) -> bytes | None:
    """The public key that a certificate certifies; None where it is not a certificate."""
    parts: list[bytes] = []
    rest = certificate
    while len(rest) >= 4 and len(parts) < 6:  # type, nonce and the key come first
        length = int.from_bytes(rest[:4], "big")
        parts.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    name = key_type(certificate)
    plain = name.removesuffix(CERTIFICATE)
    if plain == name or plain not in PARTS:
        return None
    return pack([plain.encode(), *parts[2 : 2 + PARTS[plain]]])
