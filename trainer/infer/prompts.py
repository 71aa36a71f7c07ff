"""Prompts as people write them: one a line, with conditions behind, scores, and parts per loop.

a cat walks over a roof
a cat jumps {"reference_path": "cat.png", "mask_strategy": "0"}
|0| a ship leaves the harbour |2| a ship at sea, night
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.runlog.json_file import parse
from trainer.runlog.output import LOG
from trainer.runlog.run_files import prompt_lines

SETTINGS = ("reference_path", "mask_strategy")  # of the JSON behind a prompt
_PART = re.compile(r"\|\s*(\d+)\s*\|")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line: its place in the whole list, its text, and the frames it is given."""

    index: int
    text: str  # as written, without the JSON behind it
    parts: tuple[tuple[int, str], ...]  # (first loop, text), loops rising from 0
    reference_path: str = ""
    mask_strategy: str = ""

    @property
    def where(self) -> str:
        return f"prompt {self.index}"

    @property
    def references(self) -> tuple[str, ...]:
        """The files of its reference path: separated by ";", blanks around them dropped."""
        return tuple(path.strip() for path in self.reference_path.split(";") if path.strip())

    def at_loop(self, loop: int) -> str:
        """The text of a loop: that of the last part that has started."""
        return [text for first, text in self.parts if first <= loop][-1]

    def map(self, change: Callable[[str], str]) -> Prompt:
        return replace(self, parts=tuple((first, change(text)) for first, text in self.parts))


@dataclass(frozen=True, slots=True)
class Scores:
    """What upstream appends to a prompt that does not have it yet."""

    aes: float | None = None
    flow: float | None = None
    camera_motion: str | None = None

    def append(self, text: str) -> str:
        """`text` with the missing scores behind it, worded as in the training captions."""
        scores = (
            ("aesthetic score:", self.aes, "aesthetic score: {:.1f}."),
            ("motion score:", self.flow, "motion score: {:.1f}."),
            ("camera motion:", self.camera_motion, "camera motion: {}."),
        )
        for phrase, value, form in scores:
            if value is not None and phrase not in text:
                text = f"{text} {form.format(value)}"
        return text


def read_prompts(path: Path) -> tuple[str, ...]:
    """One prompt a line, blank lines left out. Raises ConfigError when there is none."""
    try:
        lines = prompt_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the prompt file {path} cannot be read: {why}") from None
    prompts = tuple(filter(None, lines))
    if not prompts:
        raise ConfigError(f"the prompt file {path} has no prompts")
    if len(prompts) < len(lines):
        LOG.info(f"blank lines of {path} left out: {len(lines) - len(prompts)}")
    return prompts


def parse_prompts(
    lines: Sequence[str], references: Sequence[str] = (), strategies: Sequence[str] = ()
) -> tuple[Prompt, ...]:
    """Every line as a Prompt; `references` and `strategies` are for all (one) or one a prompt. The
    JSON behind a prompt wins. Raises ConfigError naming the prompt."""
    for name, values in (("--reference-path", references), ("--mask-strategy", strategies)):
        if len(values) not in (0, 1, len(lines)):
            found = f"{len(values)} {name} for {len(lines)} prompts"
            raise ConfigError(f"{found}: give one for all, or one a prompt")
    prompts = []
    for index, line in enumerate(lines):
        text, settings = _split_settings(line.strip(), index)
        if not text:
            raise ConfigError(f"prompt {index} is empty")
        for name, values in zip(SETTINGS, (references, strategies), strict=True):
            if values:
                settings.setdefault(name, values[index % len(values)])
        prompts.append(Prompt(index, text, _parts(text, index), **settings))
    return tuple(prompts)


def _split_settings(line: str, index: int) -> tuple[str, dict[str, Any]]:
    """The text before a JSON object that ends the line, and the object."""
    start = line.find("{")
    if start < 0 or not line.endswith("}"):
        return line, {}
    try:
        settings = parse(line[start:])
    except ValueError as error:
        raise ConfigError(f"prompt {index} does not end with valid JSON: {error}") from None
    for name, value in settings.items():
        if name not in SETTINGS:
            possible = " and ".join(SETTINGS)
            raise ConfigError(f"prompt {index} sets {name!r}; possible keys are {possible}")
        if not isinstance(value, str):
            raise ConfigError(f"prompt {index}: {name} must be text, not {value!r}")
    return line[:start].strip(), settings


def _parts(text: str, index: int) -> tuple[tuple[int, str], ...]:
    """`|0| a |2| b` as ((0, a), (2, b)); any other text is one part from loop 0."""
    if not _PART.match(text):
        return ((0, text),)
    _, *pieces = _PART.split(text)
    parts = [(int(n), part.strip()) for n, part in zip(pieces[::2], pieces[1::2], strict=True)]
    firsts = [first for first, _ in parts]
    if firsts[0] != 0 or firsts != sorted(set(firsts)) or not all(part for _, part in parts):
        wanted = "parts start at |0|, rise and are not empty: |0| a |2| b"
        raise ConfigError(f"prompt {index}: {wanted}; not {text!r}")
    return tuple(parts)
