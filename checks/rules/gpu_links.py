"""What GPUs talk over: PCIe, NVLink, NVSwitch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from checks.compare import each_node
from checks.facts import NOT_ASKED, Fleet, Gpu, GpuFacts, GpuHealth, NodeFacts, NvLinks, Unknown
from checks.finding import Action, Finding, fail, need, passed, skip, unknown, warn
from checks.registry import check
from checks.rules.gpu import need_answer, silent_others
from checks.rules.gpu_health import Judgement, each_gpu, first_unknown, per_gpu, unread


@check("gpu.pcie", advisory=True)
@each_gpu("all PCIe lanes")
def pcie(gpu: Gpu, health: GpuHealth) -> Judgement:
    """Every GPU has all its PCIe lanes.

    Why: Half of the lanes is half of the speed of loading data and of GPUDirect.
    Bad: FAIL if the link is narrower than it can be; WARN if its generation is lower under load
    How: PCIe width and generation, current against maximum; an idle GPU may lower the generation
    Fix: reseat the card; service
    """
    now, most = health.pcie_width, health.pcie_width_max
    if isinstance(now, int) and isinstance(most, int) and now < most:
        return fail(f"PCIe x{now} of x{most}", f"x{now}", f"x{most}", action=Action.SERVICE)
    gen, best, load = health.pcie_gen, health.pcie_gen_max, gpu.utilization_percent
    busy = not isinstance(load, Unknown) and load > 50
    if busy and isinstance(gen, int) and isinstance(best, int) and gen < best:
        return warn(f"PCIe generation {gen} of {best} under load", gen, best, fix="lspci -vv; BIOS")
    return first_unknown(now) or first_unknown(most) or unread(gen, best, load)


@check("gpu.nvlink", "fleet", advisory=True)
def nvlink(fleet: Fleet) -> Iterator[Finding]:
    """All NVLinks are up.

    Why: NCCL goes over PCIe where they are not, several times slower, without a message.
    Bad: FAIL on any inactive link, fewer links than the majority's GPUs, a pair without NVLink
    How: NVML link states or nvidia-smi nvlink -s, and topo -m
    Fix: sudo systemctl restart nvidia-fabricmanager; reboot; service
    """
    best: dict[str, int] = defaultdict(int)  # links of a GPU, by model
    for _, gpu, links in (one for node in fleet.reached for one in _linked(node.gpus)):
        count = links.active + len(links.inactive) if links else 0
        best[str(gpu.name)] = max(best[str(gpu.name)], count)

    def judge(_node: NodeFacts, gpus: GpuFacts) -> Finding:
        need_answer(gpus, "links")
        need(gpus.nvlinks)
        if not any(best[str(gpu.name)] for gpu in gpus.gpus):
            return skip("no GPU has NVLink")
        off, few, silent = [], [], []
        for label, gpu, links in _linked(gpus):
            most = best[str(gpu.name)]
            if links is None:
                silent.append(label)
            elif links.inactive:
                numbers = ",".join(map(str, links.inactive))
                every = -1 in links.inactive or not links.active
                which = "all links are inactive" if every else f"link {numbers} inactive"
                off.append(f"GPU {links.gpu}: {which}")
            elif links.active < most:
                few.append(f"GPU {links.gpu}: {links.active} links, others have {most}")
        pairs = {} if isinstance(gpus.pairs, Unknown) else gpus.pairs
        of_gpus = (pair for pair in pairs if pair.replace("-", "").isdecimal())
        slow = [pair for pair in of_gpus if not pairs[pair].startswith("NV")]
        evidence = [*off, *few]
        if slow and not evidence:
            evidence = [f"no NVLink between GPUs {', '.join(slow[:4])}"]
        if evidence:
            count = len(off) + len(few)
            return fail("; ".join(evidence[:4]), count, 0, action=Action.REBOOT)
        if silent:
            return unknown(f"links of GPU {','.join(silent)} were not reported")
        if others := silent_others(gpus):
            return others
        if isinstance(gpus.pairs, Unknown) and not gpus.pairs.is_absence:
            return unknown(f"the links are up, topology: {gpus.pairs}")
        return passed("all links are up")

    return each_node(fleet, "gpus", judge)


def _linked(gpus: GpuFacts) -> Iterator[tuple[str, Gpu, NvLinks | None]]:
    """Each GPU with its label and its links; None where those were not reported."""
    links = {} if isinstance(gpus.nvlinks, Unknown) else {one.gpu: one for one in gpus.nvlinks}
    for position, gpu in enumerate(gpus.gpus):
        number = position if isinstance(gpu.index, Unknown) else gpu.index
        yield gpu.label(position), gpu, links.get(number)


@check("gpu.fabric", advisory=True)
def fabric(gpus: GpuFacts) -> Iterable[Finding]:
    """With NVSwitch the fabric manager has done its work.

    Why: Without it CUDA does not even initialise on an SXM board.
    Bad: FAIL with NVSwitch and a manager that is not active or a fabric that is not Completed
    How: NVSwitch chips on PCI, systemctl is-active nvidia-fabricmanager, fabric state of the driver
    Fix: sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager
    """
    switches, manager = gpus.nvswitches, gpus.fabric_manager
    has_switches = isinstance(switches, int) and switches > 0
    if has_switches and manager in ("inactive", "failed"):
        text = f"{switches} NVSwitch chips, and the fabric manager is {manager}"
        return [fail(text, manager, "active")]

    def judge(_gpu: Gpu, health: GpuHealth) -> Judgement:
        state, status = health.fabric_state, health.fabric_status
        bad_status = isinstance(status, str) and status != "Success"
        if isinstance(state, str) and (state != "Completed" or bad_status):
            text = state if isinstance(status, Unknown) else f"{state}, {status}"
            return fail(f"fabric is {text}", text, "Completed")
        if isinstance(switches, Unknown) and switches != NOT_ASKED:
            return Unknown(f"NVSwitch chips: {switches}")
        if has_switches and manager != "active":
            return Unknown(f"the fabric manager: {manager}")
        return first_unknown(state) or unread(status)

    return per_gpu(gpus, judge, "fabric completed")
