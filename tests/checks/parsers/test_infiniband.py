"""Ports from sysfs and from the tools' texts."""

from __future__ import annotations

import pytest

from checks.facts import Fabric, IbPort, Unknown
from checks.parsers import infiniband as ib
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking


def one(ports, index: int = 0) -> IbPort:
    assert not isinstance(ports, Unknown), ports
    return ports[index]


def test_sysfs_of_an_h100_node() -> None:
    ports = ib.parse_sysfs(recorded("infiniband/sysfs-h100.tsv"))
    band = [port for port in ports if port.link_layer == "InfiniBand"]
    assert len(band) == 8
    first = band[0]
    assert (first.name, first.state, first.phys_state) == ("mlx5_0:1", "ACTIVE", "LinkUp")
    assert (first.rate_gbps, first.firmware, first.board_id) == (
        400.0,
        "28.41.1000",
        "MT_0000000838",
    )
    assert first.counters["port_rcv_errors"] == 14  # healthy: only growth says something
    assert all(port.is_active for port in band)
    bond = [port for port in ports if "bond" in port.device]
    assert [port.link_layer for port in bond] == ["Ethernet"]
    assert [port.device for port in ib.active(ports, "Ethernet")] == ["mlx5_bond_0"]


def test_ports_stand_in_the_order_of_their_numbers() -> None:
    text = "".join(f"mlx5_{n}/ports/1/state\t4: ACTIVE\n" for n in (10, 2, 1))
    assert [port.device for port in ib.parse_sysfs(text)] == ["mlx5_1", "mlx5_2", "mlx5_10"]


def test_growth_is_the_difference_and_a_reset_is_not_known() -> None:
    text = "mlx5_0/ports/1/counters/{}\t{}\n"
    before = text.format("link_downed", 3) + text.format("symbol_error", 9)
    after = text.format("link_downed", 5) + text.format("symbol_error", 1)
    (port,) = ib.parse_sysfs(before, after)
    assert port.growth == {"link_downed": 2}
    (gone,) = ib.parse_sysfs(before, "")
    assert isinstance(gone.growth, Unknown)


def test_no_infiniband_is_an_answer_and_no_right_is_none() -> None:
    assert ib.parse_fabric(lacking("missing", "[Errno 2] /sys/class/infiniband")) == Fabric()
    assert isinstance(ib.parse_fabric(lacking("error", "Permission denied")), Unknown)
    assert isinstance(ib.parse_fabric(None), Unknown)


def test_peermem_gids_and_time_between_the_reads() -> None:
    top = "/sys/class/infiniband/mlx5_0/ports/1/"
    text = (
        "#devices\t1\n#peermem\tyes\n" + f"{top}state\t4: ACTIVE\n{top}gids/3\t0000:0000:0000:0000:0000:ffff:0a00:0001\n"
        f"{top}gids/0\tfe80:0000:0000:0000:0000:0000:0000:0001\n{top}gids/4\t0000:0000:0000:0000:0000:0000:0000:0000\n"
        f"{top}gid_attrs/types/3\tRoCE v2\n{top}gid_attrs/ndevs/3\teth2\n{top}gid_attrs/types/0\tIB/RoCE v1\n"
    )  # fmt: skip
    fabric = ib.parse_fabric(ended(text), ended("#seconds\t0.71\n"))
    assert isinstance(fabric, Fabric)
    assert (fabric.peermem, fabric.growth_s) == (True, 0.71)
    assert [(gid.index, gid.type, gid.netdev) for gid in fabric.ports[0].gids][1] == (
        3,
        "RoCE v2",
        "eth2",
    )
    assert len(fabric.ports[0].gids) == 2


def test_ibdev2netdev_gives_names_and_no_state() -> None:
    names = ib.parse_ibdev2netdev(recorded("infiniband/ibdev2netdev.imbue-h100.txt"))
    assert not isinstance(names, Unknown)
    assert (len(names), names["mlx5_0"], names["mlx5_1"]) == (12, "ibp26s0", "enp27s0f0np0")
    assert "Down" not in str(names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ndr-active", ("ACTIVE", "LinkUp", 400.0, "InfiniBand", 50, 1)),
        ("hdr-on-ndr-card", ("ACTIVE", "LinkUp", 200.0, "InfiniBand", 48, 48)),
        ("initializing-no-sm", ("INIT", "LinkUp", 100.0, "InfiniBand", 65535, 0)),
        ("roce", ("ACTIVE", "LinkUp", 200.0, "Ethernet", 0, 0)),
    ],
)
def test_ibstat(name: str, expected: tuple) -> None:
    port = one(ib.parse_ibstat(recorded(f"infiniband/ibstat.{name}.txt")))
    assert (
        port.state,
        port.phys_state,
        port.rate_gbps,
        port.link_layer,
        port.lid,
        port.sm_lid,
    ) == expected
    assert isinstance(port.firmware, str)


def test_ibstat_of_two_cards() -> None:
    ports = ib.parse_ibstat(recorded("infiniband/ibstat.ndr-active.txt"))
    assert one(ports, 1).name == "mlx5_1:1"
    assert one(ports, 1).guid == "0xa088c2030074cbaa"


def test_ibstatus_and_ibv_devinfo() -> None:
    ports = ib.parse_ibstatus(recorded("infiniband/ibstatus.roce.txt"))
    assert [port.device for port in ports] == ["mlx5_0", "mlx5_1"]
    assert (one(ports).state, one(ports).rate_gbps, one(ports).lid) == ("ACTIVE", 100.0, 0)
    down = one(ib.parse_ibv_devinfo(recorded("infiniband/ibv_devinfo.port-down.txt")))
    assert (down.state, down.lid, down.link_layer, down.firmware) == (
        "DOWN",
        65535,
        "InfiniBand",
        "28.39.2048",
    )
    assert isinstance(down.rate_gbps, Unknown)
    assert not down.is_active


def test_rdma_link_of_both_generations() -> None:
    old = ib.parse_rdma_link(recorded("infiniband/rdma-link.mixed.txt"))
    assert [port.state for port in old] == ["DOWN", "ACTIVE", "DOWN", "ACTIVE"]
    assert (one(old, 3).netdev, one(old, 3).phys_state, one(old, 3).is_active) == (
        "ens803f1",
        "LinkUp",
        True,
    )
    assert isinstance(one(old).netdev, Unknown)
    new = ib.parse_rdma_link(recorded("infiniband/rdma-link.new-format.txt"))
    assert [port.netdev for port in new][:2] == ["enp1s0f0np0", "enp1s0f1np1"]
