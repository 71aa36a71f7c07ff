"""The trainer's tools for configs, models, weights and videos; training itself only where it refuses."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from tests.dashboards.runs import write_run
from tests.interface.cases import case
from tests.interface.shell import Shell
from tests.trainer.infer.infer_run import make_run
from tests.trainer.models.stdit_weights import noisy, write_upstream_checkpoint

INFER = "python -m trainer.infer"


@case("trainer.config.show")
def show(shell: Shell) -> None:
    """A config, resolved, with overrides; as Python and as JSON."""
    shell.run("python -m trainer.config show demo --lr 1e-4 --dataset.data-path x.csv")
    shell.run("python -m trainer.config show stage1 --json")


@case("trainer.config.bad")
def bad(shell: Shell) -> None:
    """Keys, values and files that are no good: the same words as of train, infer and bench."""
    line = "python -m trainer.config show"
    shell.run("python -m trainer.config")
    shell.run(f"{line} nothing")
    shell.run(f"{line} demo --lrr 1")
    shell.run(f"{line} demo --lr much")
    shell.run(f"{line} demo --lr")
    shell.run(f"{line} demo lr 1")
    shell.run(f"{line} demo --lr -1")
    shell.run(f"{line} demo --dataset.data-pth x")
    shell.run(f"{line} demo --dtype fp8")
    shell.run(f"{line} demo --keep-checkpoints 0")
    shell.run(f"{line} demo --model.type Nothing")
    for name, text in (
        ("syntax", "lr = = 1\n"),
        ("raises", "lr = 1 / 0\n"),
        ("unknown", "lrr = 1\n"),
        ("kind", "lr = 'much'\n"),
        ("base", "_base_ = 'nowhere.py'\n"),
        ("refused", "scheduler = dict(type='ddim')\n"),
        ("buckets", "bucket_config = {'360p': {51: 3}}\n"),
    ):
        shell.write(f"{name}.py", text)
        shell.run(f"{line} {name}.py")


@case("trainer.train.usage")
def train(shell: Shell) -> None:
    """What train refuses before it begins."""
    shell.run("python -m trainer.train")
    shell.run("python -m trainer.train nothing")
    shell.write("no_data.py", "lr = 1e-4\n")
    shell.run("python -m trainer.train no_data.py")
    shell.run("python -m trainer.train demo --lrr 1")
    shell.run("python -m trainer.train demo --data-path x.csv --data-state maybe")
    shell.run("python -m trainer.train demo --data-path x.csv --mask-ratios \"{'none': 1}\"")


@case("trainer.infer.good")
def infer(shell: Shell) -> None:
    """Videos planned, made, there already; an image."""
    make_run(Path())
    shell.write("prompts.txt", "digit one\n\ndigit two\n")
    line = f"{INFER} small.py --ckpt-path epoch0-global_step7 --prompt-path prompts.txt"
    shell.run(f"{line} --dry-run")
    shell.run(f"{line} --num-sampling-steps 1")
    shell.run(f"{line} --num-sampling-steps 1")
    shell.run(f"{line} --num-sampling-steps 1 --seed 7")
    shell.run(f"{line} --dry-run --num-frames image --num-sample 2 --prompt-as-path")


@case("trainer.infer.bad")
def infer_bad(shell: Shell) -> None:
    """Requests that are no good."""
    make_run(Path())
    shell.write("none.txt", "\n \n")
    line = f"{INFER} small.py --ckpt-path epoch0-global_step7"
    shell.run(f"{INFER}")
    shell.run(f"{INFER} nothing --prompt x")
    shell.run(f"{INFER} small.py --prompt x")
    shell.run(f"{INFER} small.py --ckpt-path missing --prompt x")
    shell.run(f"{line}")
    shell.run(f"{line} --prompt-path missing.txt")
    shell.run(f"{line} --prompt-path none.txt")
    shell.run(f"{line} --prompt x --prompt-path none.txt")
    shell.run(f"{line} --prompt x --num-frames 5s")
    shell.run(f"{line} --prompt x --resolution 999p")
    shell.run(f"{line} --prompt x --resolution 144p --image-size 16 16")
    shell.run(f"{line} --prompt x --start-index 3")
    shell.run(f"{line} --prompt x --mask-strategy 'a;b'")
    shell.run(f"{line} --prompt x --reference-path missing.png")
    shell.run(f"{line} --prompt x --model.hidden-size 64")
    shell.run(f"{line} --prompt x --cfg-scale nan")


@case("trainer.weights.inspect")
def inspect(shell: Shell) -> None:
    """A checkpoint looked into; text and JSON."""
    _checkpoint()
    shell.run("python -m trainer.weights inspect epoch0-global_step5")
    shell.run(
        "python -m trainer.weights inspect epoch0-global_step5 --json",
        data_keys=(r"\.keys",),
        volatile=(r"\.files\[\]\.bytes",),
    )
    shell.run("python -m trainer.weights inspect missing")
    shell.write("file.safetensors", "no weights")
    shell.run("python -m trainer.weights inspect file.safetensors")
    shell.write("file.txt", "no weights")
    shell.run("python -m trainer.weights inspect file.txt")


@case("trainer.weights.convert")
def convert(shell: Shell) -> None:
    """A checkpoint converted; what is refused."""
    _checkpoint()
    line = "python -m trainer.weights convert"
    shell.run(f"{line} epoch0-global_step5 m.safetensors --dtype bf16")
    shell.run(f"{line} epoch0-global_step5 m.safetensors")
    shell.run(f"{line} epoch0-global_step5 folder")
    shell.run(f"{line} missing x.safetensors")
    shell.run(f"{line} epoch0-global_step5 y --from pixart")
    shell.run(f"{line} epoch0-global_step5 z --dtype fp4")


def _checkpoint() -> None:
    state = {name: tensor.clone() for name, tensor in noisy().state_dict().items()}
    average = {name: tensor + 1 for name, tensor in state.items()}
    write_upstream_checkpoint(Path("epoch0-global_step5"), state, average)


@case("trainer.bench.usage")
def bench(shell: Shell) -> None:
    """Wishes that are no good."""
    shell.run("python -m trainer.bench")
    shell.run("python -m trainer.bench nothing")
    shell.run("python -m trainer.bench demo --bucket 360p:51")
    shell.run("python -m trainer.bench demo --steps 0")
    shell.run("python -m trainer.bench demo --lrr 1")
    shell.run("python -m trainer.bench demo --budget-s 3")


@case("trainer.bench.good")
def bench_good(shell: Shell) -> None:
    """One step of one bucket, as JSON."""
    line = "python -m trainer.bench demo --threads 1 --warmup 1 --steps 1 --batch-size 2 --json"
    shell.run(
        line,
        volatile=(
            r"\.torch",
            r"\.(threads|cores|load)",
            r"\.device_name",
            r"\.rows\[\]\..*(bytes|flops.*|share|mfu.*|per_s)",
        ),
    )


@case("trainer.evaluate.digits")
def evaluate(shell: Shell) -> None:
    """Real clips judged as if they were samples; what cannot be judged."""
    shell.quiet("python -m trainer.data.digits --clips 4 --seed 1 --out set")
    with Path("set/digits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        Path("samples").mkdir(exist_ok=True)
        shutil.copy(Path("set") / row["path"], f"samples/sample_{number:04d}.mp4")
    texts = [row["text"] for row in rows]
    shell.write("prompts.txt", "\n".join(texts) + "\n")
    shell.write("swapped.txt", "\n".join(reversed(texts)) + "\n")
    shell.write("other.txt", "a cat\n")
    line = "python -m trainer.evaluate digits --samples samples"
    shell.run(f"{line} --prompts prompts.txt")
    shell.run(f"{line} --prompts prompts.txt --json")
    shell.run(f"{line} --prompts swapped.txt")
    shell.run(f"{line} --prompts swapped.txt --json")
    shell.run(f"{line} --prompts other.txt")
    shell.run(f"{line} --prompts missing.txt")
    shell.run("python -m trainer.evaluate digits --samples missing --prompts prompts.txt")
    shell.run("python -m trainer.evaluate faces --samples samples --prompts prompts.txt")
    shell.run("python -m trainer.evaluate missing")


@case("trainer.pictures.curve")
def pictures(shell: Shell) -> None:
    """A run's curve; folders without a run."""
    write_run(Path("outputs/001-STDiT3"), steps=5)
    shell.run("python -m trainer.pictures outputs/001-STDiT3")
    shell.run("python -m trainer.pictures missing")
    shell.write("empty/x", "")
    shell.run("python -m trainer.pictures empty")
