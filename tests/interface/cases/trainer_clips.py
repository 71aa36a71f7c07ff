"""The verbs of python -m trainer.data that read clips, and clusterctl data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clusterctl.hostile.node import Orders, next_order
from tests.interface.cases import case
from tests.interface.machines import Answer, start
from tests.interface.shell import Shell
from tests.trainer.data.clips import write_clip
from tests.trainer.data.features.feature_caches import make_place

DATA = "python -m trainer.data"


def _clips(shell: Shell) -> None:
    """A clip, a file that is none, a file that is not there."""
    write_clip(Path("a.mkv"), 12, preset="ultrafast", threads="1")
    shell.write("b.mp4", "no video")
    shell.write("clips.csv", "path,text\na.mkv,x\nb.mp4,y\nc.mp4,z\n")


@case("trainer.data.probe")
def probe(shell: Shell) -> None:
    """A manifest of what clips say; clips that cannot be read."""
    _clips(shell)
    shell.run(f"{DATA} probe clips.csv out.csv --workers 1")
    shell.run(f"{DATA} probe clips.csv out.csv --workers 1")
    shell.run(f"{DATA} probe clips.csv more.csv --workers 1 --max-wrong-rows 1")
    shell.run(f"{DATA} probe missing.csv x.csv")
    shell.run(f"{DATA} check out.csv --workers 1")
    shell.run(f"{DATA} check out.csv checked.csv --workers 1 --json")
    shell.run(f"{DATA} check out.csv --clip-timeout-s nan")


@case("trainer.data.examine")
def examine(shell: Shell) -> None:
    """What it says before the first question; which answers come after the last one is chance."""
    shell.run(f"{DATA} examine --workers 1")


@case("trainer.data.encode")
def encode(shell: Shell) -> None:
    """A cache of latents: planned, made, made already, looked into, refused."""
    make_place(Path(), identity=True)
    shell.run(f"{DATA} encode config.py cache --dry-run")
    shell.run(f"{DATA} encode config.py cache --workers 1")
    shell.run(f"{DATA} encode config.py cache --workers 1")
    shell.run(f"{DATA} features cache")
    shell.run(f"{DATA} features cache --check")
    shell.run(f"{DATA} features cache --json", volatile=(r"\.bytes", r"\.weight_files.*"))
    shell.run(f"{DATA} features missing")
    shell.run(f"{DATA} encode config.py cache --latent-dtype bf16")
    shell.run(f"{DATA} encode config.py other --data-path missing.csv")
    shell.run(f"{DATA} encode config.py other --shard-mb 0")
    shell.run(f"{DATA} encode config.py other --no-such-key 1")


@case("trainer.data.digits")
def digits(shell: Shell) -> None:
    """Clips of digits: made, there already, refused."""
    line = "python -m trainer.data.digits --clips 3 --seed 1"
    shell.run(f"{line} --out set")
    shell.run(f"{line} --out set")
    shell.run(f"{line} --out more --size 65")
    shell.write("file", "mine")
    shell.run(f"{line} --out file/x")
    shell.run("python -m trainer.data.digits --out set")


def _examiner(trouble: str = "") -> Any:
    """A node that knows all clips, none of them, or has no trainer."""

    def say(_args: dict[str, Any], orders: Orders) -> Iterator[Answer]:
        if trouble == "no module":
            yield {"failed": "/venv/bin/python -m trainer.data examine ended with code 1", "said": "No module named trainer"}  # fmt: skip
            return
        yield {"ready": True, "workers": 1}
        while (order := next_order(orders)) is not None:
            for question in order.get("questions", ()):
                facts = {"num_frames": 9, "height": 64, "width": 64, "fps": 8.0, "bytes": 1}
                is_bad = question["path"].endswith("2.mp4")
                yield {"answers": [{"id": question["id"], **({"error": "No such file"} if is_bad else facts)}]}  # fmt: skip

    return say


@case("data.probe")
def spread(shell: Shell) -> None:
    """Clips probed and checked by two nodes."""
    cluster = start(shell, "n1", "n2")
    for name in ("n1", "n2"):
        cluster[name].says = {"examine": _examiner()}
    shell.write("clips.csv", "path,text\n" + "".join(f"/data/{n}.mp4,text {n}\n" for n in range(4)))
    shell.run("clusterctl data probe clips.csv --out m.csv -w n1")
    shell.run("clusterctl data check nodes.txt m.csv --json -w n1", volatile=(r"\.report\..*_s",))


@case("data.bad")
def spread_bad(shell: Shell) -> None:
    """Nodes that are dead or lack the trainer, a manifest that is not there, options that are no good."""
    cluster = start(shell, "n1", "n2")
    cluster["n1"].says = {"examine": _examiner("no module")}
    cluster.kill("n2")
    shell.write("clips.csv", "path,text\n/data/0.mp4,text\n")
    shell.run("clusterctl data probe nodes.txt clips.csv --out m.csv -w n1")
    shell.run("clusterctl data probe clips.csv nodes.txt --out m.csv -w n2 --json")
    shell.run("clusterctl data probe nodes.txt clips.csv --python python3")
    shell.run("clusterctl data prob nodes.txt clips.csv")
    shell.run("clusterctl data probe nodes.txt")
    cluster["n1"].says = {"examine": _examiner()}
    shell.run("clusterctl data probe nodes.txt missing.csv -w n1")
