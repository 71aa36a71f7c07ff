"""What the null GPU refuses and counts, without torch: launch.c and memory.c alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.null import counters
from tests.gpu.null.build import HERE, stand_ins_for

Three = ctypes.c_uint * 3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("card") / "card.so"
    sources = [str(HERE / f"{name}.c") for name in ("launch", "memory")]
    words = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", *sources, "-o", str(path)]
    subprocess.run([*words, "-lpthread"], check=True)
    return path


@pytest.fixture
def card(library: Path) -> Any:
    loaded = ctypes.CDLL(str(library))
    loaded.new_stream.restype = ctypes.c_void_p
    loaded.null_gpu_counters.restype = ctypes.POINTER(counters.Counters)
    loaded.use_device(0)
    return loaded


def launch(
    card: Any,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (128, 1, 1),
    shared: int = 0,
    stream: int | None = None,
) -> int:
    kernel = ctypes.c_void_p(4096)
    args = (kernel, Three(*grid), Three(*block), ctypes.c_size_t(shared))
    return int(card.launched(*args, ctypes.c_void_p(stream)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": (1, 65_536, 1)},
        {"grid": (1, 1, 65_536)},
        {"grid": (0, 1, 1)},
        {"block": (1025, 1, 1)},
        {"block": (1, 1, 65)},
        {"shared": 49_153},
    ],
)
def test_a_launch_outside_the_limits_is_refused(card: Any, wrong: dict[str, Any]) -> None:
    own = card.null_gpu_counters().contents
    before = own.launches, own.bad
    assert launch(card) == 0
    assert launch(card, **wrong) != 0
    assert (own.launches, own.bad) == (before[0] + 2, before[1] + 1)


def test_more_shared_memory_is_taken_once_it_was_asked_for(card: Any) -> None:
    card.kernel_may_use(ctypes.c_void_p(4096), ctypes.c_size_t(100_000))
    assert launch(card, shared=100_000) == 0
    assert launch(card, shared=100_001) != 0
    card.kernel_may_use(ctypes.c_void_p(4096), ctypes.c_size_t(49_152))


def test_a_stream_of_another_card_is_refused(card: Any) -> None:
    card.use_device(1)
    stream = card.new_stream()
    assert launch(card, stream=stream) == 0
    card.use_device(0)
    assert launch(card, stream=stream) != 0


def test_memory_has_the_limit_of_a_card_and_no_pages(card: Any) -> None:
    pointer = ctypes.c_void_p()
    own = card.null_gpu_counters().contents
    before = own.used[0]
    large = 70 << 30  # more than this machine has
    assert card.take(ctypes.byref(pointer), ctypes.c_size_t(large), 0) == 0
    assert own.used[0] == before + large
    other = ctypes.c_void_p()
    assert card.take(ctypes.byref(other), ctypes.c_size_t(large), 0) == 2
    card.give(pointer)
    assert own.used[0] == before
    assert own.peak[0] >= before + large


def test_what_is_sent_comes_back(card: Any) -> None:
    pointer, data = ctypes.c_void_p(), ctypes.create_string_buffer(b"latents")
    card.take(ctypes.byref(pointer), ctypes.c_size_t(4096), 0)
    got = ctypes.create_string_buffer(len(data))
    card.copied(pointer, data, ctypes.c_size_t(len(data)))
    assert card.copied(got, pointer, ctypes.c_size_t(len(data))) == 1  # the host waits for it
    assert got.value == b"latents"


def test_counters_of_a_killed_process_are_read(library: Path, tmp_path: Path) -> None:
    code = f"""
import ctypes
card = ctypes.CDLL({str(library)!r})
three = ctypes.c_uint * 3
for grid in (1, 0):
    card.launched(ctypes.c_void_p(64), three(grid, 1, 1), three(1, 1, 1), ctypes.c_size_t(0), None)
print(flush=True)
input()
"""
    environment = {**os.environ, "NULL_GPU_COUNTERS": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (found,) = counters.of_folder(tmp_path).values()
    assert (found.launches, found.bad, found.devices_used()) == (2, 1, [0])
    assert "a grid of 0 x 1 x 1 blocks" in found.refusal


def test_the_rest_of_the_libraries_counts_or_names_itself() -> None:
    text = stand_ins_for({"cublasDgemm_v2", "cublasSetWorkspace_v2", "cudaGraphLaunch"})
    assert 'library_call("cublasDgemm_v2", 0, 0)' in text
    assert "long cublasSetWorkspace_v2(void) { return 0; }" in text
    assert "nobody wrote cudaGraphLaunch" in text
