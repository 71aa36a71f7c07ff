"""Faults of a cluster, as changes of its nodes' readings. Pure.

For the demo and for tests of alerts: each incident changes only what the real
fault changes, so that a rule which fires for something else is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dashboards.model import units
from dashboards.model.samples import EventSample, Gpu, NodeDown, NodeSample, Xid
from trainer.runlog.telemetry import Event


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault between two times, in seconds of the cluster; `node` counts from 1.

    Kinds: power_drop (one GPU waits while the others compute), stalled_steps (the whole run waits),
    clock_step (the node's clock jumps by `size` seconds and stays there), link_errors (`size` a
    minute on one InfiniBand port), link_down, throttle (hot, clocks held down), ecc (`size`
    uncorrected memory errors), xid (of number `size`), disk_filling (/data goes from 71 % to 98 %),
    wandb_unsent (the run tells that W&B does not take its figures), node_dead (ssh does not answer,
    reported after `size` seconds), node_silent (the stream is open, nothing comes), gpu_lost.
    """

    kind: str
    node: int = 1
    gpu: int = 0
    begin_s: float = 0.0
    end_s: float = 300.0
    size: float = 0.0  # of the fault, in the unit that its kind names
    every_s: float = 0.0  # comes again after so many seconds; 0 never

    def since(self, at_s: float) -> float | None:
        """Seconds that it lasts already; None when it is not there."""
        passed = at_s - self.begin_s
        if self.every_s and passed >= 0:
            passed %= self.every_s
        return passed if 0 <= passed < self.end_s - self.begin_s else None


ROUND_S = 1.0  # between readings
DEAD_S = 7.0
DEAD = ("banner", f"the server sent no ssh version line within {units.duration(DEAD_S)}")
XID_TEXT = {
    74.0: "pid=88127, name=python3, NVLink: fatal error detected on link 7(0x10000, 0x0, 0x0)",
    79.0: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
}


def unsent(steps: int, step: int, at_s: float) -> EventSample:
    """W&B took no figures of so many steps."""
    text = f"W&B was too slow for {steps} steps"
    return EventSample(Event("tracking", text, {"unsent": steps}, step, at_s), at_s)


def apply_faults(
    sample: NodeSample, found: Iterable[tuple[Incident, float]]
) -> NodeSample | NodeDown | None:
    """What the node gives under its incidents; None for nothing.

    `found` are incidents with the seconds for which they last already.
    """
    for incident, since in found:
        kind, size = incident.kind, incident.size
        if kind == "node_silent" or (kind == "node_dead" and since < size):
            return None
        if kind == "node_dead":
            return NodeDown(sample.node, sample.at_s, *DEAD)
        if kind == "clock_step":
            offset = (sample.clock_offset_s or 0.0) + size
            step = size if since < ROUND_S else 0.0
            sample = replace(sample, clock_offset_s=offset, clock_step_s=step)
        elif kind in ("link_errors", "link_down"):
            links = list(sample.links or ())
            if kind == "link_errors":
                links[4] = replace(links[4], errors_min=size)
            else:
                links[4] = replace(links[4], state="Down", rx_bytes_s=0.0, tx_bytes_s=0.0, downs=1)
            sample = replace(sample, links=tuple(links))
        elif kind == "disk_filling":
            part = min(0.98, 0.71 + 0.27 * since / (0.6 * (incident.end_s - incident.begin_s)))
            root, data = sample.disks or ()
            data = replace(data, used_bytes=part * (data.total_bytes or 0))
            sample = replace(sample, disks=(root, data))
        elif kind == "xid":
            line = Xid(sample.at_s - since, incident.gpu, int(size), XID_TEXT.get(size, "Xid"))
            sample = replace(sample, xids=(*(sample.xids or ()), line))
        else:
            gpus = [
                _with_fault(one, incident) if one.index == incident.gpu else one
                for one in sample.gpus or ()
            ]
            sample = replace(sample, gpus=tuple(gpu for gpu in gpus if gpu is not None))
    return sample


def _with_fault(gpu: Gpu, incident: Incident) -> Gpu | None:
    if incident.kind == "gpu_lost":
        return None
    if incident.kind == "power_drop":
        return replace(gpu, power_w=98.0 + (gpu.power_w or 0.0) % 5, temperature_c=43.0)
    if incident.kind == "ecc":
        return replace(gpu, ecc_errors=int(incident.size))
    return gpu
