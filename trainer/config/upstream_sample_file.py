"""Open-Sora's inference configs: what stands at their top level is the section `sample` here.

A file is one of them when it has no bucket_config and a key that only they have.
"""

from __future__ import annotations

from collections.abc import Collection

from trainer.config.file import Tree
from trainer.errors import ConfigError

_MARKS = ("num_frames", "image_size", "save_fps", "prompt_path", "prompt", "multi_resolution")
_OTHER_NAMES = {"prompt_path": "prompts"}
# Key -> why it needs nothing.
_LEFT_OUT = {
    "save_dir": "--save-dir says where videos go",
    "multi_resolution": "the model always gets the size",
    "prompt_as_path": "--prompt-as-path says it",
    "sample_name": "--sample-name says it",
}


def is_sample_file(tree: Tree) -> bool:
    return "bucket_config" not in tree.data and any(name in tree.data for name in _MARKS)


def move_into_section(tree: Tree, fields: Collection[str], notes: list[str]) -> None:
    """Put the flat keys of an inference config into `sample`, whose fields are `fields`.

    Nothing happens to any other file. Raises ConfigError for prompts in the file itself.
    """
    if not is_sample_file(tree):
        return
    if tree.data.pop("prompt", None):
        raise ConfigError(
            f"{tree.place(('prompt',))}: prompts do not stand in a config",
            hint="--prompt TEXT, or a file with one a line and --prompt-path FILE",
        )
    for name, why in _LEFT_OUT.items():
        if tree.data.pop(name, None) is not None:
            notes.append(f"{name} is not needed here: {why}")
    section = tree.data.get("sample")
    own = set(section) if isinstance(section, dict) else set()
    for name in [*_OTHER_NAMES, *fields]:
        target = _OTHER_NAMES.get(name, name)
        if name not in tree.data:
            continue
        value = tree.data.pop(name)
        if target not in own:  # `--sample.seed 1` goes before the file's seed
            tree.set(("sample", target), value, tree.place((name,)))
