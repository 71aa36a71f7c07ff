"""A launch from start to end over real ssh servers: what goes well and what dies."""

from __future__ import annotations

import os
import signal
import time

from tests.clusterctl.launch.harness import WAIT, tagged


def test_ranks_of_two_nodes_run_to_their_end_and_each_has_its_log(bench) -> None:
    result, plan = bench.run(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
        "print('on', os.environ['CLUSTERCTL_NODE'])\n",
        slots=2,
    )
    assert result.ok, result
    assert result.reason == "all ranks have ended well"
    logs = {
        path.name: path.read_text() for path in (plan.run_dir / "ranks").glob("[0-9]*.log")
    }
    assert logs == {
        f"{rank}.log": f"rank {rank} of 4\non node-{1 + rank // 2}\n" for rank in range(4)
    }


def test_killed_rank_fails_the_launch_within_ten_seconds_and_is_named(bench) -> None:
    launch = bench.launch(bench.plan(WAIT, slots=2))
    pids = launch.pids(4)
    begun = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    result = launch.result()
    seconds = time.monotonic() - begun
    print(f"rank death to launch end: {seconds:.2f} s")
    assert seconds < 10
    assert result.exit_code == 1
    assert result.reason == "rank 2 on node-2: killed by SIGKILL"
    assert result.failed_rank == 2
    assert result.last_lines == ("up",)
    assert result.leftovers == result.unconfirmed == ()
    assert tagged(launch.plan.run_id) == []
