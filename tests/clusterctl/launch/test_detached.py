"""What `launch --detach` waits for: the first of its nodes, the end of the run, or a while."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import CouldNotFindOut
from clusterctl.launch.head import link as link_module
from clusterctl.launch.head import session
from clusterctl.launch.head.link import Link
from clusterctl.launch.head.views import Views
from clusterctl.launch.state import NodeState, RunResult, RunState

ABOUT = {"run_id": "1", "run_dir": "/out/001"}


@pytest.fixture
def views(tmp_path: Path) -> Iterator[tuple[Views, Link]]:
    made = Views(lambda: tmp_path / "socket", dict(ABOUT), lambda _: None)
    link = Link(tmp_path / "socket")
    yield made, link
    link.close()
    made.end(RunResult(0, ""))


def test_slow_login_is_no_failure(views, monkeypatch: pytest.MonkeyPatch) -> None:
    made, link = views
    made.update(RunState())  # before the first node is connected
    monkeypatch.setattr(session, "BEGIN_S", 0.5)
    about, result = session._begun(link, [])
    assert (about["run_dir"], result) == ("/out/001", None)


def test_first_node_ends_the_waiting(views) -> None:
    made, link = views
    state = RunState()
    state.nodes["n1"] = NodeState("running")
    made.update(state)
    assert session._begun(link, [])[1] is None


def test_end_of_the_run_is_told(views) -> None:
    made, link = views
    made.end(RunResult(3, "n1: no route to host"))
    _, result = session._begun(link, [])
    assert result is not None
    assert (result.exit_code, result.reason) == (3, "n1: no route to host")


def test_those_that_wait_to_be_accepted_get_the_result_too(tmp_path: Path) -> None:
    made = Views(lambda: tmp_path / "socket", dict(ABOUT), lambda _: None)
    links = [Link(tmp_path / "socket") for _ in range(10)]
    made.end(RunResult(3, "n1: no route to host"))
    assert [session._begun(link, [])[1].exit_code for link in links] == [3] * 10  # type: ignore[union-attr]
    for link in links:
        link.close()


def test_ctrl_c_and_a_supervisor_that_dies_end_it_too(tmp_path: Path, views) -> None:
    _, link = views
    assert session._begun(link, [2])[1] is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "dead"))
        listener.listen()
        other = Link(tmp_path / "dead")
        listener.accept()[0].close()
    with pytest.raises(CouldNotFindOut, match="the supervisor"):
        session._begun(other, [])
    other.close()


def test_supervisor_that_takes_no_connection_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped: those that asked before fill its queue."""
    monkeypatch.setattr(link_module, "CONNECT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "stopped"))
        listener.listen(1)
        before = [socket.socket(socket.AF_UNIX) for _ in range(2)]  # one more than its queue takes
        for one in before:
            one.connect(str(tmp_path / "stopped"))
        with pytest.raises(TimeoutError, match="Connection timed out"):
            Link(tmp_path / "stopped")
        for one in before:
            one.close()
