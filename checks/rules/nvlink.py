"""NVLinks: what is off by the wiring of a model, and what is off on a GPU and on no other.

A GPU in a socket of a board (SXM, HGX) has all its links wired. A card has NVLink only over a
bridge that is plugged on two to four cards, which joins these alone and may leave links unused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from checks.compare import each_node
from checks.facts import Fleet, Gpu, GpuFacts, GpuHealth, NodeFacts, NvLinks, Unknown
from checks.finding import Action, Finding, fail, need, passed, skip, unknown, warn
from checks.reference.nvlink_models import is_card, is_joined_with_all, is_wired, links_of_bridge
from checks.registry import check
from checks.rules.gpu import by_driver, need_answer, silent_others

BRIDGE = "look whether a bridge is on these cards, and reseat it; nvidia-smi topo -m"
COMPARE = "nvidia-smi nvlink -s on another node of this kind; a bridge may leave links unused"


class _Seen(NamedTuple):
    """The links of one GPU of the fleet."""

    node: str
    place: int
    links: NvLinks


class _Model:
    """What the GPUs of one name have in this fleet."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, list[_Seen]()

    @property
    def most(self) -> int:
        """Links that are up on the best of them."""
        return max((one.links.active for one in self.seen), default=0)

    @property
    def has_links(self) -> bool:
        return any(one.links.active or one.links.inactive for one in self.seen)

    def wired_nodes(self, links: NvLinks, place: int) -> int:
        """Nodes whose GPU at this place has the same links off."""
        same = (one for one in self.seen if one.links.inactive == links.inactive)
        return len({one.node for one in same if one.place == place})

    def is_alike(self, links: NvLinks, place: int) -> bool:
        """Whether these links are off by wiring: those of a dead link are off on one node alone."""
        equal = sum(one.links.inactive == links.inactive for one in self.seen)
        return (
            links.active == links_of_bridge(self.name)
            or equal > 2
            or self.wired_nodes(links, place) > 1
        )


@check("gpu.nvlink", "fleet", advisory=True)
def nvlink(fleet: Fleet) -> Iterator[Finding]:
    """All NVLinks are up that the wiring of this model uses.

    Why: NCCL goes over PCIe where they are not, several times slower, without a message.
    Bad: FAIL on a GPU with fewer links up than others of its model, a board (SXM, HGX) with links
        off, a pair on it without NVLink; WARN if all nodes have the same links of a board off, a
        node of cards where nobody can tell whether a bridge is missing, virtual machines none of
        which has a link: the host assigns them. Cards without a bridge on any node are skipped
    How: NVML link states or nvidia-smi nvlink -s, and topo -m
    Fix: sudo systemctl restart nvidia-fabricmanager; reboot; service
    """
    models: dict[str, _Model] = {}
    joined: defaultdict[str, set[str]] = defaultdict(set)  # pairs with NVLink, by model
    for node in fleet.reached:
        for place, (_, gpu, links) in enumerate(_linked(node.gpus)):
            model = models.setdefault(str(gpu.name), _Model(str(gpu.name)))
            if links is not None:
                model.seen.append(_Seen(node.name, place, links))
        joined[_first_name(node.gpus)] |= set(_pairs(node.gpus, with_nvlink=True))
    nodes = len(fleet.reached)

    def judge(_node: NodeFacts, gpus: GpuFacts) -> Finding:
        need_answer(gpus, "links")
        need(gpus.nvlinks)
        if not any(models[str(gpu.name)].has_links for gpu in gpus.gpus):
            return skip("no GPU has NVLink")
        found = list(_faults(gpus, models))
        if not found:
            found = _missing_pairs(gpus, joined[_first_name(gpus)])
        if found and _is_virtual(gpus) and not any(models[str(g.name)].most for g in gpus.gpus):
            text = f"a virtual machine, and no GPU of this model has a link: {found[0]}"
            return warn(text, fix="ask the owner of the host; --active measures without NVLink")
        if found:
            evidence, count = "; ".join(found[:4]), len(found)
            if all(is_card(gpu.name) for gpu in gpus.gpus):
                return fail(evidence, count, 0, fix=BRIDGE, action=Action.SERVICE)
            return fail(evidence, count, 0, action=Action.REBOOT)
        silent = [label for label, _, links in _linked(gpus) if links is None]
        if silent:
            stuck = {gpu.label(at) for at, gpu in enumerate(gpus.gpus) if gpu.broken}
            lacks = by_driver if stuck.issuperset(silent) else unknown
            return lacks(f"links of GPU {','.join(silent)} were not reported")
        if others := silent_others(gpus):
            return others
        if isinstance(gpus.pairs, Unknown) and len(gpus.gpus) > 1:
            return unknown(f"the links are up, topology: {gpus.pairs}")
        return _by_wiring(gpus, models, nodes)

    return each_node(fleet, "gpus", judge)


