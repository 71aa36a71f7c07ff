"""clusterctl gallery, on a run with two checkpoints, one of them not finished."""

from __future__ import annotations

from pathlib import Path

from tests.dashboards.gallery.test_page import put, two
from tests.interface.cases import case
from tests.interface.shell import Shell


def _run(name: str) -> Path:
    run = Path("outputs", name)
    put(run, "low4s/epoch0-global_step20", 20, two("a cat", "a dog"), preset="low4s")
    (run / "telemetry.jsonl").write_text("")
    return run


@case("gallery.good")
def good(shell: Shell) -> None:
    """A page in the run directory, of several runs, and elsewhere; a checkpoint that is not finished."""
    run = _run("003-STDiT3-XL-2")
    shell.run("clusterctl gallery")
    shell.run("clusterctl gallery 3 --out page.html --json")
    half = run / "samples" / "low4s" / "epoch1-global_step40"
    half.mkdir()
    (half / "sample_0000.mp4").write_bytes(b"")
    _run("004-STDiT3-XL-2")
    shell.run("clusterctl gallery 3 4")
    shell.run("clusterctl gallery 3 4 -q")


@case("gallery.bad")
def bad(shell: Shell) -> None:
    """No run, no videos, no folder to write to, an index that cannot be read."""
    shell.run("clusterctl gallery")
    run = _run("003-STDiT3-XL-2")
    shell.run("clusterctl gallery 4")
    shell.run("clusterctl gallery 3 --out missing/page.html")
    shell.run("clusterctl gallery 3 --web --out page.html")
    empty = Path("outputs", "004-STDiT3-XL-2")
    empty.mkdir()
    (empty / "telemetry.jsonl").write_text("")
    shell.run("clusterctl gallery 4")
    (run / "samples" / "low4s" / "epoch0-global_step20" / "index.json").write_text("{")
    shell.run("clusterctl gallery 3")
