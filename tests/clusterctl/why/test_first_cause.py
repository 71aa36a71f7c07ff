"""The first cause by recorded logs alone: right where it can be known, never a wrong name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launch.causes import signatures
from clusterctl.launch.causes.kinds import Kind
from clusterctl.launch.causes.texts import classify, read
from clusterctl.why.explain import Explanation, explain_logs
from clusterctl.why.show import lines
from tests.clusterctl.why.crashing_ranks import SCENARIOS

LOGS = Path(__file__).parents[2] / "captures" / "why"
# name: (class, rank that is named, ranks that have it)
KNOWN = {
    "nccl-ecc": ("cuda-error", (1,)),
    "nccl-illegal-access": ("cuda-error", (2,)),
    "nccl-oom": ("cuda-oom", (3,)),
    "torchrun-console": ("signal-9", ()),
    "torchrun-cut": ("cuda-error", ()),
    "unmarked": ("worker-exception", ()),
    "worker-died-in-hook": ("worker-died", (2,)),
    "flood": ("worker-exception", (1,)),
    "nccl-last-error": ("disk-full", (1,)),
    "nccl-last-error-marked": ("environment", (1,)),
    **{name: expected for name, expected in SCENARIOS.items() if expected[0] and name != "killed"},
}


def explained(name: str) -> Explanation:
    return explain_logs(LOGS / name)


@pytest.mark.parametrize("name", KNOWN)
def test_first_cause_of_recorded_ranks(name: str) -> None:
    kind, ranks = KNOWN[name]
    found = explained(name)
    assert found.verdict is not None
    cause = found.verdict.cause
    assert cause is not None
    assert cause.name == kind
    if name == "torchrun-console":
        assert cause.rank == 1
    elif len(ranks) == 1:
        assert cause.rank == ranks[0]
    else:  # each has it, and nothing says which was first
        assert (cause.rank, found.verdict.ranks) == (None, ranks)
    assert cause.node is None or name == "torchrun-console"
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("name", "said", "clue"),
    [
        ("nccl-timeout", "the log of rank 3 ends without an error", "ALLREDUCE number 15734"),
        ("nccl-network", "all blame another one", "status=12"),
        ("watchdog-stuck", "all blame another one", ""),
        ("dump-signal", "all blame another one", "rank 5 gave up a collective"),
        ("nccl-warnings", "none of 2 logs ends with an error", "rank 0-1: socketStartConnect"),
        ("nccl-warnings", "none of 2 logs ends with an error", "rank 1: Call to ibv_reg_mr_iova2"),
        ("killed", "the log of rank 2 ends without an error", ""),  # nobody says how many ranks
        ("two-errors", "nothing says which one came first", ""),
        ("survived", "none of 3 logs ends with an error", ""),
    ],
)
def test_nobody_is_named_without_evidence(name: str, said: str, clue: str) -> None:
    found = explained(name)
    assert found.verdict is not None
    assert found.verdict.cause is None
    assert said in found.verdict.why_not
    assert any(clue in text for text in found.clues) or not clue
    assert found.exit_code == 3


def test_errors_of_which_none_is_known_to_be_first_are_shown() -> None:
    found = explained("two-errors")
    assert found.verdict is not None
    assert {one.name for one in found.verdict.candidates} == {"worker-exception", "storage-error"}


def test_first_failure_that_torchrun_saw_is_no_proof(tmp_path: Path) -> None:
    report = (LOGS / "torchrun-console" / "console.log").read_text()
    report = report.replace("exitcode  : -9", "exitcode  : 1").replace(
        "[rank0]: RuntimeError: ", ""
    )
    (tmp_path / "console.log").write_text(report)
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    assert found.verdict.cause is None
    assert "torchrun saw rank 1 end first (exit code 1)" in found.verdict.why_not


def test_rank_without_a_word_blames_nobody() -> None:
    text = "\n".join(line for line, _ in lines(explained("torchrun-exit")))
    assert "1 rank ended without a reason: 1 exit code 1" in text
    assert "blame" not in text


@pytest.mark.parametrize("name", ["nccl-last-error", "nccl-last-error-marked"])
def test_last_error_of_nccl_is_shown_with_its_log(name: str) -> None:
    found = explained(name)
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert found.verdict.cause.evidence is not None
    last = found.context[-1].removeprefix("[rank1]: ")
    assert found.context[-2].endswith("Last error:")
    assert found.verdict.cause.evidence.line.endswith(f"Last error: {last}")


def test_last_error_above_the_words_of_torchrun_is_found(tmp_path: Path) -> None:
    text = (LOGS / "nccl-last-error" / "1.log").read_text()
    report = (LOGS / "torchrun-exit" / "console.log").read_text()
    (tmp_path / "console.log").write_text(text + report.replace("rank      : 9", "rank      : 1"))
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    told = (found.verdict.cause, *found.verdict.candidates)
    assert [one.kind for one in told if one is not None] == [Kind.DISK_FULL]


def test_error_of_nccl_that_a_program_survived_is_no_end(tmp_path: Path) -> None:
    text = (LOGS / "nccl-last-error" / "1.log").read_text()
    (tmp_path / "1.log").write_text(text + "".join(f"step {n} loss 0.1\n" for n in range(9)))
    found = explain_logs(tmp_path).verdict
    assert found is not None
    assert found.cause is None


def test_report_of_torchrun_is_no_error_of_a_rank(tmp_path: Path) -> None:
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    (tmp_path / "console.log").write_text(f"step 1\nTraceback (most recent call last):\n{text}\n")
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    assert found.verdict.cause is None


def test_victims_are_counted_by_what_they_say() -> None:
    assert explained("nccl-oom").victims == {"NCCL lost a peer": 2, "watchdog timed out": 1}
    assert explained("exception").victims == {"connection closed by peer": 2}


def test_error_before_a_flood_is_found() -> None:
    found = explained("flood")
    assert (LOGS / "flood" / "1.log").stat().st_size > 1 << 17
    assert found.context[-1].endswith("TypeError: view() argument must be a tuple of ints")


@pytest.mark.parametrize("one", signatures.SIGNATURES, ids=lambda one: one.name)
def test_each_signature_has_a_recorded_log(one: signatures.Signature) -> None:
    lines = (LOGS / "signatures" / f"{one.name}.txt").read_text().splitlines()
    stated = read(lines)
    assert stated is not None
    assert stated.kind == one.kind
    assert signatures.find(stated.text) == one
    assert classify(stated.text).is_of_node == one.is_of_node
    assert one.advice
    assert one.meaning


def test_no_log_is_left_without_a_signature() -> None:
    names = {path.stem for path in (LOGS / "signatures").iterdir()}
    assert names == {one.name for one in signatures.SIGNATURES}


REFUSAL = "error: dataset.frames is 17, and the model takes 16\n  a.mp4: 17 frames\n  hint: set dataset.frames = 16\n"  # fmt: skip


def test_what_the_trainer_refuses_is_told_with_its_own_hint(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text(f"reads the data\n{REFUSAL}")
    found = explain_logs(tmp_path)
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert found.verdict.cause.name == "refused"
    assert found.advice == "set dataset.frames = 16"
    assert found.context[-3:] == tuple(REFUSAL.splitlines())
    text = "\n".join(line for line, _ in lines(found))
    assert "unknown error" not in text
    assert "do        set dataset.frames = 16" in text


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("error: rank 1: ValueError: no words\n  hint: none", "worker-exception"),
        ("error: it does not work\n", "worker-exception"),
        ("error: it does not work\nstep 4\n  hint: of another", "worker-exception"),
        ("error: there is no config file x\n  hint: look", "missing-file"),
    ],
)
def test_only_a_refusal_with_its_hint_is_one(log: str, kind: str) -> None:
    stated = read(log.splitlines())
    assert stated is not None
    assert stated.kind == kind


def test_hint_of_a_known_error_comes_before_what_is_always_said(tmp_path: Path) -> None:
    text = "error: there is no config file x\n  hint: the nearest is y.py\n"
    (tmp_path / "0.log").write_text(text)
    found = explain_logs(tmp_path)
    assert found.advice.startswith("the nearest is y.py (the log's own hint); check the path")
