"""Kernel logs with every prefix; Xids with and without MIG, with and without a number."""

from __future__ import annotations

from collections import Counter

import pytest

from checks.facts import KernelLog, Unknown
from checks.finding import Action, Verdict
from checks.parsers import kernel_log as log
from checks.reference.xid_codes import grade
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking

NOW = 1795226227.0  # 2026-11-21


def events(name: str):
    return log.read_events(recorded(f"dmesg/{name}"), 2400000.0, NOW)


def test_xid_lines_with_a_mig_instance_and_of_every_source() -> None:
    found = events("xid-lines.txt")
    assert [one.xid for one in found] == [94, 64, 63, 94, 94, 95, 79, 119, 149, 31, 12028, None]
    assert [one.kind for one in found[8:]] == ["xid", "xid", "sxid", "pcie-slow"]
    assert found[-1].subject == "0000:9c:00.0"
    mig = found[3]
    assert (mig.subject, mig.xid) == ("0000:01:00", 94)
    assert found[0].age_s == pytest.approx(2400000.0 - 2397166.983093)
    assert isinstance(found[2].age_s, Unknown)


def test_fallen_off_the_bus_without_a_number_over_three_lines() -> None:
    found = events("fallen-off-bus-no-xid.txt")
    assert [(one.kind, one.subject) for one in found] == [
        ("fell-off-bus", "0000:b3:00.0"), ("probe-failed", ""),
    ]  # fmt: skip


def test_gsp_timeouts_of_dmesg_t() -> None:
    found = events("dmesg-with-xid-119.log")
    assert {(one.kind, one.xid, one.subject) for one in found} == {("xid", 119, "0000:9b:00")}
    assert all(isinstance(one.age_s, float) for one in found)


def test_oom_and_user_errors() -> None:
    kinds = Counter((one.kind, one.xid) for one in events("oom-and-xid.log"))
    assert kinds[("xid", 13)] == 16
    assert kinds[("xid", 43)] == 1
    assert kinds[("oom", None)] == 7


def test_link_that_flaps() -> None:
    found = events("ib-link-flap.syslog")
    assert Counter(one.kind for one in found) == {"link-lost": 6, "link-back": 6}
    assert {one.subject for one in found} == {"ib6"}
    # syslog names no year: August is the last one before now.
    assert all(0 < one.age_s < 366 * 86400 for one in found)


def test_kmsg_with_microseconds() -> None:
    found = events("kmsg-peermem.log")
    assert {one.kind for one in found} == {"peermem"}
    assert found[0].age_s == pytest.approx(2400000.0 - 227.996636)
    assert {one.kind for one in events("nccl-segfault.log")} == {"nccl-crash"}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[ 5.000000] mce: [Hardware Error]: Machine check events logged", "mce"),
        ("[ 5.000000] watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", "lockup"),
        ("[ 5.000000] INFO: task nvidia-smi:77 blocked for more than 120 seconds.", "hung-task"),
        ("[ 5.000000] EXT4-fs (sda1): Remounting filesystem read-only", "read-only"),
        ("[ 5.000000] nvme nvme0: I/O 12 QID 3 timeout, aborting", "disk"),
        ("[ 5.000000] nfs: server fs1 not responding, still trying", "nfs"),
        ("[ 5.000000] mlx5_core 0000:1a:00.0 ibp26s0: Link down", "link-lost"),
        ("[ 5.000000] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "sxid-fatal"),
    ],
)  # fmt: skip
def test_other_lines_that_mean_something(line: str, kind: str) -> None:
    (found,) = log.read_events(line, 10.0, NOW)
    assert (found.kind, found.age_s) == (kind, 5.0)
    assert not found.line.startswith("[")


def test_a_log_that_nobody_may_read_is_unknown_and_an_empty_one_is_not() -> None:
    refused = ended("", 1, "dmesg: read kernel buffer failed: Operation not permitted")
    found = log.parse_kernel_log(refused, 1.0, NOW)
    assert isinstance(found, Unknown)
    assert "not permitted" in found.reason
    assert isinstance(log.parse_kernel_log(lacking(), 1.0, NOW), Unknown)
    start = "#first\t[    0.000000] Linux version 6.8.0\n"
    quiet = log.parse_kernel_log(ended(f"#lines\t812\n{start}"), 1.0, NOW)
    assert quiet == KernelLog((), 812)


@pytest.mark.parametrize(
    ("number", "text", "verdict", "action"),
    [
        (79, "GPU has fallen off the bus", Verdict.FAIL, Action.REBOOT),
        (13, "Graphics Exception", Verdict.WARN, Action.RESTART_APP),
        (43, "Ch 00000008", Verdict.PASS, Action.NONE),
        (64, "Row Remapper Error", Verdict.FAIL, Action.SERVICE),
        (119, "Timeout", Verdict.FAIL, Action.RESET_GPU),
        (149, "NETIR Fatal XC0 i0 Link -1", Verdict.FAIL, Action.RESET_GPU),
        (149, "NETIR Nonfatal XC0 i0 Link -1", Verdict.WARN, Action.NONE),
        (154, "GPU recovery action changed: Node Reboot Required", Verdict.FAIL, Action.REBOOT),
        (154, "GPU recovery action changed: GPU Reset Required", Verdict.FAIL, Action.RESET_GPU),
        (154, "Drain and Reset", Verdict.FAIL, Action.RESET_GPU),
        (154, "None", Verdict.WARN, Action.NONE),
        (9999, "new", Verdict.WARN, Action.NONE),
    ],
)
def test_grades(number: int, text: str, verdict: Verdict, action: Action) -> None:
    found = grade(number, text)
    assert (found.verdict, found.action) == (verdict, action)
