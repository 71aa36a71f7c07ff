"""Logs as users show them in public: one file of all processes, other prefixes, lines behind the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.why.explain import Explanation, explain_logs
from clusterctl.why.show import lines

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
ORDINAL = f"{TRACE}RuntimeError: CUDA error: invalid device ordinal\n"
ABORT = "[n1:00572] *** Process received signal ***\n[n1:00572] Signal: Aborted (6)\n[n1:00572] [ 0] /lib/libc.so.6(+0x42520)[0x7a]\n[n1:00572] *** End of error message ***\n"  # fmt: skip
WORK = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, Timeout(ms)=600000) ran for 600045 milliseconds before timing out."  # fmt: skip
COUNTS = "[PG ID 11 PG GUID {} Rank {}] Exception (either an error or timeout) detected by watchdog at work: {}, last enqueued NCCL work: {}, last completed NCCL work: {}."  # fmt: skip
REPORT = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-08-01_01:{minute}:47
  host      : n20
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 24321)
"""
EXITED = "E1226 16:52:45.454000 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 7 (pid: 81) of binary: /usr/bin/python3\n"  # fmt: skip
SRUN_PORT = "srun: error: n44: task 3: Exited with exit code 1\nslurmstepd: error: *** JOB 524549 ON n43 CANCELLED AT 2026-10-09T23:25:32 ***\nsrun: forcing job termination\n"  # fmt: skip
CGROUP = (
    'time="2026-10-09T23:25:32+02:00" level=warning msg="Failed to remove cgroup (will retry)"\n'
)
OWN = f"{TRACE}ValueError: no such bucket\n"

