"""A supervisor that lies to those who look at its run: the view ends with a sentence, in time."""

from __future__ import annotations

import json
import random
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterctl.dataclass_json import encode
from clusterctl.errors import CouldNotFindOut
from clusterctl.launch.head import wire
from clusterctl.launch.head.attached import follow
from clusterctl.launch.head.link import Link
from clusterctl.launch.state import NodeState, RunState
from clusterctl.output import Output
from tests.clusterctl.hostile.campaign import TIMES, repeat
from tests.clusterctl.hostile.mangle import mangle
from trainer.runlog.telemetry import Event


def said() -> list[dict[str, Any]]:
    state = RunState(nodes={"n1": NodeState("running"), "n2": NodeState("ready")})
    state.add(Event("checkpoint", "in 2 s", {"path": "/x/epoch0-global_step10"}, 10, 1.0))
    picture = {"type": "state", "state": wire.picture(state), "events": [encode(state.events[0])]}
    result = {
        "exit_code": 1, "reason": "rank 1 on n1: exit code 1", "failed_rank": 1, "last_lines": ["x"], "leftovers": [],
        "unconfirmed": [], "hint": None, "verdict": None, "stacks": None, "cause": None, "attempts": 1,
    }  # fmt: skip
    return [{"type": "run", "run": "r"}, picture, picture, {"type": "result", "result": result}]


def speak(listener: socket.socket, lines: list[bytes]) -> None:
    with suppress(OSError):
        end, _ = listener.accept()
        with end:
            for line in lines:
                end.sendall(line)


@pytest.mark.parametrize("times", TIMES)
def test_views(times: int, tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def work(rng: random.Random) -> None:
        lines = [json.dumps(one).encode() + b"\n" for one in said()]
        lines = [mangle(rng, one) if rng.random() < 0.4 else one for one in lines]
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(1)
            thread = threading.Thread(target=speak, args=(listener, lines), daemon=True)
            thread.start()
            output = Output()
            try:
                result = follow(Link(path), tmp_path, output, [], started_it=False)
            except CouldNotFindOut as error:
                output.warn(f"error: {error}")
            else:
                assert result is not None
                assert isinstance(result.reason, str)
                for text in (result.reason, *result.last_lines, *result.leftovers):
                    output.line(text)
            thread.join(5)
            assert not thread.is_alive()

    repeat(times, "supervisor", work, 5.0)
