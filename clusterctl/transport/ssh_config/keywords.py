"""Every keyword of ssh_config: how its value is read, and which are ignored or refused.

A keyword that could make ssh stricter than this backend is refused where it is set; an ignored one
is about what this backend does not have (forwarding, terminals, passwords) or limits by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from clusterctl.transport.ssh_config import values

_DOMAIN = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE | re.ASCII)
Reader = Callable[[list[str], str], object]

# Lists grow with every line; of everything else the first value counts.
GROWING = ("identityfile", "certificatefile")
ALIASES = {
    "identityfile2": "identityfile",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "rsaminsize": "requiredrsasize",  # in crypto policies of RHEL 9, before OpenSSH had it
    "dsaauthentication": "pubkeyauthentication",
}


def _one(read: Callable[[str], object]) -> Reader:
    """A keyword with one value, as `read` returns it."""

    def reader(words: list[str], rest: str) -> object:
        if len(words) != 1 or not words[0]:
            found = f"expected one value, got {len(words)}"
            raise values.BadValue(f"{found}; quote a value that contains spaces")
        return read(words[0])

    return reader


def _choice(*choices: str) -> Reader:
    return _one(lambda text: values.one_of(text, *choices))


def _words(words: list[str], rest: str) -> list[str] | None:
    if not words:
        return None  # only a comment, which ssh reads as no value
    if not all(words):
        raise values.BadValue("a value is empty")
    if len(words) > 1 and any(word.lower() == "none" for word in words):
        raise values.BadValue("none must be the only value")
    return words


def _domains(words: list[str], rest: str) -> list[str] | None:
    for word in words:
        if not _DOMAIN.fullmatch(word) or ".." in word:
            raise values.BadValue(f"{word!r} is not a domain")
    return _words(words, rest)


def _rest(words: list[str], rest: str) -> str:
    """A command: its quotes and # are for the shell."""
    return rest.lstrip(" \t=")


def _user(user: str) -> str:
    if "%" in user or "${" in user:
        raise values.BadValue(f"{user!r}: only some versions of ssh expand this; write the name")
    return user


def _time(text: str) -> int | None:
    return None if text == "none" else values.seconds(text)  # none leaves the value to a later line


_flag, _word = _choice("yes", "no"), _one(str)
ALGORITHMS = ("ciphers", "hostkeyalgorithms", "kexalgorithms", "macs", "pubkeyacceptedalgorithms")
_NAMES = ("certificatefile", "hostkeyalias", "hostname", "identityagent", "identityfile")
_LISTS = ("canonicalizepermittedcnames", "globalknownhostsfile", "userknownhostsfile")

READERS: dict[str, Reader] = {
    **dict.fromkeys((*ALGORITHMS, *_NAMES, "ignoreunknown"), _word),
    **dict.fromkeys(_LISTS, _words),
    **dict.fromkeys(("canonicalizefallbacklocal", "identitiesonly"), _flag),
    **dict.fromkeys(("canonicalizemaxdots", "requiredrsasize"), _one(values.whole_number)),
    "addressfamily": _choice("any", "inet", "inet6"),
    "canonicaldomains": _domains,
    "canonicalizehostname": _choice("yes", "no", "always"),
    "port": _one(values.port_number),
    "proxycommand": _rest,
    "proxyjump": lambda _, rest: values.parse_jump(rest.partition("#")[0].strip(" \t")),
    "serveraliveinterval": _one(_time),
    "stricthostkeychecking": _choice("yes", "no", "ask", "off", "accept-new"),
    "user": _one(_user),
    # Refused below, where their value asks for what this backend does not do.
    **dict.fromkeys(
        ("bindaddress", "bindinterface", "preferredauthentications", "revokedhostkeys"), _word
    ),
    **dict.fromkeys(("checkhostip", "proxyusefdpass"), _flag),
    **dict.fromkeys(("knownhostscommand", "refuseconnection"), _rest),
    "pubkeyauthentication": _choice("yes", "no", "unbound", "host-bound"),
}

# Values that change nothing here. Any other value is refused.
HARMLESS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("bindaddress", "bindinterface", "refuseconnection"), lambda value: False),
    **dict.fromkeys(("checkhostip", "proxyusefdpass"), lambda value: value == "no"),
    **dict.fromkeys(
        ("knownhostscommand", "revokedhostkeys"), lambda value: value.lower() == "none"
    ),
    "preferredauthentications": lambda value: "publickey" in value.split(","),
    "pubkeyauthentication": lambda value: value != "no",
}

IGNORED = frozenset(
    """addkeystoagent afstokenpassing batchmode casignaturealgorithms
    challengeresponseauthentication channeltimeout cipher clearallforwardings compression
    compressionlevel connectionattempts connecttimeout controlmaster controlpath controlpersist
    dynamicforward enableescapecommandline enablesshkeysign escapechar exitonforwardfailure
    fallbacktorsh fingerprinthash forkafterauthentication forwardagent forwardx11
    forwardx11timeout forwardx11trusted gatewayports globalknownhostsfile2 gssapiauthentication
    gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapikeyexchange
    gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hashknownhosts
    hostbasedacceptedalgorithms hostbasedauthentication hostbasedkeytypes ipqos
    kbdinteractiveauthentication kbdinteractivedevices keepalive kerberosauthentication
    kerberostgtpassing localcommand localforward loglevel logverbose
    nohostauthenticationforlocalhost numberofpasswordprompts obscurekeystroketiming
    passwordauthentication permitlocalcommand permitremoteopen pkcs11provider protocol
    rekeylimit remotecommand remoteforward requesttty rhostsauthentication
    rhostsrsaauthentication rsaauthentication securitykeyprovider sendenv serveralivecountmax
    sessiontype setenv skeyauthentication smartcarddevice stdinnull streamlocalbindmask
    streamlocalbindunlink syslogfacility tag tcpkeepalive tisauthentication tunnel tunneldevice
    updatehostkeys useprivilegedport useroaming userknownhostsfile2 usersh verifyhostkeydns
    versionaddendum visualhostkey warnweakcrypto xauthlocation
    """.split()  # noqa: SIM905 - shorter than a list
)
