"""Every error that CUDA's and NCCL's tables hold has a class, in whatever form a program prints it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from clusterctl.launch.causes import cuda_errors, signatures
from clusterctl.launch.causes.kinds import Kind
from clusterctl.launch.causes.texts import classify, read
from clusterctl.launch.deaths import Death
from clusterctl.launch.root_cause import judge
from tests.clusterctl.launch.causes.nccl_texts import LAST_ERRORS, RESULTS

CAPTURES = Path(__file__).parents[3] / "captures"
FORMS = (
    "torch.AcceleratorError: CUDA error: {text}",
    "RuntimeError: CUDA error: {text}",
    "RuntimeError: CUDA driver error: {text}",
    "RuntimeError: Triton Error [CUDA]: {text}",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error {number}: {text}",
    "CUDA failure {number}: {text} ; GPU=1 ; hostname=gpu-07",
    "Process group watchdog thread terminated with exception: CUDA error: {text}",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure '{text}'",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure {number} '{text}'",
    "GPUassert: {text} train.cu 45",
)


@pytest.mark.parametrize("one", cuda_errors.ERRORS, ids=lambda one: str(one.number))
def test_error_of_cuda_is_known_by_text_and_name(one: cuda_errors.CudaError) -> None:
    said = [form.format(text=one.text, number=one.number) for form in FORMS if one.text]
    said += [f"RuntimeError: cudaError{one.runtime}: x"] if one.runtime else []
    said += [f"INTERNAL: Failed call to cuInit: CUDA_ERROR_{one.driver}: x"] if one.driver else []
    wanted = signatures.NAMED[one.signature]
    for text in said:
        found = cuda_errors.find(text)
        assert found is not None, text
        assert found.signature == one.signature, text
        stated = classify(text)
        assert (stated.kind, stated.is_of_node) == (wanted.kind, wanted.is_of_node), text


def test_number_alone_counts_where_it_means_one_error() -> None:
    found = cuda_errors.find("CUDA error 803")
    assert found is not None
    assert found.runtime == "SystemDriverMismatch"
    assert cuda_errors.find("CUDA error 46") is None  # before CUDA 10.1 these meant others


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: invalid argument",
        "RuntimeError: the CUDA extension was not built: file not found",
        "clips of 720p: out of memory of ideas",
        "cudaErrorOfNobody",
    ],
)
def test_words_of_others_are_no_error_of_cuda(text: str) -> None:
    assert cuda_errors.find(text) is None


NODE = (46, 100, 101, 214, 220, 226, 802, 803, 804, 805)
DRIVER = (34, 35, 36, 209, 222)


def test_errors_of_node_and_driver_are_those_that_another_node_may_not_have() -> None:
    by_number = {one.number: signatures.NAMED[one.signature] for one in cuda_errors.ERRORS}
    assert all(by_number[number].is_of_node for number in NODE)
    assert all(by_number[number].kind == Kind.ENVIRONMENT for number in DRIVER)
    assert not any(by_number[number].is_of_node for number in (1, 2, 700, 710, 716, 719, 901))


def raised(result: str, text: str, last: str, mark: str) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 45, in main',
        f"torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:77, {text}, NCCL version 2.27.5",
        f"{result}: as torch explains it.",
        "Last error:",
        last,
    ]
    return [f"{mark}{line}" for line in lines]


@pytest.mark.parametrize("mark", ["", "[rank3]: ", "[default3]:[rank3]: "])
@pytest.mark.parametrize("last", LAST_ERRORS)
def test_last_error_of_nccl_is_the_reason(last: str, mark: str) -> None:
    stated = read(raised("ncclSystemError", "unhandled system error", last, mark))
    assert stated is not None
    assert last.strip() in stated.text
    known = signatures.find(stated.text)
    assert known is not None
    assert known.name == LAST_ERRORS[last]


@pytest.mark.parametrize(("result", "text", "name"), RESULTS)
def test_result_of_nccl_has_a_class_without_its_last_error(
    result: str, text: str, name: str
) -> None:
    for said in (
        f"{result}: as torch explains it.",
        f"torch.distributed.DistBackendError: NCCL error in: x.cpp:77, {text}, NCCL version 2.27.5 {result}: x",
        f"RuntimeError: NCCL error: {result} {text}",
    ):
        known = signatures.find(said)
        assert known is not None
        assert known.name == name


def test_result_alone_is_known_by_its_text() -> None:
    for _, text, name in RESULTS[:6]:
        known = signatures.find(f"INTERNAL: NCCL operation ncclCommInitRank failed: {text}")
        assert known is not None
        assert known.name == name


def test_watchdog_that_reports_an_error_of_nccl_tells_its_reason() -> None:
    lines = [
        "[rank1]:[E815 10:40:00.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "Last error:",
        "Cuda failure 'uncorrectable ECC error encountered'",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ]
    stated = read(lines)
    assert stated is not None
    assert (stated.kind, stated.is_of_node) == (Kind.CUDA_ERROR, True)


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]:[E815 10:40:00.0 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
        "[rank0]:[F815 10:48:00.0 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0 Rank 0] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        "[rank0]:[F815 10:48:00.0 ProcessGroupNCCL.cpp:1554] [PG 0 Rank 0] Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
        "[rank0]:[E815 10:30:00.0 ProcessGroupNCCL.cpp:1746] [PG ID 0 Rank 0] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info.",
        "[rank0]:[E815 10:30:00.0 ProcessGroupNCCL.cpp:1746] [PG ID 0 Rank 0] Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.",
        "[rank0]:[E815 10:30:00.0 ProcessGroupNCCL.cpp:1685] [PG ID 0 Rank 0] Observed flight recorder dump signal from another rank via TCPStore.",
        "[E ProcessGroupNCCL.cpp:1182] [Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1",
    ],
)  # fmt: skip
def test_heartbeat_monitor_is_a_watchdog(line: str) -> None:
    stated = read([line])
    assert stated is not None
    assert stated.kind == Kind.NCCL_WATCHDOG


def test_abort_of_a_heartbeat_monitor_is_a_consequence() -> None:
    lines = (CAPTURES / "why/watchdog-stuck/0.log").read_text().splitlines()
    found = judge([Death("gpu-01", 0, -signal.SIGABRT, "killed by signal 6", lines, 1.0)])
    assert found is not None
    assert (found.root.name, found.root.is_root) == ("nccl-watchdog", False)


@pytest.mark.parametrize(
    "part",
    ["CUDA error ", "Cuda failure: out of memory", "cudaGetDeviceCount: ", "ibv_modify_qp ", "NCCL ", "gdr_pin_buffer(", ": invalid argument", "watchdog thread terminated with exception: [", "/dev/shm/nccl-"],
)  # fmt: skip
def test_no_line_takes_long(part: str) -> None:
    line = part * (100_000 // len(part))
    begin_s = time.process_time()
    classify(line)
    read([line, "Last error:", line])
    assert time.process_time() - begin_s < 2.0