# (name of the file, its text), cause, rank, node
KNOWN = {
    "Hydra's line behind the error": (("a.log", f"{TRACE}OSError: [Errno 24] Too many open files\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"), "worker-exception", None, None),
    "torch.distributed.launch": (("a.out", f"{ORDINAL}Killing subprocess 27636\nKilling subprocess 27637\n"), "cuda-error", None, None),
    "other ranks print before torchrun ends them": (("a.log", f"{ORDINAL}using device: cuda:3\nusing device: cuda:4\n{EXITED}"), "cuda-error", None, None),
    "a job's number is no rank": (("524549.err", f"{TRACE}RuntimeError: The server socket has failed to listen on any local network address. (errno: 98 - Address already in use).\n{SRUN_PORT}{CGROUP}"), "port-taken", None, None),
    "Open MPI's words of a signal": (("pod.log", f"[rank0]:[E ProcessGroupNCCL.cpp:1335] [PG 0 Rank 0] NCCL watchdog thread terminated with exception: NCCL error: internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\n[rank0]: ncclInternalError: Internal check failed.\nterminate called after throwing an instance of 'c10::DistBackendError'\n{ABORT}"), "cuda-error", 0, None),
    "an abort without a mark is that of the rank": (("a.log", "[rank6]: " + "[rank6]: ".join(f"{TRACE}torch.AcceleratorError: CUDA error: misaligned address\n".splitlines(keepends=True)) + f"\nterminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: misaligned address\n{REPORT.format(minute='06', rank=6, code=-6)}"), "cuda-error", 6, "n20"),
    "memory of one process in a log of all": (("a.out", "n1:3025:3048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<51159>\nn1:3025:3031 [0] NCCL INFO group.cc:96 -> 3\n\nn1:3028:3152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\nn1:3028:3152 [3] NCCL INFO proxy.cc:1377 -> 1\n"), "cuda-oom", None, None),
    "the only rank that torchrun reports": (("nohup.out", f"{OWN}{REPORT.format(minute='06', rank=4, code=1)}"), "worker-exception", 4, "n20"),
    "a second start in the same file": (("a.txt", f"{REPORT.format(minute='06', rank=4, code=-9)}$ accelerate launch train.py\n{REPORT.format(minute='11', rank=3, code=-9)}"), "signal-9", 3, "n20"),
    "SageMaker": (("algo-1.log", "[1,mpirank:7,algo-1]<stderr>:" + "[1,mpirank:7,algo-1]<stderr>:".join(f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: 'index.json'\n".splitlines(keepends=True))), "missing-file", 7, None),
    "uvicorn": (("a.log", "ERROR:    " + "ERROR:    ".join(f"{TRACE}PermissionError: [Errno 13] Permission denied: '/app/.triton'\n".splitlines(keepends=True))), "worker-exception", None, None),
    "CloudWatch": (("a.log", "  | 2026-11-28T07:42:15.533Z | " + "  | 2026-11-28T07:42:15.533Z | ".join(f"{TRACE}[rank1]: MemoryError\n".splitlines(keepends=True))), "worker-exception", 1, None),
    "srun names the node that failed": (("a.txt", "srun: error: Node failure on n37\nslurmstepd: error: *** STEP 19.0 ON n17 CANCELLED AT 2026-03-06T03:17:51 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"), "node-unreachable", None, "n37"),
    "srun cannot reach a node": (("a.out", "srun: error: Task launch for StepId=51.0 failed on node n78: Communication connection failure\n"), "node-unreachable", None, "n78"),
    "a credential that has expired": (("a.out", "srun: error: Task launch for 36.0 failed on node n31: Job credential expired\n"), "environment", None, "n31"),
    "no torchrun on the node": (("a.out", "slurmstepd: error: execve(): torchrun: No such file or directory\n"), "environment", None, None),
    "glog": (("mpi.log", "[1,7]<stderr>:*** Aborted at 1589385241 (unix time) ***\n[1,7]<stderr>:*** SIGSEGV (@0x8) received by PID 18077 (TID 0x7f) from PID 8; stack trace: ***\n"), "signal-11", 7, None),
    "the last of a chain": (("a.log", f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: 'cache.json'\n\nDuring handling of the above exception, another exception occurred:\n\n{OWN}"), "worker-exception", None, None),
    "an older spawn": (("a.log", f"{TRACE}Exception: \n\n-- Process 0 terminated with the following error:\n{OWN}"), "worker-exception", None, None),
    "an older spawn and a signal": (("a.log", f"{TRACE}Exception: process 3 terminated with signal SIGKILL\n"), "signal-9", None, None),
    "a class of any name": (("a.log", f"{TRACE}cv2.error: OpenCV(4.8.0) :-1: error: (-5:Bad argument) in function 'resize'\n"), "worker-exception", None, None),
    "a class without a text": (("a.log", "[rank24]: " + "[rank24]: ".join(f"{TRACE}StopIteration\n".splitlines(keepends=True))), "worker-exception", 24, None),
    "torch.compile": (("a.log", f"{TRACE}torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Cannot find a working triton installation\n\nSet TORCH_LOGS=+dynamo for more\nYou can suppress this exception and fall back to eager\n"), "worker-exception", None, None),
    "NeMo-Run": (("a.log", "i.pretrain/0 [default2]:[rank2]: " + "i.pretrain/0 [default2]:[rank2]: ".join(OWN.splitlines(keepends=True))), "worker-exception", 2, None),
    "replicas without marks": (("a.log", "".join(f"i.pretrain/0 {line}" for line in OWN.splitlines(keepends=True))), "worker-exception", None, "i.pretrain/0"),
    "Composer": (("a.log", "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n"), "signal-7", 2, None),
    "Composer's report": (("a.log", "Global rank 0 (PID 271) exited with code -11\n"), "signal-11", 0, None),
    "Horovod": (("a.log", "step 3\nProcess 0 exit with status code 137.\n"), "signal-9", 0, None),
    "Paddle": (("a.log", "Container rank 0 status failed cmd ['python', 'train.py'] code -9 log ./workerlog.0\n"), "signal-9", 0, None),
    "ROCm": (("a.log", "Memory access fault by GPU node-2 on address 0x422ea6b000. Reason: Page not present or supervisor privilege.\n*** Aborted at 1500432842 (unix time) ***\nPC: @     0x7f64489dc428 gsignal\n*** SIGABRT (@0x9ec) received by PID 2540 (TID 0x7f) from PID 2540; stack trace: ***\n    @     0x7f64489dc428 gsignal\n"), "cuda-error", None, None),
    "nccl-tests": (("a.log", "n1: Test NCCL failure common.cu:961 'internal error - please report this issue to the NCCL developers / '\n.. n1 pid 75: Test failure common.cu:844\n"), "cuda-error", None, None),
    "glibc": (("1.log", "step 4\ndouble free or corruption (!prev)\n"), "worker-exception", 1, None),
    "behind a progress bar": (("a.log", " 12%|#2        | 3/25 [00:01<00:09,  2.3it/s]Killed\n"), "signal-9", None, None),
    "rich": (("a.log", "CommError: Run initialization has timed out after 90.0 sec.\n"), "service-unreachable", None, None),
    "the reason stands below": (("a.log", f"{TRACE}RuntimeError: Failed to import siglip because of the following error (look up to see its traceback):\nflash_attn.so: undefined symbol: _ZN3c10\n"), "environment", None, None),
}  # fmt: skip


def told(folder: Path, name: str, text: str) -> Explanation:
    (folder / name).write_text(text)
    return explain_logs(folder)


@pytest.mark.parametrize(("file", "cause", "rank", "node"), KNOWN.values(), ids=list(KNOWN))
def test_cause_is_found(
    tmp_path: Path, file: tuple[str, str], cause: str, rank: int | None, node: str | None
) -> None:
    verdict = told(tmp_path, *file).verdict
    assert verdict is not None
    assert verdict.cause is not None, verdict.why_not
    assert (verdict.cause.name, verdict.cause.rank, verdict.cause.node) == (cause, rank, node)
    assert not verdict.victims  # the rank that ended does not follow itself


def test_rank_of_a_smaller_group_is_no_rank_of_the_job(tmp_path: Path) -> None:
    """Its counters say nothing of those of another group."""
    text = "".join(
        f" 2026-02-18 12:54 [rank{rank}]:[E218 ProcessGroupNCCL.cpp:616] {what}\n"
        for rank, what in (
            (13, f"[Rank 1] {WORK.format(216, 'ALLTOALL_BASE')}"),
            (13, COUNTS.format(119, 1, 216, 220, 215)),
            (15, f"[Rank 1] {WORK.format(57, 'ALLREDUCE')}"),
            (15, COUNTS.format(112, 0, 57, 57, 56)),
        )
    )
    found = told(tmp_path, "job.log", text)
    assert found.verdict is not None
    assert sorted(one.rank for one in found.verdict.victims if one.rank is not None) == [13, 15]
    said = " ".join(found.clues)
    assert "ALLREDUCE number 57 timed out after 10 min 00 s on rank 15" in said
    assert "on rank 13" in said
    assert "completed the fewest" not in said


@pytest.mark.parametrize(
    "line",
    [
        COUNTS.format(0, 3, 1580, 1582, 1579),
        "[Rank 3] Collective WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
    ],
)  # fmt: skip
def test_rank_that_blames_a_peer_is_not_said_to_end_without_an_error(
    tmp_path: Path, line: str
) -> None:
    text = f"[rank3]:[E321 02:07:08.465224069 ProcessGroupNCCL.cpp:1664] {line}\n"
    verdict = told(tmp_path, "a.log", text).verdict
    assert verdict is not None
    assert verdict.cause is None
    assert [one.rank for one in verdict.victims] == [3]
    assert "ends without an error" not in verdict.why_not


def test_ranks_that_were_stopped_by_srun_are_not_the_cause(tmp_path: Path) -> None:
    text = f"{TRACE}torch.distributed.elastic.rendezvous.api.RendezvousClosedError\nsrun: error: n6: task 1: Exited with exit code 1\nslurmstepd: error: *** STEP 21.1 ON n6 CANCELLED AT 2026-01-05T14:27:50 ***\nWARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers\n"  # fmt: skip
    verdict = told(tmp_path, "slurm.out", text).verdict
    assert verdict is not None
    assert verdict.cause is None
    assert {one.name for one in verdict.victims} >= {"peer-lost"}


BARK = (
    f"[rank2]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank 2] {WORK.format(9, 'ALLREDUCE')}\n"
)


@pytest.mark.parametrize(
    "end",
    [
        "E0626 06:24:46.4 1203 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 2 (pid: 1234) of binary: /usr/bin/python3\n",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n",
        "[2026-01-03 09:11:24,579] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -6\n",
    ],
    ids=["torchrun", "abort", "DeepSpeed"],
)  # fmt: skip
def test_abort_by_a_watchdog_is_no_cause(tmp_path: Path, end: str) -> None:
    verdict = told(tmp_path, "a.log", BARK + end).verdict
    assert verdict is not None
    assert verdict.cause is None
    assert "all blame another one" in verdict.why_not


def test_a_thread_of_nccl_that_lost_a_peer_blames_it(tmp_path: Path) -> None:
    text = "n1:5:9 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=0\nn1:5:9 [0] NCCL INFO transport/net.cc:1134 -> 6\nn1:5:9 [0] NCCL INFO proxy.cc:878 -> 6 [Progress Thread]\n"
    verdict = told(tmp_path, "a.log", text).verdict
    assert verdict is not None
    assert verdict.victim_count == 1


def test_attempt_that_torchrun_started_again_has_been_survived(tmp_path: Path) -> None:
    text = f"{OWN}{EXITED}INFO: [default] Worker group FAILED. 3/3 attempts left; will restart worker group\nstep 5\nINFO: [default] worker group successfully finished.\n"
    assert told(tmp_path, "a.log", text).exit_code == 3


GONE_ON = "".join(f"step {number} loss 0.5\n" for number in range(50))
OF_JOB = "slurmstepd: error: *** JOB 1 ON n3 CANCELLED AT 2026-01-01T00:00:00 DUE TO {} ***\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{OF_JOB.format('JOB REQUEUE')}resumed from step 100\nTraining done.\n",
        f"{OF_JOB.format('TIME LIMIT')}{GONE_ON}",
        f"slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.\n{GONE_ON}",
        f"{EXITED.replace('exitcode: 1', 'exitcode: -9')}{GONE_ON}",
        "error: 0.221\nstep 5\nerror: 0.221 (top1) 0.05 (top5)\n",
        f"Task exception was never retrieved\n{OWN}",
    ],
    ids=["requeue", "time limit", "oom_kill", "torchrun", "a figure", "a task"],
)
def test_what_a_job_has_survived_is_no_cause(tmp_path: Path, text: str) -> None:
    verdict = told(tmp_path, "a.log", text).verdict
    assert verdict is not None
    assert verdict.cause is None


def test_job_that_ended_while_it_was_requeued_ended_by_that(tmp_path: Path) -> None:
    end = "srun: error: n3: tasks 2-3: Exited with exit code 1\n"
    found = told(tmp_path, "a.log", f"step 4\n{OF_JOB.format('JOB REQUEUE')}{end}")
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert found.verdict.cause.name == "signal-15"


def test_error_above_a_last_restart_counts(tmp_path: Path) -> None:
    end = "INFO: [default] Worker group FAILED. 1/3 attempts left; will restart worker group\n"
    verdict = told(tmp_path, "a.log", f"{OWN}{end}").verdict
    assert verdict is not None
    assert verdict.cause is not None


BARRIER = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1800000 ms"


def test_errors_of_one_class_with_other_words_are_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "node_b.log").write_text(f"{TRACE}ValueError: b\n")
    found = told(tmp_path, "node_a.log", f"{TRACE}ValueError: a\n")
    assert found.verdict is not None
    assert found.verdict.cause is None
    assert len(found.verdict.candidates) == 1  # of one class
    assert "different errors" in found.verdict.why_not


@pytest.mark.parametrize(
    "said",
    [
        BARRIER,
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: Task 1 heartbeat timeout",
        "RuntimeError: NCCL communicator was aborted on rank 0.",
    ],
)
def test_rank_that_says_that_another_one_is_missing_is_no_cause(tmp_path: Path, said: str) -> None:
    (tmp_path / "1.log").write_text(f"{TRACE}RuntimeError: mat1 and mat2 shapes differ\n")
    verdict = told(tmp_path, "0.log", f"{TRACE}{said}\n").verdict
    assert verdict is not None
    assert verdict.cause is not None
    assert verdict.cause.rank == 1
    assert [one.rank for one in verdict.victims] == [0]


def test_what_python_prints_at_its_exit_is_no_end(tmp_path: Path) -> None:
    found = told(tmp_path, "a.log", f"done\nError in atexit._run_exitfuncs:\n{OWN}")
    assert found.verdict is not None
    assert found.verdict.cause is None


@pytest.mark.parametrize(
    ("why", "said"), [("TIME LIMIT", "its time was over"), ("PREEMPTION", "a higher priority")]
)
def test_what_slurm_ends_is_told_as_such(tmp_path: Path, why: str, said: str) -> None:
    text = f"step 4\nslurmstepd: error: *** JOB 5 ON n12 CANCELLED AT 2026-03-11T13:26:25 DUE TO {why} ***\n"
    assert said in told(tmp_path, "slurm.out", text).meaning


def test_error_before_more_lines_is_shown_and_not_judged(tmp_path: Path) -> None:
    found = told(tmp_path, "a.log", f"{OWN}retry 1\nstep 5\n")
    assert found.exit_code == 3
    shown = " ".join(" ".join(line for line, _ in lines(found)).split())
    assert "none of 1 log ends with an error" in shown
    assert "; the last that logs state, before more lines" in shown
    assert "worker-exception: ValueError: no such bucket" in shown
    assert told(tmp_path, "a.log", f"{OWN}{'step 5' * 40}\n" * 40).verdict is not None


def test_numbers_of_tokens_are_no_secrets(tmp_path: Path) -> None:
    found = told(tmp_path, "a.log", f"num_tokens: 788088885 | api_token=s3cr3tw0rd\n{OWN}")
    assert "num_tokens: 788088885 | api_token=***" in found.context
