"""Videos as files: whole or not there, each knowing which request it answers."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.video.mp4 import read_mp4, read_tags, write_mp4
from trainer.errors import ConfigError, VideoError
from trainer.runlog.atomic_file import part_of

# T frames · H,W height, width
_MARK = "clusterctl request "  # in front of the identity, in the file's comment


class State(enum.Enum):
    MISSING = "to make"
    BROKEN = "incomplete, made again"
    FINISHED = "finished"
    OTHER = "another video"


def state_of(path: Path, identity: str) -> State:
    """Whether `path` is the video of this request, another one, half of one or nothing."""
    try:
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as image:
                image.load()  # to the last byte; a cut file raises OSError
                comment = str(image.info.get("comment", ""))
        else:
            comment = read_tags(path).get("comment", "")
    except FileNotFoundError:
        return State.MISSING
    except (ValueError, OSError):
        return State.BROKEN
    return State.FINISHED if comment == _MARK + identity else State.OTHER


def write(
    path: Path, frames_THW3: NDArray[np.uint8], fps: float, identity: str, title: str, upscale: int
) -> None:
    """An mp4, or a png if the path says so, with request and prompt inside. Raises VideoError."""
    tags = {"comment": _MARK + identity, "title": title}
    with as_one_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".png":
            write_mp4(path, frames_THW3, fps, upscale, tags)
            return
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        for name, text in tags.items():
            info.add_itxt(name, text)
        image = Image.fromarray(frames_THW3[0].repeat(upscale, 0).repeat(upscale, 1))
        with part_of(path) as part:
            image.save(part, format="png", pnginfo=info)


@contextmanager
def as_one_sentence(path: Path) -> Iterator[None]:
    """Turns the system's error for a file that cannot be written into a VideoError."""
    try:
        yield
    except OSError as error:
        hint = "finished videos are kept; run the same command again for the others"
        text = f"{path} cannot be written: {error.strerror or error}"
        raise VideoError(text, hint=hint) from None


def require_folder(save_dir: Path) -> None:
    """Videos can be written there as far as can be seen without writing. Raises ConfigError."""
    there = save_dir.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"--save-dir {save_dir}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--save-dir {save_dir}: {there} cannot be written to")


def read(path: Path, upscale: int = 1) -> NDArray[np.uint8]:
    """The frames [T, H, W, 3] as they were before they were enlarged."""
    if path.suffix != ".png":
        return read_mp4(path)[:, ::upscale, ::upscale]
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))[None, ::upscale, ::upscale]
