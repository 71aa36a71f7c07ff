"""What the active tests' facts become beyond the table of cases."""

from __future__ import annotations

import dataclasses

from checks.facts import Collectives, DeviceProducts, PortSeen, RepeatedProduct, SharedSeen, Unknown
from checks.finding import Verdict
from checks.reference.gpu_throughput import reached_tflops
from checks.runner import all_checks, run_checks
from tests.checks import active_cases as cases
from tests.checks import healthy


def bad(fleet, id: str) -> list[tuple[str, tuple[str, ...], str]]:
    return [
        (one.verdict.value, one.nodes, one.evidence)
        for one in run_checks(fleet, only=[id]).findings
        if one.verdict not in (Verdict.PASS, Verdict.SKIP)
    ]


def test_without_active_tests_their_checks_say_nothing_at_all() -> None:
    ids = {one.id for one in run_checks(healthy.fleet()).findings}
    assert not [id for id in ids if id.startswith("active.")]
    assert {id for id in all_checks() if id.startswith("active.")} == {
        "active.allreduce", "active.compute", "active.copy", "active.matmul", "active.port",
        "active.read", "active.token",
    }  # fmt: skip


def test_a_bad_link_names_both_ends_and_one_to_leave_out() -> None:
    (one,) = [
        f for f in run_checks(cases.LINK, only=["active"]).findings if f.verdict is Verdict.FAIL
    ]
    assert one.nodes == ("n2", "n3")
    assert "the link n2 - n3 is bad in all-reduce: 0.1 GB/s" in one.evidence
    assert one.fix is not None
    assert "-x n3" in one.fix


def test_a_node_that_one_other_cannot_reach_is_not_closed_to_all() -> None:
    seen_port = PortSeen(29500, reached_by=("n1",), failed={"n4": "No route to host"})
    ((verdict, nodes, words),) = bad(cases.at("meeting_ports", seen_port), "active.port")
    assert (verdict, nodes) == ("FAIL", ("n4",))
    assert "n4 cannot reach port 29500 of n3, others can: No route to host" in words


def test_cpu_devices_wobble_and_are_bad_only_under_half() -> None:
    def fleet(tflops: float):
        slow = cases.speeds(tflops, model="cpu, 2 threads")
        all_cpu = {name: cases.speeds(720.0, model="cpu, 2 threads") for name in healthy.NAMES}
        active = dataclasses.replace(cases.GOOD, device="cpu", speeds={**all_cpu, "n3": slow})
        return cases.fleet(active)

    assert bad(fleet(500.0), "active.matmul") == []
    assert [row[:2] for row in bad(fleet(200.0), "active.matmul")] == [("FAIL", ("n3",))]


def test_models_are_compared_with_their_own_kind() -> None:
    slower = tuple(dataclasses.replace(one, tflops=240.0) for one in cases.speeds(model="NVIDIA A100-SXM4-80GB"))  # fmt: skip
    assert bad(cases.at("speeds", slower), "active.matmul") == []


def test_when_the_writer_cannot_write_nobody_else_is_blamed() -> None:
    nothing = SharedSeen(Unknown("nobody wrote"), Unknown("nobody wrote"))
    active = dataclasses.replace(
        cases.GOOD,
        shared=dict.fromkeys(healthy.NAMES, nothing),
        write_error="Read-only file system",
    )
    found = bad(cases.fleet(active), "active.token")
    assert [row[:2] for row in found if row[0] == "FAIL"] == [("FAIL", ("n1",))]
    assert {row[0] for row in found} == {"FAIL", "UNKNOWN"}


def test_tests_that_had_nothing_to_do_are_skipped_not_passed() -> None:
    active = dataclasses.replace(
        cases.GOOD, writer="", shared={}, meeting_ports={}, collectives=Unknown("one node with one device has none to sum with", is_absence=True)
    )  # fmt: skip
    others = ["active.matmul", "active.compute", "active.copy"]
    report = run_checks(cases.fleet(active), only=["active"], without=others)
    assert {one.verdict for one in report.findings} == {Verdict.SKIP}
    not_asked = dataclasses.replace(active, collectives=Collectives(()))
    assert run_checks(cases.fleet(not_asked), only=["active.allreduce"]).exit_code == 3


def test_floors_are_of_the_very_card() -> None:
    assert reached_tflops("NVIDIA H100 80GB HBM3") == 794.5
    assert reached_tflops("NVIDIA H200") == 794.5
    assert reached_tflops("NVIDIA A100-SXM4-80GB") == 271.2
    assert reached_tflops("NVIDIA A100-PCIE-40GB") == 252.9
    assert reached_tflops("NVIDIA A100 80GB PCIe") == 252.9
    assert reached_tflops("NVIDIA GH200 480GB") == 828.6
    assert reached_tflops("NVIDIA GB200") == 1822.0
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "Tesla T4", "", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"):  # fmt: skip
        assert reached_tflops(other) is None, other


def products(sum: str = "aa", others: int = 0, kin: str = cases.H100) -> tuple[DeviceProducts, ...]:
    return (DeviceProducts("cuda:0", kin, (RepeatedProduct("bf16", 400, others, sum),)),)


def computed(*nodes: tuple[DeviceProducts, ...]) -> list[tuple[str, tuple[str, ...], str]]:
    found = dict(zip(healthy.NAMES, nodes, strict=False))
    fleet = cases.fleet(dataclasses.replace(cases.GOOD, products=found))
    return [
        (one.verdict.value, one.nodes, one.evidence)
        for one in run_checks(fleet, only=["active.compute"]).findings
    ]


def test_two_that_differ_are_both_in_question_and_none_is_named() -> None:
    (one, two) = computed(products("aa"), products("bb"))
    text = "n1 GPU 0, n2 GPU 0 differ in bf16 products, no majority: at least one computes wrongly"
    assert (one, two) == (("UNKNOWN", ("n1",), text), ("UNKNOWN", ("n2",), text))


def test_one_alone_is_compared_with_itself_only_and_says_so() -> None:
    ((verdict, _, words),) = computed(products())
    assert (verdict, "no other of its model to compare with" in words) == ("PASS", True)
    ((verdict, _, words),) = computed(products(others=2))
    assert (verdict, words) == (
        "FAIL", "GPU 0 computes wrongly: 2 of 400 bf16 products differ from its own others",
    )  # fmt: skip


def test_other_libraries_are_another_group() -> None:
    found = computed(products(), products(), products(), products("bb", kin="torch 2.9"))
    assert {verdict for verdict, _, _ in found} == {"PASS"}


def test_several_with_one_other_result_have_another_library_rather_than_a_fault() -> None:
    good, other = products(), products("bb")[0]
    two = (other, dataclasses.replace(other, device="cuda:1"))
    found = computed(good, good, good, two)
    assert [row[0] for row in found] == ["PASS"] * 3 + ["UNKNOWN"] * 2
    assert "another library or setting?" in found[3][2]


def test_products_that_no_device_repeats_accuse_none() -> None:
    found = computed(products("aa", 5), products("ab", 7), products("ac", 3), products())
    assert {row[0] for row in found} == {"UNKNOWN"}
    assert "on 3 of 4 devices of this model: nothing to compare with" in found[0][2]
