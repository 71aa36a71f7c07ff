"""Mask secrets in command lines, variables and messages; rather too much than too little."""

from __future__ import annotations

import os
import re

HIDDEN = "***"

# A word of a name that is one of these, or ends like one of those: WANDB_API_KEY, apiKey, MY_PAT.
WORDS = "PWD PASS PAT AUTH AUTHORIZATION JWT BEARER SIGNATURE KEYS TOKENS COOKIES".split()
_ENDS = (
    "KEY TOKEN SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE CREDENTIAL CREDENTIALS COOKIE"
)
ENDS = tuple(_ENDS.split())
# Short options that mean a password to one program and something else to others.
SHORT = {"sshpass": "-p", "curl": "-u", "redis-cli": "-a", "docker": "-p", "podman": "-p"}

# Lengths have bounds, so that no text takes quadratic time.
_VALUE = r"""\"(?:\\.|[^\"\\]){0,2000}\"|'(?:\\.|[^'\\]){0,2000}'|[^\s,;&)}\]]+"""
_NAMED = r"([A-Za-z_][\w.-]{0,80})\\?[\"']?\s{0,9}(?::=|[:=])\s{0,9}"
_OPTION = r"(?<![\w-])(--?[A-Za-z][\w.-]{0,80})\s{1,9}"
_URL_USER = r"(?<=://)[^\s/\"']+(?=@)"
# Prefixes of tokens, also for a quick check whether a text may contain one.
_TOKENS = """hf_ ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- sk- nvapi- xox wandb_v1_ AKIA AIza
eyJ""".split()
_SHAPE = (
    r"\b(?:hf_|gh[opsur]_|github_pat_|glpat-|sk-|nvapi-|xox[abeoprs]-|wandb_v1_|AKIA|AIza)"
    r"[\w-]{12,}|\beyJ[\w-]{8,2000}\.[\w-]{1,2000}\.[\w-]+"  # JSON web token
)
_HEADER = r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,9}:\s{0,9})(?![\s\"'])[^\"'\r\n]+"
_LOGIN = r"\b(wandb\s{1,9}login\b)(.+)"
_MESSAGES = ("key", "keys", "token", "tokens")  # before a colon: words of many messages


def is_secret(name: str) -> bool:
    """Whether a name is secret: WANDB_API_KEY, MY_PAT, accessKeyId; not TOKENIZERS_PARALLELISM."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(word in WORDS or word.endswith(ENDS) for word in re.split(r"[^A-Z0-9]+", upper))


def hide(text: str) -> str:
    """A text without its secrets: users of URLs, tokens, values after names of secrets."""
    # Most words match nothing, and compiling an expression takes 0.5 ms on the node.
    if "://" in text:
        text = re.sub(_URL_USER, HIDDEN, text)
    if any(mark in text for mark in _TOKENS):
        text = re.sub(_SHAPE, HIDDEN, text)
    if ":" in text:
        text = re.sub(_HEADER, r"\1\2" + HIDDEN, text)
    if ":" in text or "=" in text:
        text = _hide_values(text, _NAMED)
    if "-" in text and len(text.split()) > 1:
        text = _hide_values(text, _OPTION)
    if "login" in text:
        text = re.sub(_LOGIN, r"\1 " + HIDDEN, text)
    return text


def _hide_values(text: str, names: str) -> str:
    """Mask what follows names of secrets, quoted or up to the end of the word."""
    kept, end = [], 0
    for found in re.finditer(names, text):
        name = found.group(1)
        is_word = name.lower() in _MESSAGES or name.endswith(("Error", "Exception"))
        if found.start() < end or (is_word and ":" in found.group()) or not is_secret(name):
            continue
        value = re.compile(_VALUE).match(text, found.end())
        if value is None:
            continue
        quote = value.group()[0] if value.group()[0] in "\"'" else ""
        kept.append(text[end : found.end()] + quote + HIDDEN + quote)
        end = value.end()
    return "".join(kept) + text[end:]


def hide_words(words: list[str]) -> list[str]:
    """The words of a command line without its secrets, also without what follows `--api-key`."""
    shown = []  # type: list[str]
    program, hide_next, hide_rest = "", False, False
    for index, word in enumerate(words):
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") and len(word) > 1
        if hide_next or (hide_rest and not is_option):
            shown.append(HIDDEN if word else word)
        elif equals and is_secret(name) and " " not in name:
            shown.append(name + "=" + HIDDEN)
        else:
            shown.append(hide(word))
        if os.path.basename(word) in SHORT:
            program = os.path.basename(word)
        hide_next = is_option and not equals and (is_secret(word) or word == SHORT.get(program))
        is_login = word == "login" and index > 0 and words[index - 1].endswith("wandb")
        hide_rest = hide_rest or is_login
    return shown
