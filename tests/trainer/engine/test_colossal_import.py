"""ColossalAI is imported without what it would do at import; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(120)
# A machine with a GPU, which answers after the import only.
ON_A_GPU = """
import json, os, torch
asked = []
def starts(name, answer):
    def ask(*args, **kwargs):
        asked.append(name)
        return answer
    setattr(torch.cuda, name, ask)
    return ask
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 2
real = {
    name: starts(name, answer)
    for name, answer in [
        ("_lazy_init", None), ("get_device_capability", (9, 0)), ("current_device", 1),
        ("get_device_properties", None), ("set_device", None), ("Stream", None), ("Event", None),
        ("current_stream", None), ("synchronize", None), ("mem_get_info", (0, 0)),
    ]
}
from trainer.engine.colossal_import import import_colossalai, use_gpu
"""


def said(program: str, **env: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU + program], cwd=REPO, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", **env}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_import_does_not_start_cuda_and_the_gpu_is_asked_later() -> None:
    found = said("""
names = import_colossalai()
at_import = list(asked)
from colossalai.accelerator import get_accelerator
from colossalai.quantization import fp8
use_gpu(names)
same = all(getattr(torch.cuda, name) is ask for name, ask in real.items())
print(json.dumps([at_import, same, get_accelerator().name, fp8.cuda_arch, asked]))
""")
    assert found == [[], True, "cuda", 90, ["get_device_capability"]]


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize(("own", "used"), [({}, "1"), ({CONNECTIONS: "8"}, "8")])
def test_cuda_starts_with_the_user_s_number_of_connections_or_one(
    own: dict[str, str], used: str
) -> None:
    """CUDA reads it once in a process."""
    found = said(
        """
from trainer.engine.colossal import ColossalEngine
at_start = []
torch.cuda.set_device = lambda _: at_start.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
ColossalEngine()
print(json.dumps([at_start, os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]]))
""",
        **own, TRAINER_DEVICE="cuda",
    )  # fmt: skip
    assert found == [[used], used]


# Streams on a CPU that only note what is done on them.
STREAMS = """
import contextlib
log, now = [], ["current"]
class Stream:
    def __init__(self, name):
        self.name = name
    def wait_stream(self, other):
        log.append(f"{self.name} waits for {other.name}")
@contextlib.contextmanager
def on(stream):
    before, now[0] = now[0], stream.name
    yield
    now[0] = before
torch.cuda.Stream = lambda *_, **__: Stream("reductions")
torch.cuda.current_stream = lambda *_: Stream(now[0])
torch.cuda.stream = on
torch.cuda.synchronize = lambda *_: log.append("the host waits for the device")
torch.Tensor.record_stream = lambda own, stream: log.append(f"recorded on {stream.name}")
"""


def test_the_update_waits_for_the_reductions_and_the_host_for_nothing() -> None:
    found = said(
        STREAMS
        + """
import torch.distributed as dist
from trainer.config.load import Config
from trainer.engine.colossal import ColossalEngine
from trainer.engine.zero_step import ZeroStep
engine = ColossalEngine()
use_gpu(engine._names)
accelerator = engine._names.get_accelerator()
accelerator.get_current_device = lambda: torch.device("cpu")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
plain = dist.reduce_scatter_tensor
def reduced(out, *args, **kwargs):
    log.append(f"reduced on {now[0]}")
    return plain(out, *args, **kwargs)
dist.reduce_scatter_tensor = reduced
to_fp32, step = torch.Tensor.float, ZeroStep.step
def noted(own, limit):
    log.append(f"updated on {now[0]}")
    return step(own, limit)
ZeroStep.step = noted
model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
wrapped = engine.wrap(model, Config(dtype="bf16", plugin="zero2"))
torch.Tensor.float = lambda own: log.append(f"fp32 on {now[0]}") or to_fp32(own)
weight = engine.master_params()[0][1].clone()
log.clear()
for is_last in (False, True):
    engine.backward(wrapped(torch.ones(2, 4, dtype=torch.bfloat16)).sum(), is_last=is_last)
engine.step()
print(json.dumps([log, bool((engine.master_params()[0][1] != weight).all())]), flush=True)
os._exit(0)  # without waiting for the store
""",
        TRAINER_DEVICE="cuda",
    )
    one_pass = [
        "recorded on reductions",
        "reductions waits for current",
        "reduced on reductions",
        "current waits for reductions",
    ]
    fp32 = ["fp32 on reductions"] * 2
    assert found == [[*one_pass, *fp32, *one_pass, "updated on current"], True]
