"""What the driver of this machine says: raw outputs as captures, facts by both ways, the rules.

Two phases that ask `preflight --active`'s ranks stand here too: seeded products, and copies.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.run import Figures, Options
from trainer.runlog.units import counted

COMMANDS = {
    "table": [],
    "q": ["-q"],
    "xml": ["-q", "-x"],
    "gpus.csv": ["--query-gpu", "--format=csv"],
    "apps.csv": ["--query-compute-apps", "--format=csv"],
    "nvlink": ["nvlink", "-s"],
    "topo": ["topo", "-m"],
}
# These change between two readings; the others must be equal by both ways.
MOVING = {"power_w", "utilization_percent", "temperature_c", "throttle", "margin_c", "pcie_gen"}


def facts(options: Options, figures: Figures) -> str:
    """Each reading by itself: a machine without a library of NVML still has its tool. A rehearsal
    on a CPU whose machine has no driver reads versions alone."""
    (options.out / "raw").mkdir(exist_ok=True)
    if options.device == "cpu" and shutil.which("nvidia-smi") is None:
        figures.attempt("versions", lambda: versions(options))
        return "no card, and no nvidia-smi on this machine: versions only"
    steps: dict[str, Callable[[Options], dict[str, Any]]] = {
        "versions": versions,
        "raw outputs of nvidia-smi": raw,
        "census by nvidia-smi": lambda options: census(options, nvml=False),
        "census by NVML": lambda options: census(options, nvml=True),
        "NVML against nvidia-smi": compare,
        "rules over the census": rules,
    }
    found = {
        name: figures.attempt(name, lambda step=step: step(options)) for name, step in steps.items()
    }
    ruled, compared = found["rules over the census"], found["NVML against nvidia-smi"]
    parts = [str((found["versions"] or {}).get("gpu", "no card"))]
    if compared is not None:
        parts.append(f"{len(compared['differences'])} differences between NVML and nvidia-smi")
    if ruled is not None:
        parts.append(ruled["verdict"])
    return "; ".join(parts)


def versions(options: Options) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"python": sys.version.split()[0], "torch": torch.__version__}
    if options.device == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(0),
            "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def raw(options: Options) -> dict[str, Any]:
    """Each command's output in OUT/raw, to become a capture."""
    from clusterctl.payload.collect.gpus import GPU_FIELDS, PROCESS_FIELDS

    fields = {"--query-gpu": GPU_FIELDS, "--query-compute-apps": PROCESS_FIELDS}
    lines = {}
    for name, words in COMMANDS.items():
        asked = [f"{word}={fields[word]}" if word in fields else word for word in words]
        done = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True, timeout=20)
        (options.out / "raw" / f"nvidia-smi.{name}.txt").write_text(done.stdout + done.stderr)
        lines[name] = (done.returncode, len(done.stdout.splitlines()))
    shown = ", ".join(f"{name} {count}" for name, (_, count) in lines.items())
    return {"lines": f"lines: {shown}", "codes": [code for code, _ in lines.values()]}


def census(options: Options, nvml: bool) -> dict[str, Any]:
    """The census payload on this machine, without ssh; its sections in OUT/raw."""
    from checks.parsers.kernel_log import INTERESTING
    from clusterctl.nodes import Node
    from clusterctl.remote.cluster import Cluster
    from tests.clusterctl.payload.local import LocalConnection, LocalTransport

    transport: Any = LocalTransport({"here": LocalConnection()})
    cluster = Cluster([Node("here")], transport)
    args: dict[str, Any] = {"everything": True, "log": INTERESTING, "nvml": nvml}
    args |= {"growth_s": 0.1, "tool_timeout_s": 20.0}
    (result,) = cluster.ask("census", args, timeout_s=50.0)
    if result.value is None:
        raise RuntimeError(str(result.unreachable))
    library = result.value["sections"].get("nvml", {"rc": None, "err": "was not asked"})
    if nvml and library["rc"] != 0:  # the payload asks nvidia-smi then
        raise RuntimeError(f"NVML: {library['err'] or library}")
    (options.out / "raw" / f"{_way(nvml)}.json").write_text(json.dumps(result.value, indent=1))
    gpus = _facts(options, nvml).gpus
    names = {str(gpu.name) for gpu in gpus.gpus}
    said = f"{gpus.state}: {counted(len(gpus.gpus), 'GPU')} ({', '.join(sorted(names)) or gpus.summary})"
    if gpus.state not in ("ok", "partial"):
        raise RuntimeError(said)
    return {"state": gpus.state, "said": said}


