"""200 names that are none: commands, groups, options, paths, node sets, escapes, endless ranges."""

from __future__ import annotations

from pathlib import Path

PLAIN = [
    "", " ", "-", "--", "-w", "--help", "--json", "-oProxyCommand=x", "-e", ".", "..", "../../x", "/etc/passwd", "./x",
    "~", "~root", "a/b", "a\\b", "n1,n2", "n1 n2", "n[1-3]", "n[1-10000000]", "n[1-9]" * 9, "n[", "n]", "[", "]", "[]",
    "n[1-", "n[a-c]", "n[1-3]!n2", "n1!n2", "n1&n2", "n1^n2", "@", "@@", "@*", "@x", "@local:x", "@x:*", "@@local",
    "@x[1-3]", "a@b", "@a@b", "*", "n*", "n?", "n%s", "%", "%h", "%(x)s", "{}", "{0}", "{x!r}", "n{1..3}", "${HOME}",
    "$HOME", "$$", "n1:8", "u@n1:22", "ssh://n1", "http://n1/", "[all:vars]", "n1=8", "#", "n1#", "n1\n", "\nn1",
    "n1\tn2", "n1\0", "\0", "\x1b]0;x\x07", "\x1b[2J", "\x9b31m", "\u202en1", "n1\u200b", "\ud800", "\ufeffn1", "bü", "ｎ１",
    "n２", "n\u0661", "<script>", "<b>n1</b>", "&lt;", "[red]x[/]", "[link=x]", "'", '"', "`", "n1'", 'n1"', "'n1'",
    "a;b", "a|b", "a&b", "a>b", "a<b", "a(b)", "!x", "x!", "None", "null", "x" * 300, "9" * 5000, "n" + "9" * 5000,
    "n1," * 5000, "[" * 5000, "@" * 5000, "a1" * 3000, "::1%x;y", "fe80::1%eth0", "1::2::3", "n1+", "n1=", "n1,", "(x2)",
]  # fmt: skip
AROUND = [
    "@x';{};echo'", "@x:y';{};echo'", '@x";{};echo"', "@`{}`", "@$({})", "@x\n{}\n", "@x|{}", "@x&{}&", "@x>{}",
    "n1';{};'", 'n1";{};"', "n1;{}", "n1|{}", "n1&{}", "n1\n{}", "`{}`", "$({})", "n[1-3]`{}`", "n[1-3],@x';{};'",
    "n1!@x';{};'", "n1&@x';{};'", "[1-2]@x';{};'", "a@x';{};'", "@@x';{};'", "@x[1-2]';{};'", "@*';{};'", "*';{};'",
    "-oProxyCommand={}", "--exec={}", "| {}", "!{}", "$IFS{}", "\"$({})\"", "\\$({})", "%({})", "\x1b]52;c;{}\x07",
]  # fmt: skip
COMMANDS = ["touch {}", "touch${{IFS}}{}", "id>{}"]


def hostile_names(canary: Path) -> list[str]:
    """Those of `AROUND` make the file when a shell reads them. `None` is a word, not a value."""
    made = [around.format(one.format(canary)) for around in AROUND for one in COMMANDS]
    return [name for name in (*PLAIN, *made) if name not in ("None", "null")]
