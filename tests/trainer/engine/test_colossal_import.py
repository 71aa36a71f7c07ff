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
import_colossalai()
at_import = list(asked)
from colossalai.accelerator import get_accelerator
from colossalai.quantization import fp8
use_gpu()
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