def _faults(gpus: GpuFacts, models: dict[str, _Model]) -> Iterator[str]:
    """What is off on a GPU and not by the wiring of its model."""
    for place, (_, gpu, links) in enumerate(_linked(gpus)):
        if links is None:
            continue
        model = models[str(gpu.name)]
        if is_card(gpu.name) and len(gpus.gpus) == 1 and not links.active:
            continue  # a bridge needs two cards
        is_less = links.active < model.most
        if not links.inactive and is_less:
            yield f"GPU {links.gpu}: {links.active} links, others have {model.most}"
        elif links.inactive and (is_less or _is_fault(model, links, place)):
            yield f"GPU {links.gpu}: {_which(links)}"


def _is_fault(model: _Model, links: NvLinks, place: int) -> bool:
    """Whether links of a GPU are off though no other GPU of its model has more."""
    if not is_wired(model.name):
        return False
    if not links.active:
        return True
    joined = is_joined_with_all(model.name)
    return joined and model.wired_nodes(links, place) < 2


def _which(links: NvLinks) -> str:
    if -1 in links.inactive or not links.active:
        return "all links are inactive"
    return f"link {','.join(map(str, links.inactive))} inactive"


def _by_wiring(gpus: GpuFacts, models: dict[str, _Model], nodes: int) -> Finding:
    """The finding of a node on which no GPU has fewer links than its equals."""
    off = [
        (place, gpu, links)
        for place, (_, gpu, links) in enumerate(_linked(gpus))
        if links is not None and links.inactive
    ]
    if not off:
        return passed("all links are up")
    _, gpu, links = off[0]
    text = f"GPU {links.gpu}: {_which(links)}"
    if not links.active:
        if is_card(gpu.name) and (len(gpus.gpus) == 1 or nodes > 1):
            return skip(f"no {gpu.name} here has an NVLink bridge: all links are inactive")
        which = "no bridge, or it is not seated" if is_card(gpu.name) else "by design, or a fault"
        return warn(f"{text}: {which}", len(off), 0, fix=BRIDGE)
    if is_joined_with_all(gpu.name):
        return warn(f"{text}, as on other nodes: by wiring, or a fault of all", len(off), 0)
    if unlike := [one for one in off if not models[str(one[1].name)].is_alike(one[2], one[0])]:
        _, _, links = unlike[0]
        text = f"GPU {links.gpu}: {_which(links)}, and no other node tells whether by design"
        return warn(text, len(unlike), 0, fix=COMPARE)
    total = links.active + len(links.inactive)
    return passed(f"{links.active} of {total} links are up, as this model is wired", links.active)


def _missing_pairs(gpus: GpuFacts, joined: set[str]) -> list[str]:
    """GPUs of a board without NVLink between them, or of a pair that has it on other nodes."""
    slow = _pairs(gpus, with_nvlink=False)
    if not all(is_joined_with_all(gpu.name) for gpu in gpus.gpus):
        is_board = not any(is_card(gpu.name) for gpu in gpus.gpus)
        slow = [pair for pair in slow if is_board and pair in joined]
    return [f"no NVLink between GPUs {', '.join(slow[:4])}"] if slow else []


def _pairs(gpus: GpuFacts, *, with_nvlink: bool) -> list[str]:
    pairs = {} if isinstance(gpus.pairs, Unknown) else gpus.pairs
    of_gpus = (pair for pair in pairs if pair.replace("-", "").isdecimal())
    return [pair for pair in of_gpus if pairs[pair].startswith("NV") is with_nvlink]


def _first_name(gpus: GpuFacts) -> str:
    return str(gpus.gpus[0].name) if gpus.gpus else ""


def _is_virtual(gpus: GpuFacts) -> bool:
    return any(isinstance(gpu.health, GpuHealth) and gpu.health.is_virtual for gpu in gpus.gpus)


def _linked(gpus: GpuFacts) -> Iterator[tuple[str, Gpu, NvLinks | None]]:
    """Each GPU with its label and its links; None where those were not reported."""
    links = {} if isinstance(gpus.nvlinks, Unknown) else {one.gpu: one for one in gpus.nvlinks}
    for position, gpu in enumerate(gpus.gpus):
        number = position if isinstance(gpu.index, Unknown) else gpu.index
        yield gpu.label(position), gpu, links.get(number)
