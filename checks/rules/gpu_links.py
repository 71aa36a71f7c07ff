"""What GPUs talk over: PCIe, NVLink, NVSwitch."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import NOT_ASKED, Fleet, Gpu, GpuFacts, GpuHealth, NodeFacts, NvLinks, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.rules.gpu_health import first_unknown, label_of, per_gpu, unread
from checks.runner import check


@check(
    "gpu.pcie",
    advisory=True,
    bad="FAIL if the link is narrower than it can be; WARN if its generation is lower under load",
    how="PCIe width and generation, current against maximum; an idle GPU may lower the generation",
    fix="reseat the card, then service",
)
def pcie(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Every GPU has all its PCIe lanes.

    Half of the lanes is half of the speed of loading data and of GPUDirect.
    """

    def judge(gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        now, most = health.pcie_width, health.pcie_width_max
        if isinstance(now, int) and isinstance(most, int) and now < most:
            return fail(
                f"PCIe x{now} of x{most}",
                value=f"x{now}",
                expected=f"x{most}",
                fix="reseat the card; service",
                action=Action.SERVICE,
            )
        gen, best, load = health.pcie_gen, health.pcie_gen_max, gpu.utilization_percent
        busy = not isinstance(load, Unknown) and load > 50
        if busy and isinstance(gen, int) and isinstance(best, int) and gen < best:
            return warn(
                f"PCIe generation {gen} of {best} under load",
                value=str(gen),
                expected=str(best),
                fix="lspci -vv; BIOS",
            )
        return first_unknown(now) or first_unknown(most) or unread(gen, best, load)

    yield from per_gpu(node, judge, "all PCIe lanes")


@check(
    "gpu.nvlink",
    scope="fleet",
    advisory=True,
    bad="FAIL on any inactive link, fewer links than the majority's GPUs, a pair without NVLink",
    how="NVML link states or nvidia-smi nvlink -s, and topo -m",
    fix="sudo systemctl restart nvidia-fabricmanager, then reboot, then service",
)
def nvlink(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """All NVLinks are up.

    NCCL goes over PCIe where they are not, several times slower, without a word.
    """
    best: dict[str, int] = {}
    for node in fleet.reached:
        for _, gpu, one in _linked(node.gpus):
            if one is not None:
                most = max(best.get(str(gpu.name), 0), one.active + len(one.inactive))
                best[str(gpu.name)] = most
    fix = "sudo systemctl restart nvidia-fabricmanager; reboot; service"
    for node in fleet.reached:
        names, links, pairs = (node.name,), node.gpus.nvlinks, node.gpus.pairs
        if node.gpus.state in ("none", "no-tool"):
            yield skip("no GPU", nodes=names)
        elif not node.gpus.gpus:
            yield unknown(f"links: {node.gpus.summary}", nodes=names, because="gpu.driver")
        elif links == NOT_ASKED:
            yield skip(NOT_ASKED.reason, nodes=names)
        elif isinstance(links, Unknown):
            yield unknown(links.reason, nodes=names)
        elif not any(best.get(str(gpu.name), 0) for gpu in node.gpus.gpus):
            yield skip("no GPU has NVLink", nodes=names)
        else:
            seen = list(_linked(node.gpus))
            blind = [label for label, _, one in seen if one is None]
            off = [one for _, _, one in seen if one is not None and one.inactive]
            few = [
                (one, best[str(gpu.name)])
                for _, gpu, one in seen
                if one is not None and not one.inactive and one.active < best[str(gpu.name)]
            ]
            slow = (
                []
                if isinstance(pairs, Unknown)
                else [
                    pair
                    for pair, way in pairs.items()
                    if pair.replace("-", "").isdecimal() and not way.startswith("NV")
                ]
            )
            evidence = [
                f"GPU {one.gpu}: "
                + (
                    "all links are inactive"
                    if -1 in one.inactive or not one.active
                    else f"link {','.join(map(str, one.inactive))} inactive"
                )
                for one in off
            ] + [f"GPU {one.gpu}: {one.active} links, others have {most}" for one, most in few]
            if slow and not evidence:
                evidence = [f"no NVLink between GPUs {', '.join(slow[:4])}"]
            if evidence:
                yield fail(
                    "; ".join(evidence[:4]),
                    nodes=names,
                    value=str(len(off) + len(few)),
                    expected="0",
                    fix=fix,
                    action=Action.REBOOT,
                )
            elif blind:
                yield unknown(f"links of GPU {','.join(blind)} were not told", nodes=names)
            elif node.gpus.state == "partial":
                yield unknown(
                    f"the other GPUs: {node.gpus.summary}", nodes=names, because="gpu.driver"
                )
            elif isinstance(pairs, Unknown) and not pairs.is_absence:
                yield unknown(f"the links are up, topology: {pairs.reason}", nodes=names)
            else:
                yield passed("all links are up", nodes=names)


def _linked(gpus: GpuFacts) -> Iterator[tuple[str, Gpu, NvLinks | None]]:
    """Each GPU with its label and its links; None where those were not told."""
    links = {} if isinstance(gpus.nvlinks, Unknown) else {one.gpu: one for one in gpus.nvlinks}
    for position, gpu in enumerate(gpus.gpus):
        number = position if isinstance(gpu.index, Unknown) else gpu.index
        yield label_of(gpu, position), gpu, links.get(number)


@check(
    "gpu.fabric",
    advisory=True,
    bad="FAIL with NVSwitch and a manager that is not active or a fabric that is not Completed",
    how=(
        "NVSwitch chips on PCI, systemctl is-active nvidia-fabricmanager, fabric state of the "
        "driver"
    ),
    fix="sudo systemctl restart nvidia-fabricmanager",
)
def fabric(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """With NVSwitch the fabric manager has done its work.

    Without it CUDA does not even initialise on an SXM board.
    """
    fix = "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager"
    switches, manager = node.gpus.nvswitches, node.gpus.fabric_manager
    has_switches = isinstance(switches, int) and switches > 0
    if has_switches and manager in ("inactive", "failed"):
        yield fail(
            f"{switches} NVSwitch chips, and the fabric manager is {manager}",
            value=str(manager),
            expected="active",
            fix=fix,
        )
        return

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        state, status = health.fabric_state, health.fabric_status
        if isinstance(state, str) and (
            state != "Completed" or (isinstance(status, str) and status != "Success")
        ):
            said = state if isinstance(status, Unknown) else f"{state}, {status}"
            return fail(f"fabric is {said}", value=said, expected="Completed", fix=fix)
        if isinstance(switches, Unknown) and switches != NOT_ASKED:
            return Unknown(f"NVSwitch chips: {switches.reason}")
        if has_switches and manager != "active":
            return Unknown(f"the fabric manager: {manager}")
        return first_unknown(state) or unread(status)

    yield from per_gpu(node, judge, "fabric completed")
