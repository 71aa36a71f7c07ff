"""What nodes say between two attempts: which checkpoint all of them see, who is not clean."""

from __future__ import annotations

from clusterctl.launch.restart.between import by_node, newest


def test_newest_is_what_every_node_sees_and_nobody_found_damaged() -> None:
    seen = [["c1", "c2", "c3"], ["c1", "c2"]]
    assert newest(seen, ()) == "c2"
    assert newest(seen, {"c2"}) == "c1"
    assert newest(seen, {"c1", "c2"}) is None
    assert newest([], ()) is None


def test_order_is_that_of_writing_not_of_steps() -> None:
    """A run that went back writes lower steps later."""
    seen = [["epoch0-global_step50", "epoch0-global_step30"]]
    assert newest(seen, ()) == "epoch0-global_step30"


def test_lines_of_nodes_become_reasons() -> None:
    lines = ["n1: pid 3 (python3, state D)", "n2: tcp 3.0 s: no answer"]
    assert by_node(lines, "there is still") == {
        "n1": "there is still pid 3 (python3, state D)",
        "n2": "there is still tcp 3.0 s: no answer",
    }
