"""What secrets have in their names, and what is in every text that may hold one.

Loading what masks a text (mask.py) takes a node 9 ms: it is done where one of these marks is found.
"""

from __future__ import annotations

import functools
import re

HIDDEN = "***"

# A word of a name that is one of these, or ends like one of those: WANDB_API_KEY, apiKey, MY_PAT.
_WORDS = "PWD PASS SSHPASS PGPASS DBPASS PAT AUTH AUTHORIZATION JWT BEARER SIGNATURE KEYS TOKENS"
WORDS = (_WORDS + " COOKIES").split()
_ENDS = (
    "KEY TOKEN SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE PASSCODE CREDENTIAL CREDENTIALS"
    " COOKIE"
)
ENDS = tuple(_ENDS.split())
# Short options that mean a password to one program and something else to others.
SHORT = {
    "sshpass": ("-p",),
    "curl": ("-u",),
    "redis-cli": ("-a",),
    "docker": ("-p",),
    "podman": ("-p",),
    "ssh-keygen": ("-N", "-P"),
    "zip": ("-P",),
    "unzip": ("-P",),
    "ldapsearch": ("-w",),
}

# Lengths have bounds, so that no text takes quadratic time.
VALUE = r"""\"(?:\\.|[^\"\\]){0,2000}\"|'(?:\\.|[^'\\]){0,2000}'|[^\s,;&)}\]]+"""
# Tokens that begin with a prefix of their own, which is also the quick check for them.
TOKENS = """hf_ ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- glrt- sk- sk_live_ sk_test_ rk_live_
rk_test_ whsec_ nvapi- xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- wandb_v1_ AKIA ASIA AIza
GOCSPX- npm_ pypi- dckr_pat_ ya29. hvs. SG. dop_v1_ shpat_ dapi lin_api_ AGE-SECRET-KEY-""".split()
# Secrets that are known by what is around them: (mark, expression); `kept` is shown.
SHAPES = (
    ("eyJ", r"\beyJ[\w-]{8,2000}\.[\w-]{1,2000}\.[\w-]+"),  # JSON web token
    ("sig=", r"(?P<kept>[?&;\s\"']sig=)[^&\s\"']+"),  # Azure, shared access
    ("SIG=", r"(?P<kept>[?&;\s\"']SIG=)[^&\s\"']+"),
    ("hooks.slack", r"(?P<kept>hooks\.slack(?:-gov)?\.com/)[^\s\"'<>]+"),
    ("/api/webhooks/", r"(?P<kept>/api/webhooks/)[^\s\"'<>]+"),  # Discord
    ("webhook.office", r"(?P<kept>webhook\.office\.com/)[^\s\"'<>]+"),
    (":A", r"(?<!\d)\d{8,12}:A[\w-]{30,}"),  # Telegram
    ("earer ", r"(?P<kept>\b[Bb]earer\s{1,9})(?=\S*[\d_=-])[\w.~+/=-]{8,}"),
    ("BEARER ", r"(?P<kept>\bBEARER\s{1,9})(?=\S*[\d_=-])[\w.~+/=-]{8,}"),
    ("asic ", r"(?P<kept>\b[Bb]asic\s{1,9})(?=\S*[\d=])[A-Za-z0-9+/]{12,}={0,2}(?![\w+/])"),
    ("passw", r"(?P<kept>(?:^|\n)\s{0,40}passw(?:or)?d\s{1,9})\S+(?=[ \t]{0,9}(?:\n|$))"),  # .netrc
    ("passw", r"(?P<kept>\blogin\s{1,9}\S{1,200}\s{1,9}passw(?:or)?d\s{1,9})\S+"),
    (
        "passw",
        (
            r"(?i)(?P<kept>(?<![^\W_])passw(?:or)?d\s{1,9}[\"']?)"
            r"(?=[^\s\"']*[\d!@#$%^&*])[^\s\"',;:)]{4,}"
        ),
    ),
    (
        "passphrase",
        (
            r"(?i)(?P<kept>(?<![^\W_])passphrase\s{1,9}(?:is\s{1,9})?[\"']?)"
            r"(?=[^\s\"']*[\d!@#$%^&*-])[^\s\"',;:)]{4,}"
        ),
    ),
    *(
        (mark, r"(?i)(?P<kept>(?<![A-Za-z0-9])pin[\"']?\s?[:=]\s{0,3}[\"']?)\d{4,12}(?!\w)")
        for mark in ("pin=", "pin:", "pin =", "pin :", 'pin":', "pin':")
    ),
    ("sshpass", r"(?P<kept>\bsshpass\s{1,9}-p\s{0,9})(?:%s)" % VALUE),
)
# Options that are followed by a secret: (mark, program, option, what may be between, characters).
PROGRAMS = (
    ("ssh-keygen", r"\bssh-keygen\s", r"(?<=\s)-N", r"\s{0,9}", 300),
    ("ssh-keygen", r"\bssh-keygen\s", r"(?<=\s)-P", r"\s{0,9}", 300),
    ("zip", r"\b(?:un)?zip\s", r"(?<=\s)-P", r"\s{0,9}", 200),
    ("ldap", r"\bldap\w{1,9}\s", r"(?<=\s)-w", r"\s{0,9}", 200),
    ("login", r"\blogin\s", r"(?<=\s)-p", r"\s{0,9}", 200),
    ("-p", r"\b(?:mysql|mariadb)[\w-]{0,12}\s", r"(?<=\s)-p", "", 200),
    ("redis-cli", r"\bredis-cli\s", r"(?<=\s)-a", r"\s{0,9}", 200),
    ("curl", r"\bcurl\s", r"(?<=\s)(?:-u|--user)", r"\s{0,9}", 300),
)
# What is in every text in which `hide` may find something: in capitals, and as it stands.
_BASES = tuple(
    word
    for word in (*WORDS, *ENDS)
    if not any(other in word and other != word for other in (*WORDS, *ENDS))
)
_MARKS = (*TOKENS, *(mark for mark, _ in SHAPES if mark != mark.lower()), "PRIVATE KEY")
_LOWER_MARKS = (
    *(mark for mark, _ in SHAPES if mark == mark.lower()),
    *(mark for mark, *_ in PROGRAMS),
    *(mark for mark in SHORT if mark != "unzip"),
    *("://", "login", "-stdin", "sudo"),
)
_PAT = r"(?i:pat)(?![A-Za-z0-9])|(?i:pa)t(?=[A-Z])"  # a word, and not the begin of "path"
_DIGITS = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_IS_HEX = b"0" * 40


@functools.lru_cache(512)  # a list of 300,000 lists asks as often for one name
def is_secret(name: str) -> bool:
    """Whether a name is secret: WANDB_API_KEY, MY_PAT, accessKeyId; not TOKENIZERS_PARALLELISM."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(word in WORDS or word.endswith(ENDS) for word in re.split(r"[^A-Z0-9]+", upper))


def may_hold(text: str) -> bool:
    """Whether `hide` might find something: tens of times as fast, and most lines hold nothing."""
    for mark in _MARKS:
        if mark in text:
            return True
    lower = text.lower()
    for mark in _LOWER_MARKS:
        if mark in lower:
            return True
    return may_name(text) or may_have_hex(text)


def may_name(text: str, words: tuple[str, ...] = _BASES) -> bool:
    """Whether names of secrets may be in a text."""
    upper = text.upper()
    for word in words:
        if word in upper and (word != "PAT" or not text.isascii() or re.search(_PAT, text)):
            return True
    return False


def may_have_hex(text: str) -> bool:
    """Whether 40 hexadecimal digits are in a text."""
    if len(text) < 40:
        return False
    return _IS_HEX in text.encode("ascii", "replace").translate(_DIGITS)
