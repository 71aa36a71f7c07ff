"""Heartbeats are read in a folder that a process names: what anybody may put there harms nobody."""

from __future__ import annotations

import collections
import json
import os
import time
from pathlib import Path

import pytest

from clusterctl.payload.jobs.heartbeats import heartbeat

Seen = collections.namedtuple("Seen", "environ uid")
GOOD = {"pid": 7, "step": 3, "phase": "forward"}


def seen(folder: Path) -> Seen:
    return Seen(b"CLUSTERCTL_HEARTBEATS=%s\0" % os.fsencode(folder), os.getuid())


def test_beat_of_the_process_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text(json.dumps({**GOOD, "mono_s": time.monotonic()}))
    found = heartbeat(seen(tmp_path), 7, 0)
    assert (found["step"], found["phase"]) == (3, "forward")


@pytest.mark.parametrize("what", ["pipe", "link", "theirs", "text", "deep", "other"])
def test_anything_else_is_no_beat(tmp_path: Path, what: str) -> None:
    path, good = tmp_path / "0.json", json.dumps({**GOOD, "mono_s": 1.0})
    if what == "pipe":
        os.mkfifo(path)  # a plain open would wait for a writer for ever
    elif what == "link":
        (tmp_path / "secret").write_text(good)
        path.symlink_to(tmp_path / "secret")
    elif what == "theirs":
        if os.getuid() != 0:
            pytest.skip("needs root to make another user's file")
        path.write_text(good)
        os.chown(path, 65534, 65534)
    else:
        texts = {"text": json.dumps({**GOOD, "mono_s": "x"}), "deep": "[" * 60000, "other": "[1]"}
        path.write_text(texts[what])
    assert heartbeat(seen(tmp_path), 7, 0) is None
