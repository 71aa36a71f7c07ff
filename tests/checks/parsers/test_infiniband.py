"""Ports from sysfs."""

from __future__ import annotations

import time

import pytest

from checks.facts import Fabric, Unknown
from checks.parsers import infiniband as ib
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking


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
    assert [port.device for port in bond if port.is_active] == ["mlx5_bond_0"]


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


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    ["d/ports/{0}/counters/c{1}\t1\n", "d{1}/ports/1/state\t4: ACTIVE\n", "d/ports/{0}/gids/{1}\tfe80::1\n"],
)  # fmt: skip
def test_text_of_a_hostile_node_takes_no_minutes(line: str) -> None:
    """A section may have 6 MiB; 31 s were taken for that."""
    text = "#devices\t1\n" + "".join(line.format(n % 1000, n % 99_999) for n in range(120_000))
    began_s = time.process_time()
    ib.parse_fabric(ended(text), ended(text))
    assert time.process_time() - began_s < 6.0
