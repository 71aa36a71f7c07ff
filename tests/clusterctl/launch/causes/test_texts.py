"""Classes of the sentences with which real programs end."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from clusterctl.launch.causes.kinds import Kind
from clusterctl.launch.causes.texts import classify, file_of, read

CAPTURES = Path(__file__).parents[3] / "captures"

SENTENCES = {
    "RuntimeError: The size of tensor a (3) must match b (4)": Kind.WORKER_EXCEPTION,
    "clips.csv: no row is left": Kind.WORKER_EXCEPTION,
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": Kind.CUDA_OOM,
    "step 3: too much for the memory of cuda:0": Kind.CUDA_OOM,
    "bucket 720p 51f needs 90.1 GB for 4 clips with every block recomputed, and the smallest card has 79.1 GB for a rank: a batch of 2 would fit": Kind.CUDA_OOM,
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered": Kind.CUDA_ERROR,
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": Kind.CUDA_ERROR,
    "OSError: [Errno 28] No space left on device: '/data/x'": Kind.DISK_FULL,
    "the checkpoint could not be written: it needs 9.00 GB and /data has 2.00 GB free": Kind.DISK_FULL,
    "OSError: [Errno 116] Stale file handle": Kind.STORAGE,
    "OSError: [Errno 5] Input/output error: '/nfs/a.mp4'": Kind.STORAGE,
    "the loss of step 12 is nan on rank 1; all ranks stop; this step is not saved": Kind.DIVERGED,
    "the ema of step 9 are not finite on rank 0; all ranks stop; nothing of it is saved": Kind.DIVERGED,
    "the loss of steps 40 to 59 is 9 times the median of the 200 steps before; 2 rollbacks did not get past step 40; all ranks stop": Kind.DIVERGED,
    "/out/epoch0-global_step4/model/a.safetensors is damaged: its SHA-256 differs": Kind.CHECKPOINT_INVALID,
    "/out/epoch0-global_step4 is not complete: it has no manifest.json": Kind.CHECKPOINT_INVALID,
    "RuntimeError: Error(s) in loading state_dict for STDiT3:": Kind.CHECKPOINT_INVALID,
    "safetensors_rust.SafetensorError: Error while deserializing header: header too large": Kind.CHECKPOINT_INVALID,
    "FileNotFoundError: [Errno 2] No such file or directory: 'clips.csv'": Kind.MISSING_FILE,
    "there is no clips.csv for dataset.data_path": Kind.MISSING_FILE,
    "there is no checkpoint at /out/9": Kind.MISSING_FILE,
    "ModuleNotFoundError: No module named 'torch'": Kind.ENVIRONMENT,
    "this Python has no numpy, torch: /usr/bin/python3": Kind.ENVIRONMENT,
    "ImportError: libcudart.so.12: cannot open shared object file": Kind.ENVIRONMENT,
    "KeyboardInterrupt": Kind.USER_STOP,
    "another rank has ended, and this one ends with it": Kind.PEER_LOST,
    "torch.distributed.DistNetworkError: The client socket has timed out after 1000ms while trying to connect to (10.0.0.1, 29500).": Kind.PEER_LOST,
    "torch.distributed.DistBackendError: NCCL error in: ncclRemoteError: A call failed": Kind.PEER_LOST,
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated. ": Kind.PEER_LOST,
}  # fmt: skip


@pytest.mark.parametrize("text", SENTENCES)
def test_sentence_has_its_class(text: str) -> None:
    assert classify(text).kind == SENTENCES[text]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torch/port-taken.txt", Kind.PORT_TAKEN),
        ("torch/gloo-peer-killed.txt", Kind.PEER_LOST),
        ("torch/loader-killed.txt", Kind.WORKER_DIED),
        ("nccl/watchdog-timeout.txt", Kind.NCCL_WATCHDOG),
    ],
)
def test_recorded_log_has_its_class(name: str, kind: Kind) -> None:
    stated = read((CAPTURES / name).read_text().splitlines())
    assert stated is not None
    assert stated.kind == kind


def test_connection_to_a_process_of_the_loader_is_no_connection_to_a_rank() -> None:
    """One that torch's handler of the loader's death did not replace by its own words."""
    lines = (CAPTURES / "why/worker-died-in-hook/2.log").read_text().splitlines()
    lines = lines[lines.index("Original exception was:") + 1 :]
    stated = read(lines)
    assert stated is not None
    assert stated.text == "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert stated.kind == Kind.WORKER_DIED
    others = [line for line in lines if "/torch/utils/data/" not in line]
    for left in (others, [line for line in lines if "/multiprocessing/" not in line]):
        stated = read(left)
        assert stated is not None
        assert stated.kind == Kind.PEER_LOST


def test_class_of_an_exception_and_the_file_that_raised_it_are_kept() -> None:
    lines = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/opt/job/train.py", line 45, in main',
        "[rank3]:     raise TypeError('x')",
        "[rank3]: TypeError: x",
    ]
    stated = read(lines)
    assert stated is not None
    assert (stated.kind, stated.detail, stated.text) == (
        Kind.WORKER_EXCEPTION,
        "TypeError",
        "TypeError: x",
    )
    assert file_of(lines) == "train.py:45"


def test_rank_that_an_error_names_is_read_from_it() -> None:
    stated = read(["error: rank 3: OSError: [Errno 5] Input/output error"])
    assert stated is not None
    assert (stated.kind, stated.rank) == (Kind.STORAGE, 3)


def test_watchdog_that_ends_the_process_is_no_error_of_its_own() -> None:
    lines = (CAPTURES / "nccl/watchdog-timeout.txt").read_text().splitlines()
    stated = read(
        [*lines, "terminate called after throwing an instance of 'c10::DistBackendError'"]
    )
    assert stated is not None
    assert stated.kind == Kind.NCCL_WATCHDOG
    # An error that the rank states itself counts, whatever the watchdog says.
    stated = read([*lines, "error: rank 1: ValueError: no frames"])
    assert stated is not None
    assert stated.kind == Kind.WORKER_EXCEPTION


def test_reason_below_an_exception_of_cpp_is_taken() -> None:
    stated = read(
        [
            "terminate called after throwing an instance of 'c10::Error'",
            "  what():  CUDA error: an illegal memory access was encountered",
        ]
    )
    assert stated is not None
    assert stated.kind == Kind.CUDA_ERROR


@pytest.mark.parametrize("lines", [[], [""], ["step 1", "[W] warning: deprecated"], ["Killed"]])
def test_log_without_an_error_states_none(lines: list[str]) -> None:
    assert read(lines) is None


def chained(*errors: str) -> list[str]:
    lines = ["Traceback (most recent call last):", errors[0]]
    for error in errors[1:]:
        lines += ["", "During handling of the above exception, another exception occurred:", ""]
        lines += ["Traceback (most recent call last):", error]
    return lines


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        # Cleaning up failed because the peers had gone, or because the device or disk had failed.
        (("KeyError: 'a'", "RuntimeError: Connection reset by peer"), Kind.WORKER_EXCEPTION),
        (("OSError: [Errno 28] No space left on device", "RuntimeError: unexpected pos 64 vs 0"), Kind.DISK_FULL),
        (("torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: CUDA error: x"), Kind.CUDA_OOM),
        # The first one was handled; the last one says more.
        (("KeyError: 'a'", "FileNotFoundError: [Errno 2] No such file: 'a'"), Kind.MISSING_FILE),
        (("ConnectionResetError: Connection reset by peer", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "), Kind.WORKER_DIED),
    ],
)  # fmt: skip
def test_error_of_a_chain_that_is_the_cause(errors: tuple[str, ...], kind: Kind) -> None:
    stated = read(chained(*errors))
    assert stated is not None
    assert stated.kind == kind


def test_own_error_that_the_watchdog_reports_is_no_consequence() -> None:
    bark = "[rank1]:[E1123 09:14:02.9 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"  # fmt: skip
    stated = read([bark, "terminate called after throwing an instance of 'c10::DistBackendError'"])
    assert stated is not None
    assert (stated.kind, stated.is_of_node) == (Kind.CUDA_ERROR, True)


def test_error_of_python_just_before_an_abort_is_the_cause_of_it() -> None:
    abort = ["terminate called after throwing an instance of 'c10::Error'", "  what():  refcount"]
    own = "RuntimeError: read(): fd 33 failed with Stale file handle"
    stated = read([own, *abort])
    assert stated is not None
    assert stated.kind == Kind.STORAGE
    stated = read([own, *["step"] * 99, *abort])  # the program had survived that one
    assert stated is not None
    assert stated.kind == Kind.WORKER_EXCEPTION


def test_a_log_costs_a_few_searches_a_line_however_often_it_is_read() -> None:
    """192 logs of ranks are read three times each; measured 6 to 8, and 60 with no line kept."""
    line = "n1:3468:39 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0 step {}"
    end = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:30130"
    logs = [(*(line.format(1000 * log + n) for n in range(780)), end) for log in range(20)]
    simple = re.compile(r"(?:error|Error|\[rank\d{1,9}\])[: ]")
    began_s = time.process_time()
    assert not any(simple.search(line) for log in logs for line in log[:-1])
    once_s = time.process_time() - began_s
    began_s = time.process_time()
    for log in logs:
        assert {getattr(read(log), "kind", None) for _ in range(3)} == {Kind.PEER_LOST}
    assert time.process_time() - began_s < 25 * once_s
