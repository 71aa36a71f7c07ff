"""The NCCL environment worked out from facts: right on alike nodes, honest where they differ."""

from __future__ import annotations

import dataclasses

from checks.facts import Fabric, Fleet, Gid, Network, NodeFacts, Unknown, Unreached
from checks.nccl.recommend import Suggestion, chosen_values, suggest
from checks.parsers.gpu_health import read_topology
from checks.parsers.infiniband import parse_sysfs
from tests.checks.captures import recorded
from tests.checks.healthy import NAMES, fabric, full, interface, needs, network, port, roce

ADDRESSES = {name: f"10.0.0.{index}" for index, name in enumerate(NAMES, 1)}


def own(index: int, name: str = "eth0", net: str = "10.0.0") -> Network:
    return network(interface(name, f"{net}.{index}/24"), own=f"{net}.{index}")


def nodes(**changed: dict) -> tuple[NodeFacts, ...]:
    return tuple(
        full(name, **{"network": own(index), **changed.get(name, {})})
        for index, name in enumerate(NAMES, 1)
    )


def work_out(found: tuple[NodeFacts, ...], device: str = "cuda") -> dict[str, Suggestion]:
    slots = {node.name: 8 for node in found}
    fleet = Fleet(found, needs(device=device))
    return {one.name: one for one in suggest(fleet, slots=slots, addresses=ADDRESSES)}


def odd_nodes(one: Suggestion) -> list[str]:
    return [node for node, _ in one.odd]


def all_of(**fields: object) -> dict[str, dict]:
    return dict.fromkeys(NAMES, fields)


NIC_AT_EACH = "\n".join(
    ["\t" + "\t".join([f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(8)])]
    + [
        f"GPU{row}\t"
        + "\t".join(["X" if row == n else "NV18" for n in range(8)])
        + "\t"
        + "\t".join(["PIX" if row == n else "NODE" for n in range(8)])
        for row in range(8)
    ]
)


def with_topology(text: str) -> dict[str, dict]:
    gpus = dataclasses.replace(full("n1").gpus, pairs=read_topology(text))
    return all_of(gpus=gpus)


def test_h100_nodes_get_the_environment_of_the_recorded_runs() -> None:
    ports = parse_sysfs(recorded("infiniband/sysfs-h100.tsv"))
    changes = with_topology(NIC_AT_EACH)
    changed = {name: {**changes[name], "fabric": Fabric(ports, True, 0.7)} for name in NAMES}
    found = work_out(nodes(**changed))
    values = chosen_values(tuple(found.values()))
    cpus = full("n1").machine.cpus
    assert values == {
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_DEBUG": "WARN",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(max(1, cpus // 8)),
    }
    assert found["NCCL_IB_HCA"].reason == (
        "8 active InfiniBand ports at 400 Gb/s; not mlx5_bond_0:1 (Ethernet)"
    )
    assert not [one for one in found.values() if one.odd or one.unsure]


def test_node_with_a_port_down_is_named_and_the_others_decide() -> None:
    down = fabric(port(0), port(1, state="DOWN", phys_state="Polling"))
    one = work_out(nodes(n3={"fabric": down}))["NCCL_IB_HCA"]
    assert one.value == "=mlx5_0,mlx5_1"
    assert one.odd == (("n3", "there it would be =mlx5_0"),)


def test_no_port_anywhere_switches_infiniband_off() -> None:
    found = work_out(nodes(**all_of(fabric=Fabric())))
    assert found["NCCL_IB_DISABLE"].value == "1"
    assert "NCCL_IB_HCA" not in found
    assert "NCCL_NET_GDR_LEVEL" not in found


def test_node_without_cards_among_others_is_named() -> None:
    one = work_out(nodes(n2={"fabric": Fabric()}))["NCCL_IB_HCA"]
    assert odd_nodes(one) == ["n2"]


def test_what_nobody_could_find_out_is_left_out_and_never_guessed() -> None:
    found = work_out(nodes(**all_of(fabric=Unknown("no answer in 5 s"))))
    assert found["NCCL_IB_HCA"].value is None
    assert len(found["NCCL_IB_HCA"].unsure) == 4
    assert "NCCL_IB_DISABLE" not in found


def test_unreachable_node_is_unsure_in_what_depends_on_nodes() -> None:
    dead = NodeFacts("n4", unreached=Unreached("tcp", 3.0, "no answer"))
    found = work_out((*nodes()[:3], dead))
    assert found["NCCL_IB_HCA"].unsure == (("n4", "no answer"),)
    assert found["NCCL_IB_HCA"].value == "=mlx5_0,mlx5_1"
    assert work_out((dead,)) == {}


