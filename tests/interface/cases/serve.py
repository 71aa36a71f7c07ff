"""clusterctl serve, with a stand-in for the sampler."""

from __future__ import annotations

from pathlib import Path

from tests.clusterctl.serve import stand_in
from tests.interface.cases import case
from tests.interface.shell import Shell

RUN = Path("outputs/001-run")


@case("serve.good")
def good(shell: Shell) -> None:
    """The plan, all videos, the plan after it, no server."""
    shell.keep("PYTHON", str(stand_in.make(Path.cwd())))
    stand_in.make_run(RUN, (10,), prompts=3)
    shell.run("clusterctl serve 1 --dry-run")
    shell.run("clusterctl serve 1 --once --gpus none --python PYTHON -q")
    shell.run("clusterctl serve 1 --dry-run --json")
    shell.run("clusterctl serve 1 --list")
    shell.run("clusterctl serve 1 --stop")


@case("serve.bad")
def bad(shell: Shell) -> None:
    """No run, no preset, no prompts, a wrong file of presets, no checkpoint, one that is damaged."""
    shell.run("clusterctl serve 7")
    fail = {"make": ("model/model.safetensors is damaged: its SHA-256 differs", "CheckpointError")}
    shell.keep("PYTHON", str(stand_in.make(Path.cwd(), fail=fail)))
    stand_in.make_run(RUN)
    shell.run("clusterctl serve 1 --preset low4")
    shell.run("clusterctl serve 1 --prompts none.txt")
    shell.run("clusterctl serve 1 --expnums x")
    shell.run("clusterctl serve 1 -w n1")
    Path("presets.toml").write_text("[still]\nnum_frame = 1\n")
    shell.run("clusterctl serve 1")
    Path("presets.toml").unlink()
    shell.run("clusterctl serve 1 --once --gpus none --python PYTHON")
    stand_in.seal(RUN, 10)
    shell.run("clusterctl serve 1 --once --gpus none --python PYTHON -q")
