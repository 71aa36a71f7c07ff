"""Kernel logs with every prefix; Xids with and without MIG, with and without a number."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from checks.facts import KernelLog, Unknown
from checks.finding import Action, Verdict
from checks.parsers import kernel_log as log
from checks.reference.xid_codes import GRADES, grade, worst
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking
from tests.reference_tables import catalogue

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
        (154, "changed from 0x0 (None) to 0x2 (OS Reboot)", Verdict.FAIL, Action.REBOOT),
        (154, "changed from 0x0 (None) to 0x2 (Node Reboot Required)", Verdict.FAIL, Action.REBOOT),
        (
            154,
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Verdict.FAIL,
            Action.RESET_GPU,
        ),
        (154, "changed from 0x2 (OS Reboot) to 0x3 (Drain P2P)", Verdict.FAIL, Action.RESTART_APP),
        (154, "changed from 0x0 to 0x4 (Drain and Reset)", Verdict.FAIL, Action.RESET_GPU),
        (
            154,
            "changed from 0x0 (None) to 0x5 (Recover IMEX Domain)",
            Verdict.FAIL,
            Action.RESTART_APP,
        ),
        (154, "changed from 0x0 (None) to 0x6 (Bus Reset)", Verdict.FAIL, Action.RESET_GPU),
        (154, "changed from 0x0 (None) to 0X7 (System Reboot)", Verdict.FAIL, Action.REBOOT),
        (154, "changed from 0x2 (OS Reboot) to 0x0 (None)", Verdict.PASS, Action.NONE),
        (154, "changed from 0x0 (None) to 0x1f (Unknown)", Verdict.WARN, Action.NONE),
        (154, "Drain P2P", Verdict.FAIL, Action.RESTART_APP),
        (151, "Key rotation error", Verdict.FAIL, Action.REBOOT),
        (168, "Errors found in WPR", Verdict.FAIL, Action.REBOOT),
        (172, "Uncorrectable SRAM error", Verdict.FAIL, Action.RESET_GPU),
        (
            149,
            "NETIR_LINK_EVT Link Fatal XC0 i0 Link 08 (0x004505c6 0x0)",
            Verdict.FAIL,
            Action.RESET_GPU,
        ),
        (
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x026505c6 0x00000000)",
            Verdict.WARN,
            Action.NONE,
        ),
        (
            149,
            "NETIR_BER_EVENT Non-fatal XC0 i0 Link 01 (0x00082226 0x1)",
            Verdict.WARN,
            Action.NONE,
        ),
        (
            145,
            "RLW_REMAP XC0 i0 Link 03 (0x00000082 0x00000040 0x0)",
            Verdict.FAIL,
            Action.RESET_GPU,
        ),
        (145, "RLW_REMAP XC0 i0 Link 03 (0x00000082 0x00000004 0x0)", Verdict.WARN, Action.NONE),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 03 (0x21 0x1)", Verdict.WARN, Action.NONE),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x0 0x0)", Verdict.FAIL, Action.RESET_GPU),
        (57, "", Verdict.WARN, Action.NONE),
        (9999, "new", Verdict.WARN, Action.NONE),
    ],
)
def test_grades(number: int, text: str, verdict: Verdict, action: Action) -> None:
    found = grade(number, text)
    assert (found.verdict, found.action) == (verdict, action)


def test_every_number_of_the_catalogue_has_a_grade() -> None:
    assert set(range(1, 173)) <= set(GRADES)
    shown = [part for numbers, _ in catalogue() for part in numbers.split("-")]
    assert shown[0] == "1"
    assert int(shown[-1]) == max(GRADES)


def test_worst_line_of_a_number_counts_and_of_a_recovery_the_last() -> None:
    lines = recorded("dmesg/xid149-fatal-then-nonfatal.txt").splitlines()
    found, at = worst(149, lines)
    assert (found.verdict, at) == (Verdict.FAIL, 0)
    assert found.meaning == "fatal NVLink 5 error (NETIR_LINK_EVT, link 08)"
    assert found.fix == "look at the signal of the link: reset, then service"
    ends = ["to 0x2 (OS Reboot)", "to 0x0 (None)"]
    assert worst(154, ends)[0].verdict is Verdict.PASS
    assert worst(154, ends[::-1])[0].action is Action.REBOOT


LINKS = {
    "mlx5_core 0000:1a:00.0 ens1f0np0: Link down": "ens1f0np0",
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN": "mlx5_5",
    "infiniband bnxt_re0: Port: 1 Link DOWN": "bnxt_re0",
    "irdma i40iw rocep24s0: Port: 1 Link DOWN": "rocep24s0",
    "efa 0000:4f:00.0 rdmap79s0: Port: 1 Link DOWN": "rdmap79s0",
    "mlx4_core 0000:04:00.0: Port: 1, link down": "0000:04:00.0",
    "mlx4_en: eth2: Link Down": "eth2",
    "bnxt_en 0000:3b:00.0 ens1f0: NIC Link is Down": "ens1f0",
    "ice 0000:31:00.0 ens785f0: NIC Link is Down": "ens785f0",
    "i40e 0000:3d:00.0 eth0: NIC Link is Down": "eth0",
    "ixgbe 0000:01:00.0 eth0: NIC Link is Down": "eth0",
    "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down": "eno1",
    "e1000e 0000:00:1f.6 eno1: NIC Link is Down": "eno1",
    "tg3 0000:02:00.0 eno1: Link is down": "eno1",
    "r8169 0000:03:00.0 enp3s0: Link is Down": "enp3s0",
    "cxgb4 0000:01:00.4 enp1s0f4: link down": "enp1s0f4",
    "sfc 0000:01:00.0 ens2f0np0: link down": "ens2f0np0",
    "be2net 0000:04:00.0 eth2: Link is Down": "eth2",
    "[qede_link_update:2345(ens2f0)]Link is down": "ens2f0",
    "gve 0000:00:06.0 ens6: Device link is down.": "ens6",
    "bond0: (slave ens1f0): link status definitely down, disabling slave": "ens1f0",
    "ib6: Lost carrier": "ib6",
}


@pytest.mark.parametrize("line", LINKS)
def test_lost_link_in_the_words_of_each_driver(line: str) -> None:
    assert re.search(log.INTERESTING, line)
    (found,) = log.read_events(f"[    5.000000] {line}", 10.0, NOW)
    assert (found.kind, found.subject) == ("link-lost", LINKS[line])
    for down, up in (("DOWN", "ACTIVE"), ("Down", "Up"), ("down", "up"), ("Lost", "Gained")):
        line = line.replace(down, up)
    assert re.search(log.INTERESTING, line)
    (back,) = log.read_events(f"[    5.000000] {line}", 10.0, NOW)
    assert (back.kind, back.subject) == ("link-back", found.subject)


@pytest.mark.parametrize(
    "line",
    [
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
        "pcieport 0000:17:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer",
        "{1}[Hardware Error]: event severity: corrected",
        "audit: type=1400 the downlink is up-to-date",
    ],
)
def test_line_without_a_fault_is_no_event(line: str) -> None:
    assert log.read_events(f"[    5.000000] {line}", 10.0, NOW) == ()


FAULTS = {
    "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer": ("pcie-fatal", "0000:18:00.0"),
    "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible": ("pcie-fatal", "0000:18:00.0"),
    "pcieport 0000:17:01.0: AER: Uncorrectable (Fatal) error message received from 0000:18:00.0": ("pcie-fatal", "0000:18:00.0"),
    "pcieport 0000:17:01.0: DPC: containment event, status:0x1f01 source:0x0000": ("pcie-fatal", "0000:17:01.0"),
    "pcieport 0000:17:01.0: pciehp: Slot(7): Link Down": ("pcie-fatal", "0000:17:01.0"),
    "pcieport 0000:17:01.0: pciehp: Slot(7-1): Card not present": ("pcie-fatal", "0000:17:01.0"),
    "pcieport 0000:17:01.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer": ("pcie", "0000:17:01.0"),
    "EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0": ("memory", "mc3"),
    "{1}[Hardware Error]: event severity: fatal": ("memory", ""),
    "{2}[Hardware Error]: event severity: recoverable": ("memory", ""),
    "mce: Uncorrected hardware memory error in user-access at 1f3c7d5400": ("memory", ""),
    "Memory failure: 0x1f3c7d5: recovery action for dirty LRU page: Failed": ("memory", ""),
    "mlx5_core 0000:1a:00.0: poll_health:823:(pid 0): device's health compromised - reached miss count": ("nic-fatal", "0000:1a:00.0"),
    "mlx5_core 0000:1a:00.0: poll_health:800:(pid 0): Fatal error 1 detected": ("nic-fatal", "0000:1a:00.0"),
    "bnxt_en 0000:3b:00.0 ens1f0: Firmware fatal reset event": ("nic-fatal", "0000:3b:00.0"),
    "ena 0000:00:05.0 ens5: Keep alive watchdog timeout.": ("nic-fatal", "0000:00:05.0"),
    "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 3 timed out": ("nic", "ens1f0np0"),
    "mlx5_core 0000:1a:00.0: wait_func:1156:(pid 7): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource": ("nic", "0000:1a:00.0"),
    "mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error, Bus stuck": ("nic", "0000:1a:00.0"),
    "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!": ("nvlink", ""),
    "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!": ("nvlink", ""),
    "i40e 0000:3d:00.0: TX driver issue detected, PF reset issued": ("nic", "0000:3d:00.0"),
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)": ("init-failed", "0000:01:00.0"),
    "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0": ("init-failed", "0000:01:00.0"),
    "NVRM: RmInitAdapter failed! (0x26:0xffff:1375)": ("init-failed", ""),
    "NVRM: rm_init_adapter failed for device bearing minor number 0": ("init-failed", ""),
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM": ("init-failed", ""),
    "NVRM: gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)": ("init-failed", ""),
    "NVRM: None of the NVIDIA devices were initialized.": ("init-failed", ""),
    "nvidia: probe of 0000:0a:00.0 failed with error -1": ("init-failed", "0000:0a:00.0"),
    "nvidia 0000:0a:00.0: probe with driver nvidia failed with error -1": ("init-failed", "0000:0a:00.0"),
    "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482": ("gsp-timeout", "gpu6"),
    "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out": ("gsp-timeout", ""),
    "NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************": ("gsp-timeout", "gpu6"),
    "NVRM: GPU at PCI:0000:0a:00: GSP RPC timeout": ("gsp-timeout", ""),
    "NVRM: Timeout waiting for RPC from GSP1! Expected function 76 (GSP_RM_CONTROL) (0x2080014b 0x5).": ("gsp-timeout", ""),
    "NVRM: GPU0 Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76": ("gsp-timeout", "gpu0"),
    "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7": ("gsp-timeout", ""),
    "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.": ("fell-off-bus", "0000:b3:00.0"),
    "NVRM: API mismatch: the client has the version 570.148.08, but": ("driver-mismatch", ""),
}  # fmt: skip


@pytest.mark.parametrize("line", FAULTS)
def test_fault_of_memory_pcie_and_network_cards(line: str) -> None:
    assert re.search(log.INTERESTING, line)
    (found,) = log.read_events(f"[    5.000000] {line}", 10.0, NOW)
    assert (found.kind, found.subject) == FAULTS[line]


@pytest.mark.parametrize(
    "part",
    ["NVRM: Xid (PCI:0000", "nvme1", "eth0: ", "(slave a", "a.", "mlx5_core 0000:1a:00.0 ", "EDAC MC3: ", "NVRM: The NVIDIA GPU ", "0000:1a:00.0: ", "segfault at ", "gloo Rank [PG "],
)  # fmt: skip
def test_no_line_takes_long(part: str) -> None:
    line = part * (100_000 // len(part))
    begin_s = time.process_time()
    re.search(log.INTERESTING, line)
    log.read_events(line, 10.0, NOW)
    grade(149, line)
    assert time.process_time() - begin_s < 1.0


def test_no_node_sends_more_findings_than_lines_that_count() -> None:
    """The payload sends the newest 2,000 lines; a node that sends more is cut to them."""
    xids = [f"[{n + 10}.000000] NVRM: Xid (PCI:0000:{n % 256:02x}:00): 79, x" for n in range(5000)]
    told = ended("#lines\t5000\n#first\t[    0.000000] Linux version 6\n" + "\n".join(xids))
    found = log.parse_kernel_log(told, 6000.0, NOW)
    assert isinstance(found, KernelLog)
    assert len(found.events) == log.MOST_LINES
    assert found.events[-1].age_s == pytest.approx(6000 - 5009)
    assert found.reaches_s == pytest.approx(6000 - 3010)  # what was before is not known