def test_roce_takes_the_common_v2_index() -> None:
    other = roce(0)
    more = dataclasses.replace(
        other, gids=(Gid(1, "fe80::1", "RoCE v2"), Gid(3, "::ffff:10.1.0.3", "RoCE v2"))
    )
    found = work_out(nodes(**{**all_of(fabric=fabric(roce(0))), "n3": {"fabric": fabric(more)}}))
    assert found["NCCL_IB_GID_INDEX"].value == "3"
    assert "RoCE port" in found["NCCL_IB_HCA"].reason


def test_roce_without_a_common_index_leaves_it_to_nccl_and_names_the_indices() -> None:
    odd = dataclasses.replace(roce(0), gids=(Gid(5, "::ffff:10.1.0.3", "RoCE v2"),))
    one = work_out(nodes(**{**all_of(fabric=fabric(roce(0))), "n3": {"fabric": fabric(odd)}}))[
        "NCCL_IB_GID_INDEX"
    ]
    assert one.value is None
    assert ("n3", "mlx5_0:1 has 5") in one.odd


def test_interface_names_that_differ_are_listed_when_no_node_has_two() -> None:
    found = work_out(nodes(n3={"network": own(3, "ens5")}))
    one = found["NCCL_SOCKET_IFNAME"]
    assert (one.value, one.odd) == ("=eth0,ens5", ())
    assert "ens5 on n3" in one.reason
    assert "GLOO_SOCKET_IFNAME" not in found


def test_node_that_has_both_names_makes_it_the_most_common_one() -> None:
    both = network(interface("ens5", "10.0.0.3/24"), interface("eth0", "192.168.1.3/24"), own="10.0.0.3")  # fmt: skip
    one = work_out(nodes(n3={"network": both}))["NCCL_SOCKET_IFNAME"]
    assert (one.value, one.odd) == ("=eth0", (("n3", "there it is ens5"),))


def test_interface_in_another_subnet_is_named() -> None:
    away = network(interface("eth0", "10.9.0.3/24"), own="10.9.0.3")
    one = work_out(nodes(n3={"network": away}))["NCCL_SOCKET_IFNAME"]
    assert one.odd == (("n3", "eth0 is in 10.9.0.0/24"),)


def test_address_behind_nat_is_found_by_the_nodes_own_name() -> None:
    found = Fleet(nodes(), needs())
    slots = dict.fromkeys(NAMES, 8)
    public = dict.fromkeys(NAMES, "203.0.113.7")
    one = next(
        s for s in suggest(found, slots=slots, addresses=public) if s.name == "NCCL_SOCKET_IFNAME"
    )
    assert one.value == "=eth0"


def test_nodes_on_this_machine_need_no_interface() -> None:
    one = work_out(nodes(**all_of(loopback=True)))["NCCL_SOCKET_IFNAME"]
    assert one.value is None
    assert "this machine" in one.reason


def test_p2p_over_nvlink_is_not_asked_for_where_a_node_has_none() -> None:
    gpus = dataclasses.replace(full("n1").gpus, pairs={"0-1": "PHB"})
    one = work_out(nodes(n2={"gpus": gpus}))["NCCL_P2P_LEVEL"]
    assert one.value is None
    assert odd_nodes(one) == ["n2"]


def test_gdr_level_follows_the_topology_and_the_module() -> None:
    missing = nodes(n2={"fabric": fabric(peermem=False)})
    assert work_out(missing)["NCCL_NET_GDR_LEVEL"].odd[0][0] == "n2"
    far = work_out(nodes(**with_topology(recorded("topo/topo-m.h100x8-nic5.txt"))))
    assert far["NCCL_NET_GDR_LEVEL"].value is None
    assert "a GPU's next card is NODE" in far["NCCL_NET_GDR_LEVEL"].reason
    assert far["NCCL_NET_GDR_LEVEL"].odd == ()  # all nodes are alike: nobody disagrees
    switches = work_out(nodes(**with_topology(NIC_AT_EACH.replace("PIX", "PXB"))))
    assert switches["NCCL_NET_GDR_LEVEL"].value == "PXB"
    unseen = work_out(nodes())["NCCL_NET_GDR_LEVEL"]
    assert (unseen.value, len(unseen.unsure)) == (None, 4)


def test_cpu_nodes_get_no_nccl_variables() -> None:
    found = work_out(nodes(), device="cpu")
    assert sorted(found) == ["GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"]
    assert found["OMP_NUM_THREADS"].value == "1"
