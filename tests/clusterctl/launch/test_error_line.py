"""The line of a log that states why a rank ended."""

from __future__ import annotations

import pytest

from clusterctl.launch.causes.texts import classify
from clusterctl.launch.deaths import SHOWN_LINES, sentence, shown

TRACEBACK = """[W1122 12:45:33.291 Utils.hpp:137] Warning: TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated
Traceback (most recent call last):
  File "/opt/train.py", line 45, in main
    raise TypeError("Plain ClassVar")
TypeError: Plain ClassVar"""

LOGS = {
    "a warning alone states nothing": ("[W] Warning: deprecated\nup", None),
    "empty": ("", None),
    "traceback": (TRACEBACK, "TypeError: Plain ClassVar"),
    "the trainer's line after its traceback": (
        TRACEBACK + "\nerror: rank 1: TypeError: Plain ClassVar",
        "TypeError: Plain ClassVar",
    ),
    "an error with details and a hint below it": (
        "step 3\nerror: no batch for step 4: no clip is left\n  a.mp4: damaged\n  hint: check",
        "no batch for step 4: no clip is left",
    ),
    "a chain ends with what the program died of": (
        (
            "Traceback (most recent call last):\nKeyError: 'a'\n\nDuring handling of the above "
            "exception, another exception occurred:\n\nTraceback (most recent call last):\n"
            "trainer.errors.ConfigError: no such key"
        ),
        "trainer.errors.ConfigError: no such key",
    ),
    "what Python ignores at its end is not the reason": (
        TRACEBACK + "\nException ignored in: <function f at 0x7f>\nTraceback (most recent call "
        "last):\nBrokenPipeError: [Errno 32] Broken pipe",
        "TypeError: Plain ClassVar",
    ),
    "an exception without a text": (
        "Traceback (most recent call last):\nMemoryError",
        "MemoryError",
    ),
    "the interpreter's own end": (
        "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):",
        "Fatal Python error: Segmentation fault",
    ),
    "prose that names an error is no error": ("retry after TimeoutError was seen", None),
}


@pytest.mark.parametrize("name", LOGS)
def test_sentence(name: str) -> None:
    log, expected = LOGS[name]
    assert sentence(log.splitlines()) == expected


def test_lines_shown_begin_with_the_error_where_it_stands_far_up() -> None:
    lines = ["step 1", "error: no batch", *(f"  clip {n}" for n in range(60)), "  hint: check"]
    assert shown(lines)[0] == "error: no batch"
    assert len(shown(lines)) == SHOWN_LINES
    assert shown(["a", *lines[:2], "b"]) == ("a", "step 1", "error: no batch", "b")
    assert shown([str(n) for n in range(100)])[-1] == "99"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [../third_party/gloo/pair.cc:547] Connection closed by peer [10.0.0.2]:4711",
        (
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly "
            "due to a network error or a remote process exiting prematurely."
        ),
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_the_end_of_a_peer_is_told_from_a_reason_of_its_own(text: str) -> None:
    assert classify(text).kind.is_consequence
    missing = "FileNotFoundError: [Errno 2] No such file: 'peer.csv'"
    assert not classify(missing).kind.is_consequence
