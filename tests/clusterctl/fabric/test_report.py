"""Rows of `clusterctl fabric` from facts: alike nodes fold, what is wrong is named, unknown is unknown."""

from __future__ import annotations

import json

from checks.facts import Fabric, GpuFacts, KernelLog, NodeFacts, Unknown, Unreached
from checks.nccl.recommend import Suggestion
from clusterctl.fabric.collect import addresses_of, without_hardware
from clusterctl.fabric.report import (
    port_lines,
    report_fabric,
    suggestion_lines,
    to_document,
    unsure_lines,
)
from clusterctl.nodes import Node
from tests.checks.healthy import fabric, fleet, full, port


def test_alike_nodes_are_one_line() -> None:
    report = report_fabric(fleet().nodes, ())
    ((names, row),) = report.folded()
    assert names == "n[1-4]"
    assert row.cells() == ["2/2 ", "2 InfiniBand", "2x400", "mlx5_[0-1]", "28.41.1000", "+0", ""]
    assert (report.exit_code, report.summary()) == (0, "4 nodes, 8 of 8 ports active")


def test_port_that_is_down_on_one_node_is_bad_and_named() -> None:
    down = fabric(port(0), port(1, state="DOWN", phys_state="Polling"))
    report = report_fabric(fleet(n3={"fabric": down}).nodes, ())
    row = report.rows[2]
    assert (row.verdict, row.active, row.ports) == ("bad", 1, 2)
    assert "mlx5_1:1 is DOWN/Polling" in row.flags
    assert report.exit_code == 1
    assert [names for names, _ in report.folded()] == ["n[1-2,4]", "n3"]


def test_errors_that_grow_are_counted_and_bad() -> None:
    grown = fabric(port(0, growth={"symbol_error": 4}), port(1, growth={"symbol_error": 1}))
    report = report_fabric(fleet(n1={"fabric": grown}).nodes, ())
    assert report.rows[0].cells()[5] == "+5"
    assert "symbol_error +4 during the measurement" in report.rows[0].flags[0]
    assert port_lines(full("n1", fabric=grown))[0][:2] == ["n1", "mlx5_0:1"]
    assert port_lines(full("n1", fabric=grown))[0][-1] == "symbol_error +4"


def test_counters_read_once_are_unknown_and_not_zero() -> None:
    once = fabric(port(0, growth=Unknown("not asked")), port(1, growth=Unknown("not asked")))
    row = report_fabric(fleet(n1={"fabric": once}).nodes, ()).rows[0]
    assert row.cells()[5] == "-"


def test_other_firmware_is_flagged() -> None:
    old = fabric(port(0, firmware="20.1"), port(1))
    row = report_fabric(fleet(n2={"fabric": old}).nodes, ()).rows[1]
    assert row.verdict == "bad"
    assert "20.1" in row.cells()[4]


def test_unreached_and_unreadable_nodes_are_unknown_and_exit_3() -> None:
    dead = NodeFacts("n5", unreached=Unreached("tcp", 3.0, "no answer"))
    blind = full("n6", fabric=Unknown("no answer in 5 s"))
    report = report_fabric((*fleet().nodes, dead, blind), ())
    assert [row.verdict for row in report.rows[4:]] == ["unknown", "unknown"]
    assert report.rows[4].cells()[0] == "-?"
    assert report.exit_code == 3
    assert "unknown: n[5-6]" in report.summary()


def test_no_card_anywhere_is_a_fact() -> None:
    report = report_fabric(tuple(full(n, fabric=Fabric()) for n in ("n1", "n2")), ())
    assert report.exit_code == 0
    assert report.summary() == "2 nodes, no InfiniBand or RoCE card"
    for log in (KernelLog((), 9, 3600.0), Unknown("Operation not permitted")):
        report = report_fabric((full("n1", fabric=Fabric(), kernel_log=log),), ())
        assert (report.exit_code, report.rows[0].cells()[0]) == (0, "0/0 ")


def test_nodes_that_were_not_seen_are_never_said_to_have_no_card() -> None:
    dead = NodeFacts("n2", unreached=Unreached("tcp", 3.0, "no answer"))
    assert report_fabric((dead,), ()).summary() == "1 node, unknown: n2"
    one = report_fabric((full("n1", fabric=Fabric()), dead), ())
    assert one.summary().startswith(
        "2 nodes, no InfiniBand or RoCE card where that could be read, unk"
    )


def test_nodes_that_disagree_make_exit_1_and_are_folded_by_what_they_say() -> None:
    one = Suggestion(
        "NCCL_IB_HCA", "=mlx5_0", "why", (("n1", "x"), ("n2", "x"), ("n3", "y")), (("n4", "no"),)
    )
    report = report_fabric(fleet().nodes, (one,))
    assert report.exit_code == 1
    assert suggestion_lines((one,)) == [
        ("NCCL_IB_HCA='=mlx5_0'  (why)", "set"), ("  n[1-2]: x", "odd"), ("  n3: y", "odd"),
    ]  # fmt: skip
    assert unsure_lines((one, one)) == ["n4: unknown for NCCL_IB_HCA, NCCL_IB_HCA: no"]


def test_json_has_every_port_and_null_for_the_unknown() -> None:
    dead = NodeFacts("n5", unreached=Unreached("tcp", 3.0, "no answer"))
    nodes = (*fleet().nodes, dead)
    document = json.loads(json.dumps(to_document(report_fabric(nodes, ()), nodes)))
    assert document["nodes"][0]["fabric"]["ports"][1]["device"] == "mlx5_1"
    assert document["nodes"][4]["fabric"] is None
    assert document["nodes"][4]["unreachable"]["phase"] == "tcp"


def test_addresses_are_resolved_where_they_can_be() -> None:
    nodes = [Node("a", host="10.0.0.1"), Node("b", host="localhost"), Node("c", host="no-such-host.invalid")]  # fmt: skip
    found = addresses_of(nodes)
    assert found["a"] == "10.0.0.1"
    assert found["b"] in ("127.0.0.1", "::1")
    assert "c" not in found


def test_a_fleet_without_gpu_and_card_is_one_only_where_both_are_known() -> None:
    bare = {"fabric": Fabric(), "gpus": GpuFacts("none", on_pci=0)}
    assert without_hardware([full("n1", **bare), full("n2", **bare)])
    for other in (
        {"gpus": full("n2").gpus},
        {"fabric": fabric()},
        {"fabric": Unknown("no answer")},
    ):
        assert not without_hardware([full("n1", **bare), full("n2", **{**bare, **other})])
