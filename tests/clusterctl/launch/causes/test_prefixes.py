"""What launchers write before a rank's lines is taken off, and the rank is read from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launch.causes.prefixes import Line, bare, of_file, plain
from clusterctl.why.explain import explain_logs

TRACE = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 7, in main',
    "    loss.backward()",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
)
# Name: (prefix, rank, host)
PREFIXES = {
    "torch": ("[rank3]: ", 3, None),
    "torchrun": ("[default3]:[rank3]: ", 3, None),
    "torchrun --tee": ("[default3]:", 3, None),
    "torchrun --role": ("[trainer3]:", 3, None),
    "mpirun": ("[1,3]<stderr>:", 3, None),
    "mpirun with time": ("Fri Aug 11 12:31:45 2023[1,3]<stdout>:", 3, None),
    "Open MPI 5": ("[prterun-node-1-77@1,3]<stderr>: ", 3, None),
    "srun": ("3: ", 3, None),
    "srun of 12": (" 3: ", 3, None),
    "pdsh": ("gpu-07: ", None, "gpu-07"),
    "pdsh with rank": ("gpu-07: [rank3]: ", 3, "gpu-07"),
    "host without number": ("bigbox: ", None, "bigbox"),
    "address": ("10.0.0.7: ", None, "10.0.0.7"),
    "Compose": ("trainer-1  | ", None, "trainer-1"),
    "kubectl": ("[pod/job-0/main] ", None, "job-0"),
    "kubectl with time": ("2025-11-24T03:20:21.001125857Z ", None, None),
    "container": ("2025-11-24T03:20:21.001125857+00:00 stderr F ", None, None),
    "Determined": ("[2024-02-27T21:35:34.295662Z] fa88a9df || ", None, None),
    "Determined with rank": ("[2024-02-27T21:35:34.295662Z] fa88a9df [rank=3] || ", 3, None),
    "Ray": ("(Trainer pid=499618, ip=10.0.0.7) ", None, None),
    "Ray in colour": ("\x1b[36m(Trainer pid=499618)\x1b[0m ", None, None),
    "vLLM": ("(Worker_TP0 pid=77) ERROR 05-22 10:26:17 [multiproc.py:870] ", None, None),
    "vLLM with rank": ("(VllmWorker rank=3 pid=77) ", 3, None),
    "elastic": ("E1106 17:14:53.310000 213 torch/distributed/elastic/api.py:732] ", None, None),
    "milabench": ("dinov2.gpu-07.nolog [stderr] ", None, None),
    "journald": ("Jan 05 10:00:00 gpu-07 python[1234]: ", None, "gpu-07"),
    "time": ("2024-01-01 10:00:00 ", None, None),
    "time with rank": ("[2024-01-01 10:00:00] [rank3]: ", 3, None),
    "stern": ("trainer-7c9f8d-abcde main ", None, "trainer-7c9f8d-abcde"),
    "number": ("[80746] [rank3]:", 3, None),
    "own": ("Rank 3: ", 3, None),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_error_behind_a_prefix_is_the_cause(name: str, tmp_path: Path) -> None:
    prefix, rank, host = PREFIXES[name]
    (tmp_path / "job.log").write_text("".join(f"{prefix}{line}\n" for line in TRACE))
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    cause = found.verdict.cause
    assert cause is not None
    assert found.signature == "ecc"
    assert (cause.rank, cause.node) == (rank, host)


def test_ranks_that_write_in_turn_are_told_apart(tmp_path: Path) -> None:
    """A frame of one stands between two lines of the other."""
    lines = [f"{host}: {line}" for line in TRACE for host in ("n1", "n2")]
    lines[6] = "n1: ConnectionError: Connection closed by peer"
    (tmp_path / "job.log").write_text("\n".join(lines))
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert (found.signature, found.verdict.cause.node) == ("ecc", "n2")
    assert found.victims == {"connection closed by peer": 1}


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: x: y",
        "ValueError: node-1: no such clip",
        "wandb.errors.CommError: x",
        "error: rank 3: OSError: no space left on device",
        "NCCL error in: x",
        "[E1123 09:14:02.9 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective",
        "(3, 4) is no shape",
        "2023-07-01 16:41:05,669 - ERROR: Exception occurred: x",
        "Jan 05 10:00:00 gpu-07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7",
        "17%|###  | 30/174 [4:02:24<19:23:34]",
    ],
)
def test_words_of_a_program_are_no_prefix(line: str) -> None:
    assert plain(line) == line
    assert [one.text for one in of_file([*TRACE, line])] == [*TRACE, line]


@pytest.mark.parametrize(
    "lines",
    [
        ["wandb: Network error", "wandb: ERROR timed out", *TRACE[:2], "wandb.errors.CommError: x"],
        ["1: ValueError: a", "2: ValueError: b", "step 3", "step 4"],
        ["INFO: up", "INFO: reads", "INFO: RuntimeError: x was survived", "INFO: goes on"],
        ["step1: loss 3", "step2: loss 2", "step3: loss 1"],
    ],
)
def test_words_that_most_lines_begin_with_are_no_host(lines: list[str]) -> None:
    assert [(one.rank, one.source) for one in of_file(lines)] == [(None, "")] * len(lines)


def test_files_of_docker_are_read(tmp_path: Path) -> None:
    lines = [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in TRACE]
    (tmp_path / "job.log").write_text("\n".join([*lines, '{"log": 3}', '{"log": "cut']))
    assert [one.text for one in of_file(lines)] == list(TRACE)
    assert of_file(['{"log": 3}', '{"log": "cut'])[1].text == '{"log": "cut'


def test_indent_of_a_line_is_kept() -> None:
    for mark in ("[1,3]<stderr>:", "[prterun-n1-77@1,3]<stderr>: ", "[1,3]<stderr>: "):
        assert bare(f"{mark}  hint: look").text == "  hint: look"


def test_rank_of_a_watchdog_is_in_its_text() -> None:
    said = "[E909 09:55:35.2 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 6] Process group"
    assert bare(said) == Line(said, 6)
    assert bare("[E909 09:55:35.2 ProcessGroupNCCL.cpp:607] [Rank 6] Watchdog caught").rank == 6
