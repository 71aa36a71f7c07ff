"""A rank that fails is gone within its limit, whatever its cleaning up waits for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.ranks import TINY, environment, fork, wait
from trainer.data.digits import main as render
from trainer.engine.process_group import ends_after
from trainer.errors import EngineError
from trainer.train import threads_end

pytestmark = pytest.mark.timeout(300)


def stuck() -> None:
    with ends_after(0.2, EngineError("it hangs", hint="end it")):
        threading.Event().wait()


def in_time() -> None:
    with ends_after(0.2, EngineError("it hangs")):
        pass
    time.sleep(0.5)  # the limit passes: nothing must happen
    print("well")


def test_a_wait_without_end_is_ended_with_its_words_and_one_that_ends_is_left(
    tmp_path: Path,
) -> None:
    processes = [
        fork(work, env=environment(0, 1, free_port()), log=tmp_path / work.__name__)
        for work in (stuck, in_time)
    ]
    assert wait(processes, 60) == [1, 0]
    assert (tmp_path / "stuck").read_text() == "error: it hangs\n  hint: end it\n"
    assert (tmp_path / "in_time").read_text() == "well\n"


def test_threads_that_the_interpreter_waits_for_are_waited_for_so_long() -> None:
    over = threading.Event()
    daemon = threading.Thread(target=over.wait, daemon=True)
    daemon.start()
    assert threads_end(0.1)
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not threads_end(0.1)
    over.set()
    assert threads_end(10)


def fails_and_cannot_leave(words: list[str]) -> None:
    from trainer import build_run as assemble
    from trainer import train
    from trainer.engine.base import Engine

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file", "/models/vae")

    train._LEAVE_S = 0.5
    Engine.close = lambda self: threading.Event().wait()  # type: ignore[method-assign,assignment,return-value]
    assemble.build_parts = missing  # type: ignore[assignment]
    train._exit(train.main(words))


@pytest.mark.long
def test_a_rank_whose_process_group_cannot_be_left_ends_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    render(["--out", str(tmp_path / "clips"), "--clips", "24", "--seed", "1"])
    words = [str(tmp_path / "tiny.py"), "--data-path", str(tmp_path / "clips/digits.csv"), "--run-dir", str(tmp_path / "run")]  # fmt: skip
    log = tmp_path / "log"
    assert wait([fork(fails_and_cannot_leave, words, env=environment(0, 1, free_port()), log=log)], 120) == [1]  # fmt: skip
    said = log.read_text()
    assert "'/models/vae' (this rank could not end within 0.5 s and is ended)" in said
    assert "Traceback" not in said
