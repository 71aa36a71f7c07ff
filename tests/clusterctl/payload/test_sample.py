"""Which GPUs of a node samplers take, by what nvidia-smi says of their memory."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.payload import sample


class Failed(Exception):
    """The payload has told why there are no samplers."""


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("0, 5\n1, 70000\n2, 600\n", ["0", "2"]),
        ("0, [N/A]\n1, 5\n", ["1"]),
        ("0, [N/A]\n1, [N/A]\n", "how much memory of GPU 0 is in use is not known; --gpus 0"),
        ("0, [N/A]\n1, 70000\n", "how much memory of GPU 0 is in use is not known; --gpus 0"),
        ("0, [Unknown Error]\n", "how much memory of GPU 0 is in use is not known"),
        ("0, \u00b2\n", "how much memory of GPU 0 is in use is not known"),
        ("0, 70000\n1, 70000\n", "all 2 GPUs are in use"),
        ("0, 70000\n", "the only GPU is in use"),
        ("", [None]),
    ],
)
def test_memory_that_is_not_known_is_not_free(
    monkeypatch: pytest.MonkeyPatch, rows: str, found: Any
) -> None:
    def give_up(text: str) -> None:
        raise Failed(text)

    monkeypatch.setattr(sample, "ARGS", {"gpus": None})
    monkeypatch.setattr(sample, "give_up", give_up)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = {"state": "ended", "rc": 0, "out": rows, "err": ""}
    monkeypatch.setattr(sample, "section", lambda *_: answer)
    if isinstance(found, list):
        assert sample.slots() == found
        return
    with pytest.raises(Failed, match=found.replace("(", r"\(")):
        sample.slots()
