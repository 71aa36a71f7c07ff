"""What a launcher says of the end counts where no rank says it itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launch.causes.kinds import Cause, Kind
from clusterctl.why import launcher_words
from clusterctl.why.explain import Explanation, explain_logs

ELASTIC = "torch.distributed.elastic.multiprocessing.api"
BAD = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
SLURM = "slurmstepd: error: *** {} ON n7 CANCELLED AT 2024-04-20T09:09:37 {}***\n"
SEEN = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[56021,1],2]\n  Exit code:    139\n"
# Text: (class, rank, node, words of the evidence)
TOLD = {
    "torchrun": (f"step 7\nERROR:{ELASTIC}:failed (exitcode: -9) local_rank: 3 (pid: 812) of binary: /usr/bin/python\nTraceback (most recent call last):\n", "signal-9", None, None, "local rank 3 (pid 812)"),
    "torchrun with bar": (f" 0/30 [00:00<?][2025-04-02 20:03:17,825] {ELASTIC}: [ERROR] failed (exitcode: -11) local_rank: 0 (pid: 16) of binary: /a\n", "signal-11", None, None, "local rank 0"),
    "SIGHUP": ("WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\nWARNING:x:Sending process 29 closing signal SIGHUP\n", "signal-1", None, None, "Received 1 death signal"),
    "SIGTERM": ("W1 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGTERM death signal, shutting down workers\nTraceback (most recent call last):\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 29 got signal: 15\n", "signal-15", None, None, "SIGTERM death signal"),
    "Ctrl-C": ("Received 2 death signal, shutting down workers\n", "user-stop", None, None, ""),
    "Open MPI": ("mpirun noticed that process rank 7 with PID 0 on node n7 exited on signal 9 (Killed).\n", "signal-9", 7, "n7", "mpirun saw rank 7"),
    "Open MPI 5": ("prterun noticed that process rank 0 with PID 88 on node n7 exited on\nsignal 6 (Aborted).\n", "signal-6", 0, "n7", ""),
    "Open MPI by code": (SEEN, "signal-11", 2, None, ""),
    "Intel MPI": (f"{BAD}=   RANK 6 PID 2447 RUNNING AT n9\n=   KILLED BY SIGNAL: 9 (Killed)\n", "signal-9", 6, "n9", ""),
    "Intel MPI of many": ("".join(f"{BAD}=   RANK {n} PID 2447 RUNNING AT n9\n=   KILLED BY SIGNAL: 9 (Killed)\n" for n in (6, 7, 8)), "signal-9", None, "n9", "ranks 6-8"),
    "MPICH": (f"{BAD}=   PID 96 RUNNING AT n9\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n==========\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n", "signal-9", None, None, ""),
    "srun": ("srun: error: n7: task 3: Killed\nsrun: Terminating StepId=1.0\n", "signal-9", 3, "n7", ""),
    "srun of torchrun": (f"srun: error: n7: task 3: Segmentation fault (core dumped)\nWARNING:{ELASTIC}:up\n", "signal-11", None, "n7", "task 3"),
    "srun by code": ("srun: error: n7: task 3: Exited with exit code 137\n", "signal-9", 3, "n7", ""),
    "srun memory": ("slurmstepd: error: Detected 1 oom_kill event in StepId=37.0. Some of the step tasks have been OOM Killed.\nsrun: error: n7: task 0: Out Of Memory\n", "oom-kernel", 0, "n7", ""),
    "Slurm memory": ("/var/spool/slurm_script: line 28:  8156 Killed                  python3 main.py --epochs 4\nslurmstepd: error: Detected 2 oom-kill event(s) in step 37.batch cgroup.\n", "oom-kernel", None, None, "oom-kill"),
    "time limit": (SLURM.format("JOB 49", "DUE TO TIME LIMIT ") + SLURM.format("STEP 49.0", ""), "signal-15", None, None, "TIME LIMIT"),
    "node failure": (SLURM.format("JOB 49", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG "), "node-unreachable", None, None, ""),
    "Kubernetes": ("    Reason:       OOMKilled\n    Exit Code:    137\n", "oom-kernel", None, None, ""),
    "kubectl": ("step 4\ncommand terminated with exit code 137\n", "signal-9", None, None, ""),
    "Compose": ("step 4\ntrainer-1 exited with code 139\n", "signal-11", None, None, ""),
    "DeepSpeed": ("[2023-06-01 10:00:00,1] [ERROR] [launch.py:434:sigkill_handler] ['python'] exits with return code = -9\n", "signal-9", None, None, ""),
    "Accelerate": ("Traceback (most recent call last):\n  File \"/a/accelerate\", line 8, in <module>\nsubprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGKILL: 9>.\n", "signal-9", None, None, ""),
    "spawn": ("Traceback (most recent call last):\ntorch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV\n", "signal-11", None, None, "process 1"),
    "systemd": ("Jan 05 10:00:01 n7 systemd[1]: train.service: Main process exited, code=killed, status=11/SEGV\n", "signal-11", None, None, ""),
    "systemd memory": ("Jan 05 10:00:01 n7 systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\nJan 05 10:00:01 n7 systemd[1]: train.service: Main process exited, code=killed, status=9/KILL\n", "oom-kernel", None, None, ""),
    "Ray memory": ("(raylet) [2024-01-01 10:00:00,000 E 123 123] (raylet) node_manager.cc:3071: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons\n", "oom-kernel", None, None, "memory pressure"),
    "shell": ("Epoch: [0][511/1736]\nKilled\n", "signal-9", None, None, ""),
    "bash": ("run.sh: line 184: 2324239 Aborted                 (core dumped) python pretrain.py\n", "signal-6", None, None, ""),
    "zsh": ("step 1\nzsh: segmentation fault  python train.py\n", "signal-11", None, None, ""),
}  # fmt: skip


def explained(folder: Path, text: str, name: str = "job") -> Explanation:
    (folder / f"{name}.log").write_text(text)
    return explain_logs(folder)


def cause_of(found: Explanation) -> Cause:
    assert found.verdict is not None
    assert found.verdict.cause is not None, found.verdict.why_not
    return found.verdict.cause


@pytest.mark.parametrize("name", TOLD)
def test_end_is_read_from_the_words_of_a_launcher(name: str, tmp_path: Path) -> None:
    text, kind, rank, node, said = TOLD[name]
    cause = cause_of(explained(tmp_path, text))
    assert (cause.name, cause.rank, cause.node) == (kind, rank, node)
    assert cause.evidence is not None
    assert said in cause.evidence.line


OWN = (
    'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no clip\n'
)


@pytest.mark.parametrize("name", [name for name in TOLD if TOLD[name][1] != "oom-kernel"])
def test_own_error_of_a_rank_counts_first(name: str, tmp_path: Path) -> None:
    text = "".join(re.split(r"(?m)^(?:step|Epoch).*\n", TOLD[name][0]))
    assert cause_of(explained(tmp_path, OWN + text)).kind == Kind.WORKER_EXCEPTION


def test_exit_code_alone_names_no_cause(tmp_path: Path) -> None:
    text = "E1106 17:14:53.310000 213 torch/distributed/elastic/multiprocessing/api.py:732] failed (exitcode: 1) local_rank: 0 (pid: 313) of fn: train (start_method: fork)\n"  # fmt: skip
    found = explained(tmp_path, text).verdict
    assert found is not None
    assert found.cause is None
    assert "torchrun saw local rank 0 (pid 313) end with exit code 1" in found.why_not


def test_error_that_the_launcher_prints_below_its_own_is_read(tmp_path: Path) -> None:
    """torch.multiprocessing passes the traceback of its process on, and torchrun logs it."""
    mark = "E1106 17:14:53.310000 213 torch/distributed/elastic/multiprocessing/api.py:732] "
    lines = [
        "failed (exitcode: 1) local_rank: 0 (pid: 313) of fn: train (start_method: fork)",
        "Traceback (most recent call last):",
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "",
        "-- Process 0 terminated with the following error:",
        *OWN.splitlines(),
    ]
    cause = cause_of(explained(tmp_path, "".join(f"{mark}{line}\n" for line in lines)))
    assert (cause.kind, cause.detail) == (Kind.WORKER_EXCEPTION, "ValueError")


@pytest.mark.parametrize(
    "text",
    [
        "Killed\n" + "step 7\n" * 40,
        "Killed the old workers\n",
        "he was killed  \n",
        "step 1\nran\n",
    ],
)
def test_word_of_a_program_that_goes_on_is_no_end(text: str, tmp_path: Path) -> None:
    found = explained(tmp_path, text).verdict
    assert found is not None
    assert found.cause is None


def test_rank_that_the_shell_killed_is_that_of_its_log(tmp_path: Path) -> None:
    assert cause_of(explained(tmp_path, "step 3\nKilled\n", "rank5")).rank == 5


TESTS = "# Using devices\n{} .. gpu pid 3018: Test failure common.cu:937\n---------------------------\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"  # fmt: skip


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("gpu: Test CUDA failure common.cu:1030 'system not yet initialized'\n", "driver-start"),
        ("n1: Test CUDA failure common.cu:306 'out of memory'\n", "cuda-oom"),
        ("n1: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO)'\n", "nccl-system"),
        ("Cuda failure common.cu:732 'no CUDA-capable device is detected'\n", "gpu-lost"),
    ],
)  # fmt: skip
def test_error_of_nccl_tests_is_read(line: str, signature: str, tmp_path: Path) -> None:
    found = explained(tmp_path, TESTS.format(line))
    assert found.signature == signature
    assert found.exit_code == 1


GAVE_UP = (
    "[2025-05-10 23:09:41] n1:630:409 [2] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'\n\n"
    "n1:630:410 [3] NCCL INFO transport/nvls.cc:409 -> 1\nn1:630:407 [0] NCCL INFO init.cc:1157 -> 1\n"
)  # fmt: skip


def test_call_that_nccl_gave_up_is_an_end(tmp_path: Path) -> None:
    found = explained(tmp_path, GAVE_UP)
    assert (found.signature, cause_of(found).kind) == ("nvls", Kind.CUDA_ERROR)
    plain = GAVE_UP.replace("transport/nvls.cc:254", "x.cc:1").replace("Cuda failure 1", "No")
    assert found.exit_code == 1
    cause = cause_of(explained(tmp_path, plain))
    assert cause.evidence is not None
    assert cause.evidence.line.endswith("(ncclUnhandledCudaError)")


def test_warning_that_nccl_went_on_after_is_no_end(tmp_path: Path) -> None:
    for text in (GAVE_UP + "step 1 loss 0.4\n", GAVE_UP.partition("\n")[0]):
        found = explained(tmp_path, text)
        assert found.verdict is not None
        assert found.verdict.cause is None
        assert any("Cuda failure 1" in clue for clue in found.clues)


def test_rank_whose_store_has_gone_is_a_follower(tmp_path: Path) -> None:
    text = '[rank1]:[W1229 22:06:38.48 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'  # fmt: skip
    found = explained(tmp_path, text)
    assert found.verdict is not None
    assert "all blame another one" in found.verdict.why_not
    assert found.victims == {"connection closed by peer": 1}


@pytest.mark.parametrize("part", launcher_words._LINES)
def test_a_log_without_the_part_of_a_launchers_line_has_no_such_line(part: str) -> None:
    """Else a log's end would be lost where only the parts are looked for."""
    pattern = re.compile(launcher_words._LINES[part], re.ASCII)

    @given(st.from_regex(pattern))
    def has_it(line: str) -> None:
        assert part in line

    has_it()
