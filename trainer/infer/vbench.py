"""VBench's prompts and the names that it looks for: `<prompt>-<sample>.mp4`, all in one folder.

The facts are those of Vchitect/VBench at commit 45e79ec: `prompts/README.md` (5 samples of a
prompt, 25 for temporal_flickering, a different seed for each video), `vbench/VBench_full_info.json`
(the list) and `vbench/__init__.py` (it compares names letter by letter, and takes the ending of all
videos from the first name in the folder, so that nothing else may lie in it).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.infer.jobs import Job
from trainer.infer.prompts import Prompt
from trainer.runlog.json_file import parse

FOLDER = "videos"  # below the save directory; index and contact sheet are beside it
SAMPLES, FLICKERING, OF_FLICKERING = 5, "temporal_flickering", 25
# Dimensions whose prompts are in another's file of prompts_per_dimension/.
_FILES = {
    "background_consistency": "scene",
    "motion_smoothness": "subject_consistency",
    "dynamic_degree": "subject_consistency",
    "aesthetic_quality": "overall_consistency",
    "imaging_quality": "overall_consistency",
}
_LONGEST_NAME = 240  # bytes; file systems allow 255, and the hidden part file has 15 more
Suite = dict[Prompt, int]
"""Prompts and how many samples of each; equal prompts of several dimensions are one."""


def read_suite(path: Path, dimensions: Sequence[str] = ()) -> Suite:
    """The prompts of VBench_full_info.json, of a prompt file or of a folder of them; `dimensions`
    chooses some. A prompt keeps its place in the whole list, and with it its videos, whatever is
    chosen. Raises ConfigError."""
    try:
        entries = list(_of_json(path) if path.suffix == ".json" else _of_texts(path))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(f"--vbench {path} cannot be read: {why}") from None
    known = sorted({name for _, names in entries for name in names})
    for name in dimensions:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"--dimensions: {path} has no dimension {name}", hint=hint)
    wanted = set(dimensions) or set(known)
    places: dict[str, int] = {}
    samples: dict[str, int] = {}
    for place, (text, names) in enumerate(entries):
        places.setdefault(text, place)
        if chosen := wanted & names:
            count = OF_FLICKERING if FLICKERING in chosen else SAMPLES
            samples[text] = max(samples.get(text, 0), count)
    if not samples:
        raise ConfigError(f"--vbench {path} has no prompts")
    chosen_texts = sorted(samples, key=lambda text: places[text])
    for text in chosen_texts:
        _check_name(path, text)
    return {Prompt(places[text], text, ((0, text),)): samples[text] for text in chosen_texts}


def plan_jobs(suite: Suite, prompts: Sequence[Prompt], save_dir: Path) -> list[Job]:
    """Every video of these prompts, which are of the suite, in order."""
    counts = {prompt.text: count for prompt, count in suite.items()}
    return [
        Job(prompt, sample, save_dir / FOLDER / f"{prompt.text}-{sample}.mp4")
        for prompt in prompts
        for sample in range(counts[prompt.text])
    ]


def _check_name(path: Path, text: str) -> None:
    """VBench finds a video only under the prompt itself: no character can be replaced."""
    name = f"{text}-{OF_FLICKERING - 1}.mp4"
    why = ""
    if "/" in text or "\0" in text:
        why = "it has a character that no file name can have"
    elif len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        why = f"its file name would have more than {_LONGEST_NAME} bytes"
    if why:
        raise ConfigError(
            f"--vbench {path}: VBench could not find the videos of {text!r}: {why}",
            hint="change the prompt in your list, for VBench too",
        )


def _of_json(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    found: Any = parse(path.read_bytes())
    if not isinstance(found, list):
        raise ValueError("it is not a list of prompts")
    for place, entry in enumerate(found):
        text = entry.get("prompt_en") if isinstance(entry, dict) else None
        names = entry.get("dimension") if isinstance(entry, dict) else None
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not isinstance(text, str) or not text.strip() or not is_list or not names:
            raise ValueError(f"entry {place} has no text prompt_en, or no list dimension")
        yield text, frozenset(names)


def _of_texts(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """Prompt files, one prompt a line, each called as its dimension."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    for file in files:
        names = {file.stem} | {name for name, other in _FILES.items() if other == file.stem}
        # Lines as VBench reads them: stripped.
        for line in file.read_text(encoding="utf-8-sig").split("\n"):
            if text := line.strip():
                yield text, frozenset(names)
