"""Real ranks over gloo: who is slow stands in the telemetry, with the phase and what was read."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.trainer import ranks
from trainer.data.digits import main as render
from trainer.runlog.slow_ranks import NAME, slow_ranks
from trainer.runlog.telemetry import Event, read

STEPS = 80


@pytest.mark.long
@pytest.mark.timeout(ranks.LIMIT_S + 60)
def test_slow_ranks_are_named_with_their_phases(tmp_path: Path) -> None:
    render(["--out", str(tmp_path / "clips"), "--clips", "96", "--seed", "1"])
    config = tmp_path / "tiny.py"
    config.write_text(ranks.TINY.replace("ckpt_every = 4", "ckpt_every = 0"))
    words = [str(config), "--data-path", str(tmp_path / "clips" / "digits.csv")]
    words += ["--run-dir", str(tmp_path / "run"), "--max-steps", str(STEPS), "--epochs", "1000"]
    (done,) = ranks.train([[*words, "harm=slow_forward_and_slow_loader"]], 4, tmp_path / "ranks")
    assert [rank.code for rank in done] == [0] * 4, done[0].err
    events = [one for one in read(tmp_path / "run") if isinstance(one, Event)]
    told = [slow_ranks(one) for one in events if one.name == NAME]
    # On a machine that does other work, too, another rank may really be late for a while.
    named = Counter((one.rank, one.phase) for ranks_of_one in told for one in ranks_of_one)
    assert {one for one, _ in named.most_common(2)} == {(1, "forward"), (2, "data")}, told
    assert {one.host for ranks_of_one in told for one in ranks_of_one} == {socket.gethostname()}
