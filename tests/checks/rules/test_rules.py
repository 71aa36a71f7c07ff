"""Each rule with a good and a bad fact, and with one that could not be read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from checks.facts import (
    NOT_ASKED,
    Disk,
    Exchange,
    Fabric,
    FileSeen,
    Fleet,
    GpuFacts,
    GpuHealth,
    KernelLog,
    LaunchNeeds,
    NodeFacts,
    Port,
    Unknown,
    Unreached,
)
from checks.finding import Action, Finding, Verdict
from checks.parsers.kernel_log import read_events
from checks.parsers.nvidia_smi import parse_gpus
from checks.profile import Profile
from checks.runner import run_checks
from tests.captures.fake_nvidia_smi import capture, h100
from tests.checks import healthy
from tests.checks.cases import of_chrony
from tests.checks.sections import (
    FAILED,
    HUNG,
    NO_TOOL,
    ended,
    environment,
    gpus,
    lacking,
    machine,
    node,
)

PASS, WARN, FAIL, UNKNOWN, SKIP = (
    Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN, Verdict.SKIP,
)  # fmt: skip


def needs(**changes: Any) -> LaunchNeeds:
    plain = LaunchNeeds(
        python="/venv/bin/python", port=29500, slots={f"n{i}": 8 for i in range(1, 5)},
        device="cuda", run_dir_parent="/data", min_free_bytes=10 << 30,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def judge(id: str, *nodes: NodeFacts, launch: LaunchNeeds | None = None) -> dict[str, Finding]:
    """Finding of one check by node."""
    report = run_checks(Fleet(nodes, launch or needs()), Profile(), only=[id])
    return {name: one for one in report.findings for name in one.nodes}


def verdict(id: str, *nodes: NodeFacts, launch: LaunchNeeds | None = None) -> Verdict:
    """Verdict of one check about the last node."""
    return judge(id, *nodes, launch=launch)[nodes[-1].name].verdict


def disk(free_gib: float, total_gib: float = 1000, **changes: Any) -> Disk:
    plain = Disk(
        "/data", "/data", int(free_gib * 2**30), int(total_gib * 2**30), 900, 1000, True, True
    )
    return dataclasses.replace(plain, **changes)


def test_ssh_reachable() -> None:
    assert verdict("ssh.reachable", node("n1")) is PASS
    dead = node("n1", unreached=Unreached("auth", 0.2, "refused", "ssh-copy-id n1"))
    found = judge("ssh.reachable", dead)["n1"]
    assert (found.verdict, found.fix) == (UNKNOWN, "ssh-copy-id n1")
    assert "auth" in found.evidence


def test_shell_noise() -> None:
    assert verdict("shell.noise", node("n1")) is PASS
    found = judge("shell.noise", node("n1", noise="Welcome\nto n1"))["n1"]
    assert found.verdict is WARN
    assert "'Welcome'" in found.evidence


def test_host_python() -> None:
    assert verdict("host.python", node("n1")) is PASS
    assert verdict("host.python", node("n1", python=Unknown("not said"))) is UNKNOWN


def test_same_machine() -> None:
    one, two = node("n1"), node("n2")
    assert verdict("host.same_machine", one, two) is PASS
    double = node("n2", machine=machine("boot-n1"))
    found = judge("host.same_machine", one, double)
    assert {name: item.verdict for name, item in found.items()} == {"n1": FAIL, "n2": FAIL}
    container = node("n2", machine=machine("boot-n1", "net:[2] pid:[2] uts:[2]"))
    assert verdict("host.same_machine", one, container) is WARN
    mixed = judge("host.same_machine", one, node("n3", machine=machine("boot-n1")), container)
    seen = {name: item.verdict for name, item in mixed.items()}
    assert mixed["n1"].evidence.endswith("(same boot id): n1, n3")
    assert seen == {"n1": FAIL, "n3": FAIL, "n2": WARN}
    demo = [dataclasses.replace(item, loopback=True) for item in (one, double)]
    assert verdict("host.same_machine", *demo) is SKIP
    assert (
        verdict("host.same_machine", node("n1", machine=machine(Unknown("no boot id")))) is UNKNOWN
    )
    assert verdict("host.same_machine", node("n1", machine=Unknown("not asked"))) is UNKNOWN


@pytest.mark.parametrize(
    ("facts", "expected", "action"),
    [
        (gpus(), PASS, Action.NONE),
        (NO_TOOL, SKIP, Action.NONE),
        (parse_gpus(ended(capture("no-devices.txt"), 6)), SKIP, Action.NONE),
        (dataclasses.replace(parse_gpus(ended(capture("no-devices.txt"), 6)), on_pci=1), FAIL, Action.NONE),
        (dataclasses.replace(parse_gpus(lacking()), on_pci=1), FAIL, Action.NONE),
        (dataclasses.replace(parse_gpus(lacking()), on_pci=Unknown("no answer in 3 s")), UNKNOWN, Action.NONE),
        (FAILED, FAIL, Action.REBOOT),
        (parse_gpus(ended(capture("lost-gpu.txt"), 15)), FAIL, Action.REBOOT),
        (HUNG, UNKNOWN, Action.NONE),
        (parse_gpus(ended("")), UNKNOWN, Action.NONE),
    ],
)  # fmt: skip
def test_gpu_driver(facts: GpuFacts, expected: Verdict, action: Action) -> None:
    found = judge("gpu.driver", node("n1", gpus=facts))["n1"]
    assert (found.verdict, found.action) == (expected, action)


def test_gpu_count_majority() -> None:
    three = [node("n1"), node("n2"), node("n3", gpus=gpus(7, pci=8))]
    found = judge("gpu.count_majority", *three)
    assert found["n1"].verdict is PASS
    lost = found["n3"]
    assert (lost.verdict, lost.value, lost.expected, lost.source) == (FAIL, "7", "8", "majority")
    assert lost.action is Action.REBOOT
    gone = judge("gpu.count_majority", *three[:2], node("n3", gpus=gpus(7, pci=7)))["n3"]
    assert gone.action is Action.SERVICE
    assert verdict("gpu.count_majority", node("n1"), node("n2", gpus=gpus(7))) is FAIL  # of a tie
    assert verdict("gpu.count_majority", *three[:2], node("n3", gpus=FAILED)) is UNKNOWN
    assert verdict("gpu.count_majority", *three[:2], node("n3", gpus=HUNG)) is UNKNOWN
    assert verdict("gpu.count_majority", *three[:2], node("n3", gpus=NO_TOOL)) is FAIL
    four = [node(name, gpus=gpus(4)) for name in ("n1", "n2")]
    assert verdict("gpu.count_majority", *four, node("n3")) is WARN
    assert verdict("gpu.count_majority", node("n1", gpus=NO_TOOL)) is SKIP


def test_gpu_busy_is_a_failure_for_a_launch_on_gpus_only() -> None:
    owners = ended("88121\t1000\talice\t7300\tpython train.py\t?\t?\n")
    facts = parse_gpus(ended(h100()), ended(capture("h100-sxm-x8.apps.csv")), owners)
    busy = node("n1", gpus=facts)
    found = judge("gpu.busy", busy)["n1"]
    assert found.verdict is FAIL
    assert found.evidence.startswith(
        "8 processes on the GPUs: alice python (2 h 01 min), somebody python"
    )
    assert "kill 88121 88122" in str(found.fix)
    assert verdict("gpu.busy", busy, launch=needs(device="cpu")) is WARN
    report = run_checks(Fleet((busy,)), only=["gpu.busy"])
    assert report.findings[0].verdict is WARN
    assert verdict("gpu.busy", node("n1")) is PASS
    assert verdict("gpu.busy", node("n1", gpus=NO_TOOL)) is SKIP
    assert verdict("gpu.busy", node("n1", gpus=HUNG)) is UNKNOWN
    hidden = parse_gpus(ended(h100()), lacking("timeout", "no end in 10 s"))
    assert verdict("gpu.busy", node("n1", gpus=hidden)) is UNKNOWN


def test_free_space() -> None:
    def on(content: Any) -> NodeFacts:
        return node("n1", disks={"/data": content})

    assert verdict("storage.free_space", on(disk(500))) is PASS
    assert verdict("storage.free_space", on(disk(50))) is WARN
    assert verdict("storage.free_space", on(disk(500, inodes_free=1))) is WARN
    assert verdict("storage.free_space", on(disk(9))) is FAIL
    assert verdict("storage.free_space", on(disk(500, writable=False))) is FAIL
    assert verdict("storage.free_space", on(disk(500, is_folder=False))) is FAIL
    assert verdict("storage.free_space", on(Unknown("no end in 10 s, killed"))) is UNKNOWN
    assert verdict("storage.free_space", node("n1")) is UNKNOWN
    report = run_checks(Fleet((node("n1"),)), only=["storage.free_space"])
    assert report.findings[0].verdict is SKIP


def test_interpreter_exists() -> None:
    id = "software.interpreter_exists"
    assert verdict(id, node("n1")) is PASS
    gone = node("n1", interpreter="missing", software=Unknown("not found: /venv/bin/python"))
    found = judge(id, gone)["n1"]
    assert found.verdict is FAIL
    assert "/venv/bin/python is not there" in found.evidence
    assert verdict(id, node("n1", interpreter="broken", software=Unknown("exit 1: boom"))) is FAIL
    assert verdict(id, node("n1", interpreter="unknown", software=Unknown("no end"))) is UNKNOWN
    assert verdict(id, node("n1", software=environment("3.9.1"))) is FAIL


@pytest.mark.parametrize(
    ("id", "other", "expected"),
    [
        ("software.python_equal", environment("3.11.9"), WARN),
        ("software.python_equal", environment("3.10.1"), FAIL),
        ("software.torch_equal", environment(torch="2.8.0+cu128"), FAIL),
        ("software.torch_equal", environment(torch=None), FAIL),
        ("software.torch_equal", dataclasses.replace(environment(torch="2.9.0"), torch_cuda="12.6"), FAIL),
        ("software.colossalai_equal", environment(colossalai="0.4.0"), FAIL),
    ],
)  # fmt: skip
def test_environments_are_compared_with_the_majority(id: str, other, expected: Verdict) -> None:
    same = [node("n1"), node("n2")]
    assert verdict(id, *same) is PASS
    assert verdict(id, *same, node("n3", software=other)) is expected
    assert judge(id, *same, node("n3", software=other))["n1"].verdict is PASS
    two = judge(id, node("n1"), node("n2", software=other))
    assert {one.verdict for one in two.values()} == {expected}
    assert "without a majority" in two["n1"].evidence
    silent = node("n3", software=Unknown("no end in 20 s"), interpreter="unknown")
    assert verdict(id, *same, silent) is UNKNOWN
    assert run_checks(Fleet(tuple(same)), only=[id]).findings[0].verdict is SKIP


@pytest.mark.parametrize(
    ("id", "recorded", "verdict"),
    [
        ("software.torch_equal", "2.8.0+cu128", FAIL),
        ("software.colossalai_equal", "0.4.0", FAIL),
        ("software.python_equal", "3.10.1", FAIL),
        ("software.python_equal", "3.11.99", WARN),
    ],
)
def test_a_version_that_all_share_differs_from_the_recorded_one(
    id: str, recorded: str, verdict: Verdict
) -> None:
    fleet = Fleet((node("n1"), node("n2")), needs())
    (found,) = run_checks(fleet, Profile(expected={id: recorded}), only=[id]).findings
    assert (found.verdict, found.expected, found.source) == (verdict, recorded, "profile")
    agreed = found.value or ""
    (found,) = run_checks(fleet, Profile(expected={id: agreed}), only=[id]).findings
    assert found.verdict is PASS


def test_package_that_is_nowhere() -> None:
    bare = [node(n, software=environment(torch=None, colossalai=None)) for n in ("n1", "n2")]
    assert verdict("software.torch_equal", *bare) is FAIL
    assert verdict("software.colossalai_equal", *bare) is WARN


def test_missing_interpreter_is_one_finding_and_not_five() -> None:
    gone = node("n2", interpreter="missing", software=Unknown("not found"))
    report = run_checks(Fleet((node("n1"), gone), needs()), only=["software"])
    bad = [one.id for one in report.findings if "n2" in one.nodes and one.verdict is FAIL]
    assert bad == ["software.interpreter_exists"]
    assert not [one for one in report.findings if one.verdict is UNKNOWN]


def test_environment_that_nobody_named_is_judged_by_no_check() -> None:
    bare = [node(n, software=NOT_ASKED, interpreter="unknown") for n in ("n1", "n2")]
    report = run_checks(Fleet(tuple(bare), needs(python=None)), only=["software"])
    about = {one.id: one for one in report.findings if "git" not in one.id}
    assert len(about) >= 9
    assert {one.verdict for one in about.values()} == {SKIP}
    assert {one.evidence for one in about.values()} == {
        "no training environment was named (--launch or --python)"
    }


def test_av_known_bad() -> None:
    id = "software.av_known_bad"
    for version, expected in (
        ("13.1.0", WARN),
        ("14.0.1", WARN),
        ("14.2.0", WARN),
        ("16.1.0", WARN),
        ("17.0.0", PASS),
        ("19.0.2", PASS),
    ):
        assert verdict(id, node("n1", software=environment(av=version))) is expected
    assert verdict(id, node("n1", software=environment(av=None))) is WARN
    assert verdict(id, node("n1", software=Unknown("no end"), interpreter="unknown")) is UNKNOWN


def test_port_free_is_asked_of_the_master_only() -> None:
    free, taken = {29500: Port(True)}, {29500: Port(False, "Address already in use by pid 7: x")}
    assert verdict("launch.port_free", node("n1", ports=free)) is PASS
    found = judge("launch.port_free", node("n1", ports=taken), node("n2", ports=taken))
    assert (found["n1"].verdict, found["n2"].verdict) == (FAIL, SKIP)
    assert "pid 7" in found["n1"].evidence
    chosen = judge(
        "launch.port_free",
        node("n1", ports=taken),
        node("n2", ports=free),
        launch=needs(master="n2"),
    )
    assert (chosen["n1"].verdict, chosen["n2"].verdict) == (SKIP, PASS)
    assert verdict("launch.port_free", node("n1")) is UNKNOWN


def test_launch_gpus() -> None:
    assert verdict("launch.gpus", node("n1")) is PASS
    assert verdict("launch.gpus", node("n1", gpus=gpus(7))) is FAIL
    found = judge("launch.gpus", node("n1", gpus=NO_TOOL))["n1"]
    assert found.verdict is FAIL
    assert found.evidence == "no nvidia-smi, the launch wants 8 ranks here"
    assert verdict("launch.gpus", node("n1", gpus=HUNG)) is UNKNOWN
    assert verdict("launch.gpus", node("n1", gpus=NO_TOOL), launch=needs(device="cpu")) is SKIP


def test_device_auto_is_cuda_where_any_node_has_a_gpu() -> None:
    auto = needs(device="auto")
    assert verdict("launch.gpus", node("n1", gpus=NO_TOOL), launch=auto) is SKIP
    assert verdict("launch.gpus", node("n1"), node("n2", gpus=NO_TOOL), launch=auto) is FAIL
    assert verdict("launch.gpus", node("n1", gpus=FAILED), launch=auto) is UNKNOWN


def test_driver_equal() -> None:
    other = parse_gpus(ended(h100().replace("565.57.01", "550.90.07")))
    same = [node("n1"), node("n2")]
    assert verdict("fleet.driver_equal", *same) is PASS
    found = judge("fleet.driver_equal", *same, node("n3", gpus=other))["n3"]
    assert (found.verdict, found.value, found.expected) == (FAIL, "550.90.07", "565.57.01")
    assert verdict("fleet.driver_equal", *same, node("n3", gpus=FAILED)) is UNKNOWN
    assert verdict("fleet.driver_equal", node("n1", gpus=NO_TOOL)) is SKIP


def test_of_two_clocks_the_one_that_the_head_contradicts_is_wrong() -> None:
    def clock(offset_s: float) -> NodeFacts:
        exchange = Exchange(offset_s, 0.001, 8)
        return node(f"n{offset_s}", clock=healthy.clock(exchange=exchange))

    def judged(*offsets_s: float) -> dict[str, Verdict]:
        return {
            name: one.verdict for name, one in judge("time.skew", *map(clock, offsets_s)).items()
        }

    assert judged(0.0, 0.2) == {"n0.0": PASS, "n0.2": FAIL}
    assert judged(0.2, 0.0) == {"n0.2": FAIL, "n0.0": PASS}
    assert judged(0.0, -0.2) == {"n0.0": PASS, "n-0.2": FAIL}
    assert judged(0.3, 0.3001) == {"n0.3": PASS, "n0.3001": PASS}  # then it is the head's
    assert judged(0.0, 0.001, 0.2, 0.0005)["n0.2"] is FAIL


def test_a_slower_card_for_storage_is_no_slow_rail() -> None:
    rails = [healthy.port(number) for number in range(8)]
    storage = healthy.port(8, rate_gbps=200.0, board_id="MT_0000000223", model="MT4123")
    good = healthy.fabric(*rails, storage)

    def with_rate(number: int, gbps: float) -> Fabric:
        changed = [
            dataclasses.replace(port, rate_gbps=gbps) for port in [*rails, storage][number:][:1]
        ]
        ports = [*rails, storage]
        return healthy.fabric(*ports[:number], *changed, *ports[number + 1 :])

    assert verdict("ib.rate", *(node(f"n{n}", fabric=good) for n in range(3))) is PASS
    assert verdict("ib.rate", node("n1", fabric=good)) is PASS
    same = [node("n1", fabric=good), node("n2", fabric=good)]
    for number, gbps in ((3, 200.0), (8, 100.0)):
        slow = node("n3", fabric=with_rate(number, gbps))
        found = judge("ib.rate", *same, slow)
        assert [found[name].verdict for name in ("n1", "n2", "n3")] == [PASS, PASS, FAIL]
        assert f"mlx5_{number}:1" in found["n3"].evidence
    # Of one node alone ports of one card are compared, of two nodes the slower is the bad one.
    assert verdict("ib.rate", node("n1", fabric=with_rate(3, 200.0))) is FAIL
    assert judge("ib.rate", same[0], node("n2", fabric=with_rate(3, 200.0)))["n1"].verdict is PASS
    # A port whose rate nobody could read is not at full rate.
    blind = dataclasses.replace(rails[0], rate_gbps=Unknown("empty"))
    assert (
        verdict("ib.rate", *same, node("n3", fabric=healthy.fabric(blind, *rails[1:], storage)))
        is UNKNOWN
    )


def test_a_card_that_tells_less_than_its_equals_is_not_left_out() -> None:
    absent = Unknown("[N/A]", is_absence=True)
    one = healthy.with_gpu(3, ecc=absent)
    found = judge("gpu.ecc_mode", node("n1", gpus=one))["n1"]
    assert found.verdict is UNKNOWN
    assert "GPU 3" in found.evidence
    every = dataclasses.replace(
        one, gpus=tuple(dataclasses.replace(gpu, health=GpuHealth(ecc=absent)) for gpu in one.gpus)
    )
    assert verdict("gpu.ecc_mode", node("n1", gpus=every)) is SKIP  # cards without ECC
    other = dataclasses.replace(one.gpus[3], name="NVIDIA T4")
    mixed = dataclasses.replace(one, gpus=(*one.gpus[:3], other, *one.gpus[4:]))
    assert verdict("gpu.ecc_mode", node("n1", gpus=mixed)) is PASS


def test_a_bad_card_is_told_beside_one_whose_state_is_not_known() -> None:
    facts = healthy.with_gpu(0, ecc=False)
    silent = dataclasses.replace(
        facts.gpus[1], health=Unknown("nvidia-smi -q does not show this GPU")
    )
    facts = dataclasses.replace(facts, gpus=(facts.gpus[0], silent, *facts.gpus[2:]))
    report = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.ecc_mode"])
    assert {one.verdict for one in report.findings} == {FAIL, UNKNOWN}


def test_a_silent_chronyd_is_not_made_good_by_the_kernel() -> None:
    late = {"tracking": Unknown("no end in 3 s, killed"), "sources": Unknown("-")}
    facts = node("n1", clock=healthy.clock(**late)), node("n2", clock=healthy.clock())
    found = judge("time.sync", *facts)
    assert (found["n1"].verdict, found["n2"].verdict) == (UNKNOWN, PASS)
    assert "chronyd: no end in 3 s" in found["n1"].evidence
    none = healthy.clock(
        tracking=Unknown("not found: chronyc"), sources=Unknown("-"), daemons=("systemd-timesyn",)
    )
    assert judge("time.sync", node("n1", clock=none), facts[1])["n1"].verdict is PASS


def test_unknown_stands_in_a_sentence_as_its_reason() -> None:
    assert f"clock source {Unknown('no answer in 2 s')}" == "clock source no answer in 2 s"


def test_server_that_was_stepped_is_told_from_one_that_is_always_off() -> None:
    said = {}
    for state in ("bigoffset", "backwards"):
        fleet = healthy.fleet(n3={"clock": of_chrony(state)})
        (said[state],) = (
            one.evidence
            for one in run_checks(fleet, only=["time.sync"]).findings
            if one.verdict is FAIL
        )
    assert said["bigoffset"] == "-2.5 s from its source 10.99.0.3"
    assert said["backwards"] == (
        "+3 s from its source 10.99.0.5; one of them was stepped (RMS offset 0.506 s)"
    )


def test_a_fabric_that_is_down_everywhere_is_no_pass() -> None:
    down = healthy.fabric(*(healthy.port(n, state="DOWN", phys_state="Polling") for n in (0, 1)))
    found = judge("ib.ports", *(node(name, fabric=down) for name in ("n1", "n2", "n3")))
    assert {one.verdict for one in found.values()} == {WARN}
    assert found["n2"].evidence == "no port is active: mlx5_0:1 is DOWN/Polling, as on most nodes"
    spare = healthy.fabric(healthy.port(0), healthy.port(1, state="DOWN", phys_state="Disabled"))
    found = judge("ib.ports", *(node(name, fabric=spare) for name in ("n1", "n2", "n3")))
    assert {one.verdict for one in found.values()} == {PASS}


def test_short_kernel_log_names_how_far_it_reaches_and_no_other_time() -> None:
    log = KernelLog((), 900, 3700.0)
    found = judge("ib.flaps", healthy.full("n1", kernel_log=log))["n1"]
    said = "no link was lost in the 1 h 01 min that the kernel's log reaches back"
    assert (found.verdict, found.evidence.partition(";")[0]) == (UNKNOWN, said)
    found = judge(
        "ib.flaps", healthy.full("n1", kernel_log=dataclasses.replace(log, reaches_s=9e4))
    )
    assert (found["n1"].verdict, found["n1"].evidence) == (PASS, "no link was lost in 24 h")


def test_a_short_kernel_log_is_no_question_about_hardware_that_is_not_there() -> None:
    other = read_events("[ 5.000000] Out of memory: Killed process 7 (python)", 1000.0, 1.8e9)
    log, gpus_none = KernelLog(other, 900, 3700.0), GpuFacts("no-tool", "no nvidia-smi")
    without = healthy.full("n1", kernel_log=log, fabric=Fabric(), gpus=gpus_none)
    for id in ("gpu.xid", "gpu.fell_off", "gpu.sxid", "ib.flaps", "ib.pcie_limited"):
        assert judge(id, without)["n1"].verdict is SKIP, id
        assert judge(id, healthy.full("n1", kernel_log=log))["n1"].verdict is UNKNOWN, id


def test_missing_file_is_pushed_only_from_a_machine_that_has_it() -> None:
    path = "/data/clips.csv"
    bare = node("n1", files={path: FileSeen(False)})
    found = judge("launch.files", bare, launch=needs(files=(path,)))["n1"]
    assert (found.verdict, found.fix) == (FAIL, f"make {path} there, or mount its folder")
    found = judge("launch.files", bare, launch=needs(files=(path,), on_head=(path,)))["n1"]
    assert found.fix == f"clusterctl push {path} /data/ nodes.txt, or mount its folder"
    like = needs(files=(path,), near={path: "/data/clip.csv"})
    found = judge("launch.files", bare, launch=like)["n1"]
    assert (found.fix or "").startswith("did you mean /data/clip.csv? Or make ")


def test_a_model_that_is_missing_is_downloaded_by_its_name() -> None:
    gone = FileSeen(False, False, 0)
    for folder, more in (("~/.cache/huggingface/hub", ""), ("/hf/hub", " --cache-dir /hf/hub")):
        path = f"{folder}/models--hpcai-tech--OpenSora-VAE-v1.2"
        found = judge("launch.files", node("n1", files={path: gone}), launch=needs(files=(path,)))
        want = f"hf download hpcai-tech/OpenSora-VAE-v1.2{more} on the node"
        assert (found["n1"].fix or "").startswith(want), found


def test_a_gpu_that_failed_to_start_and_answers_now_is_a_warning() -> None:
    bus_id = str(healthy.gpu_facts().gpus[2].bus_id)
    said = {}
    for address in (bus_id, "0000:fe:00.0"):
        line = f"[ 5.000000] NVRM: GPU {address}: RmInitAdapter failed! (0x22:0x56:894)"
        log = KernelLog(read_events(line, 3600.0, Unknown("-")), 900)
        found = judge("gpu.fell_off", healthy.full("n1", kernel_log=log))["n1"]
        said[address] = (found.verdict, "it answers now" in found.evidence)
    assert said == {bus_id: (WARN, True), "0000:fe:00.0": (FAIL, False)}
