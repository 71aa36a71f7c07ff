"""What recordings of earlier versions depend on."""

from __future__ import annotations

from dashboards.recording.codec import CLASSES

WRITTEN = {
    "Alert", "AlertBook", "Breach", "Clock", "Disk", "Event", "EventSample", "Gpu", "Link", "NodeDown",
    "NodeSample", "NodeState", "Process", "Restored", "Ring", "RuleMemory", "RunOpened", "RunState", "State",
    "StepRecord", "StepSample", "Thin", "Tick", "Track", "Xid",
}  # fmt: skip


def test_no_class_whose_name_is_in_recordings_is_renamed() -> None:
    assert set(CLASSES) >= WRITTEN
