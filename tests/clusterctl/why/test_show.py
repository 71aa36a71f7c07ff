"""What people read of an explanation."""

from __future__ import annotations

from pathlib import Path

from clusterctl.launch.causes.kinds import Cause, Kind
from clusterctl.why.explain import Explanation
from clusterctl.why.show import lines
from clusterctl.why.verdict import Verdict


def cause(kind: Kind, rank: int | None) -> Cause:
    return Cause(kind, node="n1", rank=rank)


def test_a_long_line_of_a_log_is_shown_to_its_end_and_a_log_of_no_rank_is_no_rank() -> None:
    told = f"RuntimeError: {'word ' * 30}[the proof]"
    followed = (cause(Kind.PEER_LOST, 0), cause(Kind.PEER_LOST, None))
    verdict = Verdict(cause(Kind.WORKER_EXCEPTION, 1), victims=followed, victim_count=2)
    found = Explanation(
        Path("logs"), "failed", "2 logs", verdict=verdict, context=("step 5", told, "x" * 9000),
        log="1.log", victims={"connection closed by peer": 2},
    )  # fmt: skip
    shown = [text for text, _ in lines(found)]
    assert max(map(len, shown)) <= 80
    at = next(index for index, text in enumerate(shown) if text.startswith("  | RuntimeError"))
    assert " ".join(text[4:] for text in shown[at : at + 3]).startswith(told)
    assert sum("xxx" in text for text in shown) < 10
    assert "cascade   1 rank and 1 log of an unknown rank followed" in "\n".join(shown)
