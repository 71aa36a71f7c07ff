"""Mask secrets in command lines, variables and messages; rather too much than too little."""

from __future__ import annotations

import os
import re

from clusterctl.payload.secrets.marks import (
    HIDDEN,
    PROGRAMS,
    SHAPES,
    SHORT,
    TOKENS,
    VALUE,
    is_secret,
    may_have_hex,
    may_hold,
    may_name,
)

# Lengths have bounds, so that no text takes quadratic time.
_COUNT = r"\d{1,12}(?:\.\d{1,6})?(?:[eE][+-]?\d{1,3})?[KMBTkmbt]?"
# What a value is in: b'…', SecretStr("…"); what belongs to it behind its first word or quotes.
_IN = r"(?:[bBrRuUfF]{1,2}|[A-Za-z_][\w.]{0,60}\(\s{0,3})(?=[\"'])"
_MORE = r"(?:[,;&)}\]]{1,3}[\w!@#$%^*+~.?/-]{1,200}(?![\w!@#$%^*+~.?/-]|\s{0,3}[=:(\[\"']))+"
_QUOTED_MORE = (
    r"(?:\s{0,9}(?:\"(?:\\.|[^\"\\]){0,2000}\"|'(?:\\.|[^'\\]){0,2000}')(?!\s{0,9}[:=])"
    r"|[\w@#$%^*!+/-]{1,200})+"
)
_NO_WORDS = frozenset("\"'{}[]()=,;:|<>")  # not in a password that is said in words
_SPOKEN = ("password", "passphrase", "passwd", "passcode")  # said in words, to the line's end
_BLOCK = r"[>|][+-]?\d?[+-]?[ \t]{0,9}(?=\r?\n|\r?$)"  # of YAML: the lines below are the value
_BLOCK_LINES = 50
# A name is a word, without what is no letter before it; each word is looked at from its begin only.
_LONGEST, _FIRST = 81, frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_NAMED = r"(?<![\w.-])([\w.-]+)\\?[\"']?\]?\s{0,9}(?::=|=>|[:=])\s{0,9}"
_OPTION = r"(?<![\w-])(--?[A-Za-z][\w.-]{0,80})\s{1,9}"
# The end of a secret's name and a value without a sign between: `setenv WANDB_API_KEY 0a1b…`, rows
# of a table. The value must look like one: other words follow such names in messages.
_PAIR = (
    r"(?i)(?P<kept>(?P<end>keys?|tokens?|secrets?|passwords?|passwd|passphrase|credentials?"
    r"|cookies?|_pat|_pwd|_pass|_auth|_jwt)[\"'`]{0,2}"
    r"(?:\s{1,40}|\s{0,9}(?:\||->)\s{0,9}|\s{1,9}(?:is|was|to|set\sto|is\sset\sto)\s{1,9})"
    r"[\"'`]{0,2})(?P<value>[^\s\"'`,;:|()<>]{8,})"
)
_PAIR_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,80}\Z"
_VARIABLES = ("_PWD", "_PASSWORD", "_PASSWD", "_PASS", "_PASSPHRASE", "_PASSCODE")
_PAIR_ENDS = "key token secret passw passphrase credential cookie _p _auth _jwt".split()
_URL_USER = r"(?<=://)(?:[^\s/\"']+(?=@)|[^\s/\"'@:]{0,100}:(?!\d{1,5}/)[^\s\"'@:]{1,100}(?=@))"
_SHAPE = r"\b(?:%s)[\w-]{12,}(?:\.[\w-]+){0,3}" % "|".join(map(re.escape, TOKENS))
# Programs that read a password from their input; in a part of a command line without pipes.
_ASKING = r"-stdin\b|--with-token\b|\b(?:ch)?passwd\b"
_ASKING_WITH = (  # (program, what of it asks)
    (r"\bsudo\s", r"-\w{0,4}S\b"),
    (
        (
            r"\b(?:docker|podman|nerdctl|helm|skopeo|oras|hf|huggingface-cli|wandb|ngc|az|gh|npm"
            r"|vault)\s"
        ),
        r"(?<=\s)login\b",
    ),
)
_SAYING = r"\b(?:echo|printf)\s{1,9}(?:-[neE]{1,3}\s{1,9}|[\"']?%s(?:\\n)?[\"']?\s{1,9})?"
_VARIABLE = r"[\"']?\$"
_NEAR = 230  # characters of a part that are looked at
_LOGIN_OF = r"\b(?:docker|podman|helm)\s"
# A key of W&B has the form of a commit: one that is named as such, or part of a path, stays.
_HEX = r"(?<![\w/+-])[0-9a-f]{40}(?![\w/])"
_COMMIT = (
    r"(?i)(?:commit|revision|rev|sha1?|head|hash|checkout|tree|parent|git)"
    r"[\w\"']{0,12}[\s:=(\"']{1,4}$"
)
_KEY_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----"
_KEY_CHARS, _KEY_LINES = 16_000, 200  # of a key at most
_KEY_LINE = r"(?:[^\n]{0,200}[\s\"'])?[A-Za-z0-9+/]{%d,}={0,2}[\"',]{0,2}\r?\n"
_HEADER = r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,9}:\s{0,9})(?![\s\"'])[^\"'\r\n]+"
_HEADERS = ("AUTHORIZATION", "COOKIE")
_LOGIN = r"\b(wandb\s{1,9}login\b)(.+)"
_MESSAGES = ("key", "keys", "token", "tokens")  # before a colon: words of many messages


def hide(text: str) -> str:
    """A text without its secrets: users of URLs, tokens, values after names of secrets."""
    # Most words match nothing, and compiling an expression takes 0.5 ms on the node.
    if not may_hold(text):
        return text
    if "://" in text:
        text = re.sub(_URL_USER, HIDDEN, text)
    if "PRIVATE KEY" in text:
        text = hide_keys(text)
    if any(mark in text for mark in TOKENS):
        text = re.sub(_SHAPE, HIDDEN, text)
    lower = text.lower()
    for mark, shape in SHAPES:
        if mark in text or mark in lower:
            text = re.sub(shape, _keep_name, text)
    text = _hide_input(text)
    for mark, program, option, gap, most in PROGRAMS:
        if mark in lower:
            text = _hide_options(text, program, option, gap, most)
    if may_have_hex(text):
        text = re.sub(_HEX, _keep_commit, text)
    if may_name(text):
        if ":" in text and may_name(text, _HEADERS):
            text = re.sub(_HEADER, r"\1\2" + HIDDEN, text)
        if ":" in text or "=" in text:
            text = _hide_values(text, _NAMED)
        if "-" in text and len(text.split()) > 1:
            text = _hide_values(text, _OPTION)
        if any(one in lower for one in _PAIR_ENDS):
            text = re.sub(_PAIR, _keep_words, text)
    if "login" in text:
        text = re.sub(_LOGIN, r"\1 " + HIDDEN, text)
    return text


def hide_in(value, mask=hide):  # type: (Any, Any) -> Any
    """What JSON holds of a value, with `mask` on each text in its mappings and lists."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: hide_in(item, mask) for key, item in value.items()}
    return [hide_in(item, mask) for item in value] if isinstance(value, (list, tuple)) else value


class LineMask:
    """`hide` for a text that comes in lines, among which a private key may be."""

    def __init__(self) -> None:
        self._left = 0  # lines that may still be the key's
        self._below, self._indent = 0, 0  # lines that may still be of a block of YAML

    def hide(self, line: str) -> str:
        if self._left and "-----END " not in line:
            self._left -= 1
            return HIDDEN
        self._left = 0
        if self._below:
            indent = len(line) - len(line.lstrip(" \t"))
            self._below = self._below - 1 if indent > self._indent or not line.strip() else 0
            if self._below and line.strip():
                return line[:indent] + HIDDEN
        if line.rstrip().endswith((">", "|", ">-", "|-")):
            begins = re.match(r"([ \t-]{0,200})[\"']?([\w.-]{1,81})[\"']?: {1,9}[>|]-?\s*$", line)
            if begins is not None and is_secret(begins.group(2)):
                self._below, self._indent = _BLOCK_LINES, len(begins.group(1))
        if "PRIVATE KEY" in line and "-----END " not in line and re.search(_KEY_BEGIN, line):
            self._left = _KEY_LINES
        return hide(line)


def hide_keys(text: str) -> str:
    """A text without private keys, as many lines long; also of one whose begin is cut off."""
    kept, end = [], 0
    cut = text.find("-----END ")
    if cut >= 0 and not re.search(_KEY_BEGIN, text[:cut]):
        begin = cut
        for line in reversed(text[:cut].splitlines(keepends=True)):
            least = 1 if begin == cut else 40  # the last line is as short as it may be
            if not re.fullmatch(_KEY_LINE % least, line):
                break
            begin -= len(line)
        kept.append(text[:begin] + _hide_lines(text[begin:cut]))
        end = cut
    for found in re.finditer(_KEY_BEGIN, text):
        if found.start() < end:
            continue
        kept.append(text[end : found.end()])
        end = text.find("-----END ", found.end(), found.end() + _KEY_CHARS)
        end = min(len(text), found.end() + _KEY_CHARS) if end < 0 else end
        kept.append(_hide_lines(text[found.end() : end]))
    return "".join(kept) + text[end:]


def _hide_lines(text: str) -> str:
    return re.sub(r"[^\n]+", HIDDEN, text)


def _hide_input(text: str) -> str:
    """Without what is piped into a program that asks for a password, or given by `<<<`.

    No part of a text is looked at twice, so that it takes linear time.
    """
    if "|" in text and ("echo" in text or "printf" in text):
        parts = re.split(r"([|\n])", text)
        for at in range(0, len(parts) - 2, 2):
            if parts[at] and parts[at + 1] == "|" and parts[at + 2]:
                parts[at] = _hide_said(parts[at], parts[at + 2][:_NEAR])
        text = "".join(parts)
    if "<<<" not in text:
        return text
    kept, end, seen = [], 0, 0
    may_ask = re.compile(r"-stdin|-with-token|passwd|sudo|login")
    value = re.compile(r"(?!%s)(?:%s)" % (_VARIABLE, VALUE))
    for found in re.finditer(r"<<<\s{0,9}", text):
        if found.start() < end:
            continue
        before = text[max(seen, found.start() - _NEAR) : found.start()]
        seen = found.end()
        if not may_ask.search(before) or not _asks(re.split(r"[\n|<]", before)[-1]):
            continue
        given = value.match(text, found.end())
        if given is not None:
            kept.append(text[end : found.end()] + HIDDEN)
            end = seen = given.end()
    return "".join(kept) + text[end:]


def _hide_said(part: str, reader: str) -> str:
    """What `echo` says to a reader that asks for it."""
    tail = part[-_NEAR:]
    for found in re.finditer(_SAYING, tail):
        said = tail[found.end() :]
        if said.strip() and not re.match(_VARIABLE, said):
            blank = said[len(said.rstrip()) :]
            return part[: len(part) - len(said)] + HIDDEN + blank if _asks(reader) else part
    return part


def _asks(part: str) -> bool:
    if re.search(_ASKING, part):
        return True
    for program, option in _ASKING_WITH:
        found = re.search(program, part)
        if found is not None and re.compile(option).search(part, found.end()):
            return True
    return False


def _hide_options(text: str, program: str, option: str, gap: str, most: int) -> str:
    """Without the value of an option that is at most so many characters behind its program."""
    kept, end, looked = [], 0, 0
    asked, value = re.compile(option), re.compile("%s(%s)" % (gap, VALUE))
    for found in re.finditer(program, text):
        if found.end() < end or (program == r"\blogin\s" and not _is_login(text, found.start())):
            continue
        begin = found.end()
        limit = text.find("\n", begin, begin + most)
        limit = min(len(text), begin + most) if limit < 0 else limit
        for one in asked.finditer(text, max(begin, looked), limit):
            given = value.match(text, one.end())
            if given is not None:
                kept.append(text[end : given.start(1)] + HIDDEN)
                end = given.end()
                break
        looked = max(looked, end, limit - 6)  # an option that ends behind the limit
    return "".join(kept) + text[end:]


def _is_login(text: str, at: int) -> bool:
    before = text[max(0, at - 90) : at].rpartition("\n")[2]
    return re.search(_LOGIN_OF, before) is not None


def _keep_name(found: re.Match[str]) -> str:
    return (found.groupdict().get("kept") or "") + HIDDEN


def _keep_words(found: re.Match[str]) -> str:
    """Of a name and what follows it without a sign: only the name, if the rest is a value."""
    name = re.search(_PAIR_NAME, found.string[max(0, found.start() - 80) : found.end("end")])
    if name is None or not _is_pair(name.group(), found.group("value")):
        return found.group()
    return found.group("kept") + HIDDEN


def _keep_commit(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 40) : found.start()]
    return found.group() if re.search(_COMMIT, before) else HIDDEN


def _hide_values(text: str, names: str) -> str:
    """Mask what follows names of secrets, quoted or up to the end of the word."""
    kept, end = [], 0
    for found in re.finditer(names, text):
        name = found.group(1)
        if names is _NAMED and (len(name) > _LONGEST or name[0] not in _FIRST):
            begun = re.search("[A-Za-z_].*", name[-_LONGEST:])
            name = begun.group() if begun else "_"
        if found.start() < end or not is_secret(name):
            continue
        is_word = name.lower() in _MESSAGES or name.endswith(("Error", "Exception"))
        within = re.compile(_IN).match(text, found.end())
        begin = found.end() if within is None else within.end()
        value = re.compile(VALUE).match(text, begin)
        if value is None:
            continue
        if is_word and ":" in found.group() and not _is_random(value.group()):
            continue
        if name.lower().endswith("tokens") and re.fullmatch(_COUNT, value.group()):
            continue  # max_tokens=512, num_tokens: 788088885
        kept.append(text[end:begin])
        if value.group()[0] in "{[":  # what it holds is secret, too
            kept.append(HIDDEN)
            end = _end_of_group(text, begin)
            continue
        quote = value.group()[0] if value.group()[0] in "\"'" else ""
        kept.append(quote + HIDDEN + quote)
        end = value.end()
        if names is _NAMED:
            end = _end_of_value(text, found, value, quote)
            kept.append("\n" * text.count("\n", value.end(), end))  # as many lines as before
    return "".join(kept) + text[end:]


def _end_of_value(text: str, name: re.Match[str], value: re.Match[str], quote: str) -> int:
    """Where all that belongs to a value ends, of which the first word or quotes are known."""
    end, before = value.end(), text[name.start() - 1 : name.start()]
    is_said = ":" in name.group()
    if quote:
        more = re.compile(_QUOTED_MORE).match(text, end)
        return end if more is None else more.end()
    if before in ("'", '"') and is_said and before not in name.group():  # "X-Api-Key: a b"
        inside, closing, _ = text[end : end + 300].partition("\n")[0].partition(before)
        if closing:
            return end + len(inside)
    if is_said and value.group()[0] in ">|" and re.fullmatch(_BLOCK, text[value.start() : end]):
        return _end_of_block(text, name.start(), end)
    more = re.compile(_MORE).match(text, end)
    end = end if more is None else more.end()
    if is_said and name.group(1).lower().endswith(_SPOKEN):
        rest, line_end, _ = text[end : end + 400].partition("\n")
        is_whole = bool(line_end) or end + 400 >= len(text)
        if is_whole and rest[:1] in (" ", "\t") and _NO_WORDS.isdisjoint(rest):
            end += len(rest.rstrip())
    return end


def _end_of_block(text: str, name: int, end: int) -> int:
    """Behind the lines below that are further in than the line of the name."""
    line = text.rfind("\n", max(0, name - 200), name) + 1
    own = len(re.compile(r"[ \t-]{0,200}").match(text, line).group())  # type: ignore[union-attr]
    below = re.compile(r"\r?\n(?:[ \t]{%d,200}[^\n]{0,4000}|[ \t]{0,9}(?=\r?\n))" % (own + 1))
    for _ in range(_BLOCK_LINES):
        found = below.match(text, end)
        if found is None:
            break
        end = found.end()
    return end


def _end_of_group(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at `begin`, at most 2,000 characters on."""
    depth = 0
    for found in re.finditer(r"[{}\[\]]", text[begin : begin + 2000]):
        depth += 1 if found.group() in "{[" else -1
        if depth == 0:
            return begin + found.end()
    return min(len(text), begin + 2000)


def _is_pair(name: str, value: str) -> bool:
    """Whether two words are a secret's name, as variables and options have it, and its value."""
    if name.isupper() and name.endswith(_VARIABLES) and re.search(r"\d", value):
        return bool(re.search(r"[A-Za-z]", value))
    is_compound = re.search(r"[_-]|[a-z][A-Z]", name) or name.isupper()
    return bool(is_compound) and is_secret(name) and _is_random(value)


def _is_random(value: str) -> bool:
    """Whether a word looks like a key and not like the name of one: `token: X` is in messages."""
    word = value.strip("\"'")
    kinds = [bool(re.search(kind, word)) for kind in ("[a-z]", "[A-Z]", "[0-9]")]
    if re.fullmatch(r"[\w+=-]{8,}", word):
        return all(kinds) or (len(word) >= 16 and kinds[2] and any(kinds[:2]))
    return all(kinds) and re.fullmatch(r"[\w+=!@#$%^&*-][\w+=./!@#$%^&*-]{19,}", word) is not None


def hide_words(words: list[str]) -> list[str]:
    """The words of a command line without its secrets, also without what follows `--api-key`."""
    shown = []  # type: list[str]
    program, hide_next, hide_rest = "", False, False
    for index, word in enumerate(words):
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") and len(word) > 1
        is_value = bool(index) and not is_option and _is_pair(words[index - 1], word)
        if hide_next or is_value or (hide_rest and not is_option):
            shown.append(HIDDEN if word else word)
        elif equals and is_secret(name) and " " not in name:
            shown.append(name + "=" + HIDDEN)
        else:
            shown.append(hide(word))
        if os.path.basename(word) in SHORT:
            program = os.path.basename(word)
        hide_next = is_option and not equals and (is_secret(word) or word in SHORT.get(program, ()))
        is_login = word == "login" and index > 0 and words[index - 1].endswith("wandb")
        hide_rest = hide_rest or is_login
    return shown