def compare(options: Options) -> dict[str, Any]:
    """Fields of a GPU that NVML and nvidia-smi give differently."""
    differences = []
    ways = (_facts(options, True).gpus, _facts(options, False).gpus)
    for position, pair in enumerate(zip(*(way.gpus for way in ways), strict=True)):
        flat = [
            {**dataclasses.asdict(gpu), **dataclasses.asdict(gpu.health), "health": None}
            for gpu in pair
        ]
        for field, nvml in flat[0].items():
            if field not in MOVING and nvml != flat[1][field]:
                text = f"GPU {position} {field}: NVML {nvml}, nvidia-smi {flat[1][field]}"
                differences.append(text)
    return {"differences": differences}


def rules(options: Options) -> dict[str, Any]:
    """What the rules about GPUs find on this machine: a healthy one must not fail."""
    from checks.facts import Fleet
    from checks.runner import run_checks

    found = {}
    for nvml in (True, False):
        if (options.out / "raw" / f"{_way(nvml)}.json").is_file():
            report = run_checks(Fleet((_facts(options, nvml),)), only=["gpu", "fleet"])
            found[_way(nvml)] = [
                (one.verdict.value, one.id, one.evidence) for one in report.findings
            ]
    bad = [row for rows in found.values() for row in rows if row[0] not in ("PASS", "SKIP")]
    shown = "; ".join(f"{verdict} {id} {evidence}" for verdict, id, evidence in bad[:3])
    count = sum(map(len, found.values()))
    return {"findings": found, "verdict": f"{count} findings, {len(bad)} not good: {shown}"}


def repeated(options: Options, figures: Figures) -> str:
    """Seeded products, each kind again and again: a good card gives the same bits every time."""
    answer = _ask_rank(options, {"do": "products", "seconds": 0.1 if options.tiny else 6.0})
    figures.add("products", **answer)
    wrong = [f"{one['kind']} {one['others']}" for one in answer["products"] if one["others"]]
    figures.judge("products", ", ".join(wrong))
    memory = f"{answer['memory_bytes'] / 2**30:.1f} GiB, " if "memory_bytes" in answer else ""
    counts = [f"{one['kind']} {one['others']} of {one['count']}" for one in answer["products"]]
    return f"{', '.join(counts)} differ; {memory}{answer['seconds']:.1f} s, {answer['kin']}"


def copies(options: Options, figures: Figures) -> str:
    """A pattern to the device, within it and back: a good card changes no bit."""
    size = 1 << 20 if options.tiny else 256 << 20
    answer = _ask_rank(options, {"do": "copies", "bytes": size})
    figures.add("copies", **answer)
    wrong = [f"{one['step']}: {one['values']} values" for one in answer["wrong"]]
    figures.judge("copies", "; ".join(wrong))
    return f"{len(wrong)} of {answer['steps']} copies are wrong, {answer['seconds']:.1f} s"


def _ask_rank(options: Options, order: dict[str, Any]) -> dict[str, Any]:
    """What a rank of `preflight --active` answers, on the first device."""
    device = "cuda:0" if options.device == "cuda" else "cpu"
    command = "import clusterctl.payload.torch_tests.rank"
    process = subprocess.Popen(
        [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for line in ({"device": device}, {**order, "id": 1}):  # stdin stays open: it is its lease
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    answers = map(json.loads, process.stdout)
    answer: dict[str, Any] = next(
        one for one in answers if one["type"] == "answer" or "error" in one
    )
    process.stdin.close()
    process.wait()
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def _way(nvml: bool) -> str:
    return "census-nvml" if nvml else "census-nvidia-smi"


def _facts(options: Options, nvml: bool) -> Any:
    from checks.parsers.census import parse_census

    path: Path = options.out / "raw" / f"{_way(nvml)}.json"
    if not path.is_file():
        raise RuntimeError(f"there is no {path.name}: the census failed")
    return parse_census("here", json.loads(path.read_text()))
