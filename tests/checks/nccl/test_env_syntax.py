"""How NCCL reads its lists of names."""

from __future__ import annotations

import pytest

from checks.facts import Fleet, IbPort, Interface, Unknown
from checks.nccl.env_syntax import parse_list, suggest_hca, usable_interfaces
from checks.nccl.recommend import suggest
from checks.parsers.infiniband import parse_fabric
from checks.runner import run_checks
from tests.checks.captures import recorded
from tests.checks.healthy import needs
from tests.checks.sections import ended, node


def port(
    device: str,
    layer: str = "InfiniBand",
    state: str = "ACTIVE",
    rate: float = 400.0,
    number: int = 1,
) -> IbPort:
    return IbPort(device, number, state, "LinkUp" if state == "ACTIVE" else "Polling", rate, layer)


@pytest.mark.parametrize(
    ("value", "takes", "leaves"),
    [
        ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"], ["mlx5_0", "mlx5_2"]),
        ("=mlx5_1", ["mlx5_1"], ["mlx5_10", "mlx5_0"]),
        ("^mlx5_1", ["mlx5_0", "mlx5_2"], ["mlx5_1", "mlx5_10"]),
        ("^=mlx5_1", ["mlx5_0", "mlx5_10"], ["mlx5_1"]),
        ("mlx5", ["mlx5_0", "mlx5_10"], ["bnxt_re0"]),
        ("=mlx5_0:1, mlx5_2", ["mlx5_0", "mlx5_2"], ["mlx5_1"]),
    ],
)
def test_lists_are_read_as_nccl_reads_them(value: str, takes: list[str], leaves: list[str]) -> None:
    names = parse_list(value)
    assert [name for name in [*takes, *leaves] if names.takes(name, 1)] == takes


def test_port_number_and_surprises() -> None:
    assert not parse_list("=mlx5_0:2").takes("mlx5_0", 1)
    devices = [f"mlx5_{n}" for n in range(12)]
    assert parse_list("mlx5_1,mlx5_2").surprises(devices) == {"mlx5_1": ["mlx5_10", "mlx5_11"]}
    assert parse_list("=mlx5_1").surprises(devices) == {}
    assert parse_list("mlx5_1").surprises(["mlx5_1", "mlx5_2"]) == {}


def test_suggested_list_leaves_front_side_cards_out() -> None:
    ports = [
        port("mlx5_0"),
        port("mlx5_1", "Ethernet", rate=100.0),
        port("mlx5_2"),
        port("mlx5_3", state="DOWN"),
    ]
    assert suggest_hca(ports) == "=mlx5_0,mlx5_2"
    roce = [
        port("r0", "Ethernet", rate=200.0),
        port("r1", "Ethernet", rate=200.0),
        port("f0", "Ethernet", rate=25.0),
    ]
    assert suggest_hca(roce) == "=r0,r1"
    assert suggest_hca([port("a"), port("a", number=2)]) == "=a:1,a:2"
    assert suggest_hca([]) is None


def test_interfaces_without_an_address_are_not_usable() -> None:
    def make(name: str, *addresses: str, up: bool = True) -> Interface:
        return Interface(name, up, 1500, 1000, addresses)

    all_ = [make("lo", "127.0.0.1/8"), make("eth0", "10.0.0.2/24", "fe80::1/64"), make("eth1"),
            make("eth2", "fe80::2/64"), make("docker0", "172.17.0.1/16"), make("ib0", "10.1.0.2/16", up=False)]  # fmt: skip
    assert [one.name for one in usable_interfaces(all_, None)] == ["eth0"]
    assert [one.name for one in usable_interfaces(all_, "eth")] == ["eth0"]
    assert [one.name for one in usable_interfaces(all_, "^eth0")] == ["docker0"]
    assert usable_interfaces(all_, "eno1") == []


def of_recording(name: str):
    found = parse_fabric(ended(recorded(f"infiniband/{name}.tsv")))
    assert not isinstance(found, Unknown)
    return found


def test_cards_that_manage_nvswitches_are_left_out() -> None:
    text = recorded("infiniband/hgx-b200-bridges.tsv")
    marks = "".join(f"/sys/class/infiniband/mlx5_{n}/role\tSW_MNG\n" for n in (8, 9, 10, 11))
    found = parse_fabric(ended(f"{text}\n{marks}"))
    assert not isinstance(found, Unknown)
    assert found.bridges == ("mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11")
    rails = "=" + ",".join(f"mlx5_{n}" for n in range(8))
    assert suggest_hca(found.ports) == rails
    (verdict,) = {
        one.verdict.value
        for one in run_checks(
            Fleet((node("n1", fabric=found),)), only=["ib.subnet_manager"]
        ).findings
    }
    assert verdict == "PASS"


def test_cards_that_manage_nvswitches_are_known_by_their_subnet_to_users_without_root() -> None:
    text = recorded("infiniband/hgx-b200-bridges.tsv")
    found = of_recording("hgx-b200-bridges")
    assert found.bridges == ("mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11")
    assert suggest_hca(found.ports) == "=" + ",".join(f"mlx5_{n}" for n in range(8))
    fleet = Fleet((node("n1", fabric=found),))
    report = run_checks(fleet, only=["ib.subnet_manager"])
    assert {one.verdict.value for one in report.findings} == {"PASS"}
    # A rail that runs the subnet manager of the network, and rails that wait for one, are rails.
    for old, new in (
        ("mlx5_9/ports/1/lid\t0x0", "mlx5_9/ports/1/lid\t0x7"),
        ("mlx5_9/ports/1/state\t4: ACTIVE", "mlx5_9/ports/1/state\t2: INIT"),
        ("mlx5_8/ports/1/lid\t0x1", "mlx5_8/ports/1/lid\t0x0"),
        ("MT_0000001234", "MT_0000000838"),
    ):
        assert old in text
        other = parse_fabric(ended(text.replace(old, new)))
        assert not isinstance(other, Unknown)
        assert other.bridges == ()


def test_efa_is_named_by_no_variable() -> None:
    fabric = of_recording("efa-p5")
    assert suggest_hca(fabric.ports) is None
    found_nodes = tuple(node(name, fabric=fabric) for name in ("n1", "n2"))
    fleet = Fleet(found_nodes, needs(device="cuda"))
    (found,) = (one for one in suggest(fleet, slots={}, addresses={}) if "_IB_" in one.name)
    assert (found.name, found.value) == ("NCCL_IB_HCA", None)
    assert "OFI plugin" in found.reason
