"""docs/guide/own-clips.md as a newcomer follows it: its configuration and commands, to their end."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.data.clips import write_clip
from trainer.runlog.own_modules import module_command

PAGE = Path(__file__).parents[1] / "docs/guide/own-clips.md"
FEWER = {
    "trainer.train": ["--max-steps", "4", "--ckpt-every", "2"],
    "trainer.infer": ["--num-sampling-steps", "2"],
}


def parts(kind: str) -> list[str]:
    """Blocks of the parts that are to be followed; what follows is for real sizes."""
    text = PAGE.read_text().partition("## What goes wrong")[0]
    fenced = text.split("```")[1::2]
    return [one.partition("\n")[2] for one in fenced if one.partition("\n")[0] == kind]


def commands() -> list[list[str]]:
    joined = [block.replace("\\\n", " ") for block in parts("") if "python -m" in block]
    return [shlex.split(line) for block in joined for line in block.splitlines()]


def test_page_has_what_is_followed() -> None:
    assert [words[2] if words[0] == "python" else words[0] for words in commands()] == [
        "trainer.data", "trainer.data", "trainer.train", "trainer.infer", "clusterctl"
    ]  # fmt: skip
    assert len(parts("python")) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_page_is_followed_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    captions = [f"a {c} ball {does}" for c in ("red", "blue") for does in ("rolls", "rolls left")]
    lines = [f"clips/{n:02d}.mp4,{captions[n % 4]}" for n in range(20)]  # as many as the page had
    for n in range(20):
        write_clip(tmp_path / f"clips/{n:02d}.mp4", 48, 64, 64, threads="1", preset="ultrafast")
    (tmp_path / "clips.csv").write_text("path,text\n" + "\n".join(lines) + "\n")
    (tmp_path / "mine.py").write_text(parts("python")[0])
    said = []
    for words in commands():
        if words[0] == "python":
            command = module_command(*words[2:], *FEWER.get(words[2], []))
        else:
            command = module_command(*words)
        command[0] = sys.executable
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        said.append(done.stdout + done.stderr)
        assert done.returncode == 0, f"{words}\n{said[-1]}"
    assert "20 clips in a bucket of epoch 0" in said[1]
    assert "warning" not in said[1]
    run = tmp_path / "outputs/001-STDiT3"
    assert (run / "samples/mine/contact_sheet.png").is_file()
    assert (run / "samples/index.html").is_file()
