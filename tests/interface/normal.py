"""What differs from run to run and from machine to machine, replaced by words that do not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

# In this order; the first that fits takes its text.
RULES = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "DATE TIME"),
        (r"\b\d{8}-\d{6}-[0-9a-f]{6}\b", "RUN-ID"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"\b(?:\d+ h )?(?:\d+ min )?\d+ min(?: \d+ s)?\b|\b\d+ h \d+ min\b", "# min"),
        (r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:s|ms|us|µs)\b(?!/)", "# s"),
        (r"(?<![\w.])[-+]\d+\.\d+(?: s| ms)? to # s", "# s to # s"),
        (r"\b[\d,]+(?:\.\d+)? (clips|rows|rank-steps)/s\b", r"# \1/s"),
        (r"\bpid \d+", "pid #"),
        (r"((?:\bport|--master_port)) 29[5-9]\d\d\b", r"\1 #"),
        (r"(?<=:)29[5-9]\d\d\b", "#"),
        (r"(?m)^(clusterctl_\w*(?:age|uptime)_seconds\S*) \S+$", r"\1 #"),
        (r"(?m)^(clusterctl_\w*(?:joules|gpu_seconds)_total\S*) \S+$", r"\1 #"),
        (r'\bversion="[\d.]+"', 'version="#"'),
        (r"[▁▂▃▄▅▆▇█]+", "▁"),
        (r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{12})\b", "HASH"),
        (r"\b0x[0-9a-f]{6,}\b", "0x#"),
    )
)  # fmt: skip


def places(folder: Path) -> tuple[tuple[str, str], ...]:
    """Paths of this machine and the words for them, longest first."""
    found = {
        str(folder): ".",
        str(folder.parent): "HOME",
        str(REPO): "REPO",
        sys.executable: "PYTHON",
        str(Path(sys.executable).resolve()): "PYTHON",
        sys.prefix: "VENV",
    }
    return tuple(sorted(found.items(), key=lambda item: -len(item[0])))


def plain(text: str, folder: Path) -> str:
    """Text without what is another each time; lines keep their order and number."""
    for path, word in places(folder):
        text = text.replace(path, word)
    for pattern, word in RULES:
        text = pattern.sub(word, text)
    return _quotes(_spaces(text))


def plain_help(text: str, folder: Path) -> str:
    """Help has nothing volatile but paths: its numbers are defaults. One option is one line."""
    for path, word in places(folder):
        text = text.replace(path, word)
    text = re.sub(r"\n {14,}(?=\S)", "  ", text)  # the text of an option with a long name
    # Before 3.13 an option with a value says it twice: -o FILE, --out FILE.
    text = re.sub(r"(?m)^(\s+)(-\w) (\S+), (--[\w-]+) \3\b", r"\1\2, \4 \3", text)
    return _spaces(_usage(text))


def _usage(text: str) -> str:
    """argparse's first line without the options that are listed below it."""
    options = r" \[-(?:[^\[\]]|\[[^\[\]]*\])*\]"
    return re.sub(
        r"\Ausage: .*", lambda found: re.sub(f"(?:{options})+", " [OPTIONS]", found[0]), text
    )


def _spaces(text: str) -> str:
    """Widths of columns come from their longest cell; the indent of a line says what it belongs to."""
    lines = []
    for line in text.replace("\r", "\n").splitlines():
        body = line.lstrip(" ")
        indent = min(len(line) - len(body), 4)
        lines.append(" " * indent + re.sub(r"[ \t]{2,}", "  ", body.rstrip()))
    return "\n".join(lines)


def _quotes(text: str) -> str:
    """Pythons differ in whether argparse quotes the choices that there are."""
    return re.sub(r"\(choose from [^)]*\)", lambda found: found[0].replace("'", ""), text)
