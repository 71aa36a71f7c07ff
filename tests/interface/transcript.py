"""What a recording looks like, as text."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.interface import normal
from tests.interface.document import outline
from tests.interface.shell import Done

LONG = 200  # characters of a line of the diff
GOLDEN = Path(__file__).parent / "golden"


def transcript(about: str, done: list[Done], folder: Path) -> str:
    """All lines of a case with what they gave."""
    parts = [f"# {about}", *(_one(done_one, folder) for done_one in done)]
    return "\n\n".join(parts) + "\n"


def _one(done: Done, folder: Path) -> str:
    lines = [f"$ {done.line}"]
    is_help = done.code == 0 and bool(re.search(r"(^|\s)(-h|--help)\b", done.line))
    say = normal.plain_help if is_help else normal.plain
    for name, text in (("out", done.out), ("err", done.err)):
        if not text:
            continue
        found = outline(
            text, lambda value: normal.plain(value, folder), done.volatile, done.data_keys
        )
        if found is not None:
            lines += [f"[{name}: JSON]", *found]
        else:
            lines += [f"[{name}]", *_shorter(say(text, folder)).splitlines()]
    lines.append(f"[exit {done.code}]")
    return "\n".join(lines)


def _shorter(text: str) -> str:
    """The usage in front of an argparse error stands in the help's own recording."""
    return re.sub(
        r"(?ms)^usage: (python -m [\w.]+(?: [\w-]+)?) .*?\n(?=python -m [\w. -]+: error:)",
        r"usage: \1 …\n",
        text,
    )


def path_of(name: str) -> Path:
    return GOLDEN / f"{name}.txt"


def difference(name: str, fresh: str) -> str:
    """Unified diff of what is recorded and what came now; empty when they are equal."""
    path = path_of(name)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before == fresh:
        return ""
    diff = difflib.unified_diff(
        before.splitlines(), fresh.splitlines(), f"golden/{path.name}", "now", lineterm="", n=1
    )
    return "\n".join(_short(list(diff)))


def _short(diff: list[str]) -> list[str]:
    """Of a long line only the place where it differs from the line that it takes the place of."""
    shown = []
    for line in diff:
        others = [one[1:] for one in diff if one[:1] == {"-": "+", "+": "-"}.get(line[:1])]
        common = max((_common(line[1:], one) for one in others), default=0)
        begin = max(0, common - LONG // 2)
        if len(line) > LONG:
            text = line[1 + begin : 1 + begin + LONG]
            line = f"{line[0]}{'…' * (begin > 0)}{text}{'…' * (begin + LONG < len(line) - 1)}"
        shown.append(line)
    return shown


def _common(one: str, other: str) -> int:
    """How many characters at the beginning are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
