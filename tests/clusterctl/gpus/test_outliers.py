"""Which GPUs stand out of a fleet."""

from __future__ import annotations

import dataclasses

from checks.facts import Gpu, GpuFacts, NodeFacts, Unknown
from checks.profile import Profile
from clusterctl.gpus.outliers import coldest_and_hottest, find_idle, idle_words

PLAIN = Gpu(0, "u", "H100", "565", "0", 700.0, 700.0, 0, 80 << 30, 100.0, 60.0)
NO_POWER = Unknown("[N/A]")


def node(name: str, *powers: float, **fields: object) -> NodeFacts:
    gpus = tuple(
        dataclasses.replace(
            PLAIN, **{"index": index, "uuid": f"{name}-{index}", "power_w": power, **fields}
        )
        for index, power in enumerate(powers)
    )
    return NodeFacts(name, gpus=GpuFacts("ok", "", gpus))


def test_one_gpu_that_waits_among_its_neighbours_is_found() -> None:
    found = find_idle([node("a", 700, 101, 698, 699), node("b", *[700] * 4)], Profile())
    assert set(found) == {"a"}
    assert found["a"].gpus == ("1",)
    assert idle_words(found["a"], 4) == "GPU 1 idle at 101 W, the others at 699 W"


def test_a_node_that_does_nothing_among_nodes_that_train_is_found() -> None:
    fleet = [node("a", *[700] * 4), node("b", *[86] * 4), node("c", *[700] * 4)]
    found = find_idle(fleet, Profile())
    assert set(found) == {"b"}
    assert found["b"].numbers == "0-3"
    assert idle_words(found["b"], 4) == "all 4 idle at 86 W, other nodes at 700 W"


def test_one_job_on_one_of_many_nodes_makes_nobody_idle() -> None:
    fleet = [node("a", *[700] * 4), *(node(name, *[86] * 4) for name in "bcde")]
    assert find_idle(fleet, Profile()) == {}


def test_cards_without_power_are_judged_by_use() -> None:
    busy = node("a", *[700] * 4, power_w=NO_POWER)
    gpus = (*busy.gpus.gpus[:3], dataclasses.replace(busy.gpus.gpus[3], utilization_percent=0.0))
    found = find_idle([dataclasses.replace(busy, gpus=GpuFacts("ok", "", gpus))], Profile())
    assert idle_words(found["a"], 4) == "GPU 3 idle at 0%, the others at 100%"


def test_nothing_is_said_of_what_nobody_knows() -> None:
    unknown = node("a", 700, 700, power_w=NO_POWER, temperature_c=NO_POWER, utilization_percent=NO_POWER)  # fmt: skip
    assert find_idle([unknown], Profile()) == {}
    assert coldest_and_hottest([unknown]) == (None, None)
    assert coldest_and_hottest([NodeFacts("dead")]) == (None, None)


def test_coldest_and_hottest_are_of_the_whole_fleet() -> None:
    hot = node("b", 700)
    hot = dataclasses.replace(
        hot, gpus=GpuFacts("ok", "", (dataclasses.replace(hot.gpus.gpus[0], temperature_c=88.0),))
    )
    cold, warm = coldest_and_hottest([node("a", 700, 101), hot])
    assert cold is not None
    assert warm is not None
    assert cold.words() == "a/1 60 C 101 W"  # of two as warm the one that draws less
    assert warm.words() == "b/0 88 C 700 W"
