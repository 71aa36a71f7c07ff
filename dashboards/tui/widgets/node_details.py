"""The panels below a node's GPUs: links, disks, processes, alerts, as lines or in boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.style import Style

from dashboards.alerts.rules.base import is_up
from dashboards.model import units
from dashboards.model.alert_book import Alert
from dashboards.model.samples import Disk, Link, NodeSample, Process
from dashboards.model.state import State
from dashboards.model.table import folded
from dashboards.tui.widgets.bars import is_muted
from dashboards.tui.widgets.history import shown
from dashboards.tui.widgets.node_panels import NodePanel
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, gauge, width_of, words

FULL_DISK, NEARLY_FULL_DISK = 0.95, 0.85


class NodeDetails(NodePanel):
    """Links, disks, Xid and alerts, each in as few lines as there is room for."""

    with_boxes = False  # links and disks have panels of their own

    def lines_wanted(self, state: State) -> int:
        """One for the ports and one for the disks, if they have no boxes; one for each alert."""
        sample, lines = self.sample(state), min(3, len(alerts_of(state, self.node)))
        if sample is not None:
            lines += bool(sample.xids) + _log_is_missed(sample)
            if not self.with_boxes:
                lines += bool(sample.links) + bool(sample.disks) + bool(_not_known(sample))
        return lines

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        sample = self.sample(state)
        if sample is not None:
            yield from self._facts(sample, state, width, colors)
        yield from (alert_line(alert, state, colors) for alert in alerts_of(state, self.node))

    def _facts(
        self, sample: NodeSample, state: State, width: int, colors: Palette
    ) -> Iterator[Line]:
        if sample.links and not self.with_boxes:
            yield ports_line(sample.links, colors)
        if sample.disks and not self.with_boxes:
            yield disks_line(sample, width, colors)
        if (unread := _not_known(sample)) and not self.with_boxes:
            yield words((f" {units.UNKNOWN} not known: {unread}", colors.warn))
        if sample.xids:
            last = sample.xids[-1]
            where = "" if last.gpu is None else f" GPU {last.gpu}"
            text = f"Xid {last.code}{where} {units.ago(state.now_s - last.at_s)}: {last.text}"
            yield words((" ! ", colors.bad), (text, colors.bad))
        if _log_is_missed(sample):
            yield words((f" {units.UNKNOWN} Xid not known: {sample.log_error}", colors.warn))


def _not_known(sample: NodeSample) -> str:
    """What has a line of its own and could not be read; a node without GPUs has no processes."""
    found: dict[str, object] = {"network": sample.links, "disks": sample.disks}
    if sample.gpus:
        found["processes"] = sample.processes
    return ", ".join(name for name, value in found.items() if value is None)


def _log_is_missed(sample: NodeSample) -> bool:
    """Whether an Xid of its GPUs would not be seen."""
    return bool(sample.gpus and sample.log_error)


def ports_line(links: Sequence[Link], colors: Palette) -> Line:
    """All ports in a line: ` IB 7/8 up 400G ↓21 GB/s ↑20 GB/s  errors/min mlx5_4 12!`."""
    line: Line = []
    for kind, name in (("ib", "IB"), ("eth", "Eth")):
        ports = [link for link in links if link.kind == kind]
        if not ports:
            continue
        lost = [port for port in ports if not is_up(port)]
        rates = sorted({port.rate_gbps for port in ports if port.rate_gbps})
        rate = "/".join(f"{value:g}" for value in rates) + "G" * bool(rates)
        received = units.rate(folded("total", (port.rx_bytes_s for port in ports)))
        sent = units.rate(folded("total", (port.tx_bytes_s for port in ports)))
        up = f"{len(ports) - len(lost)}/{len(ports)} up {rate}"
        line += words(
            (f" {name} ", colors.dim),
            (up, colors.bad if lost else colors.text),
            (f" ↓{received} ↑{sent} ", colors.label),
        )
        bad = ", ".join(f"{port.name} {port.errors_min:.0f}!" for port in ports if port.errors_min)
        down = ", ".join(f"{port.name} {port.state}" for port in lost)
        line += words((f" errors/min {bad} " if bad else "", colors.bad))
        line += words((f" {down} " if down else "", colors.bad))
    return line


def _full_style(disk: Disk, usual: Style, colors: Palette) -> Style:
    full = disk.full or 0.0
    return colors.bad if full > FULL_DISK else colors.warn if full > NEARLY_FULL_DISK else usual


def _is_fine(disk: Disk) -> bool:
    return disk.full is not None and disk.full <= NEARLY_FULL_DISK


def disks_line(sample: NodeSample, width: int, colors: Palette) -> Line:
    """` disk /home no answer  /data 96%!  / 41%  +2`: trouble first, then as many as fit."""
    line = words((" disk", colors.dim))
    left = 0
    for disk in sorted(sample.disks or (), key=_is_fine):
        text, style = disk.error or "no answer", colors.warn
        if disk.full is not None:
            text = units.percent(disk.full) + "!" * (disk.full > FULL_DISK)
            style = _full_style(disk, colors.text, colors)
        part = words((f"  {disk.path} ", colors.label), (text, style))
        if width_of(line) + width_of(part) <= width:
            line += part
        else:
            left += 1
    return line + words((f"  +{left}" if left else "", colors.dim))


class PartsPanel(NodePanel):
    """Parts of a node in a box, or why there are none."""

    PARTS, TITLE, NONE = "", "", ""  # PARTS: the field of a NodeSample
    IS_COUNTED = False  # the title has their number

    def lines(self, found: Sequence[Any], width: int, colors: Palette) -> Iterator[Line]:
        raise NotImplementedError

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterable[Line]:
        found = getattr(self.sample(state), self.PARTS, None)
        self.title(f"{self.TITLE} {len(found)}" if found and self.IS_COUNTED else self.TITLE)
        if not found:
            text = " could not find out" if found is None else self.NONE
            return [words((text, colors.dim))]
        return self.lines(found, width, colors)


class NodeLinks(PartsPanel):
    PARTS, TITLE, NONE = "links", "network", " no ports"

    def lines(self, links: Sequence[Link], width: int, colors: Palette) -> Iterator[Line]:
        wide = max(6, *(len(link.name) for link in links))
        heading = f"{'state':<7}{'rate':>6}{'in':>12}{'out':>12}{'err/min':>8}{'downs':>6}"
        yield words((f" {'port':<{wide}} {heading}", colors.dim))
        for link in links:
            errors = shown(link.errors_min, ".0f") + "!" * bool(link.errors_min)
            rates = f"{units.rate(link.rx_bytes_s):>12}{units.rate(link.tx_bytes_s):>12}"
            yield words(
                (f" {link.name:<{wide}} ", colors.text),
                (f"{link.state[:7]:<7}", colors.good if is_up(link) else colors.bad),
                (f"{shown(link.rate_gbps, 'g', 'G'):>6}", colors.label),
                (rates, colors.text),
                (f"{errors:>8}", colors.bad if link.errors_min else colors.label),
                (f"{shown(link.downs, ''):>6}", colors.label),
            )


class NodeDisks(PartsPanel):
    PARTS, TITLE, NONE = "disks", "disks", " none"

    def lines(self, disks: Sequence[Disk], width: int, colors: Palette) -> Iterator[Line]:
        wide = min(22, max(len(disk.path) for disk in disks))
        for disk in disks:
            style = _full_style(disk, colors.good, colors)
            text, ink = disk.error or "no answer", colors.warn
            if disk.full is not None:
                text = f"{units.size(disk.used_bytes)} of {units.size(disk.total_bytes)}"
                ink = colors.dim
            line = words((f" {disk.path[:wide]:<{wide}} ", colors.label))
            line += gauge(disk.full, max(4, width - wide - 27), style, colors)
            yield line + words((f" {units.percent(disk.full):>4}", style), (f" {text}", ink))


class NodeProcesses(PartsPanel):
    PARTS, TITLE, NONE = "processes", "processes", " none on its GPUs"
    IS_COUNTED = True

    def lines(self, found: Sequence[Process], width: int, colors: Palette) -> Iterator[Line]:
        heading = (
            f" {'GPU':>3} {'pid':>8} {'user':<9}{'memory':>9} {'rank':>5} {'age':>11}  program"
        )
        yield words((heading, colors.dim))
        for one in sorted(found, key=lambda p: (p.gpu is None, p.gpu or 0, p.pid)):
            yield words(
                (f" {shown(one.gpu, ''):>3}", colors.text),
                (f" {one.pid:>8} {one.user[:8]:<9}", colors.label),
                (f"{units.size(one.memory_bytes):>9}", colors.text),
                (f" {'' if one.rank is None else one.rank:>5}", colors.strong),
                (f" {units.duration(one.age_s):>11}", colors.label),
                (f"  {one.name}", colors.text),
                (f"  {one.run}", colors.dim),
            )


def alerts_of(state: State, node: str) -> list[Alert]:
    active = state.alerts.active
    return [alert for alert in active if node in alert.nodes and not is_muted(alert, state)]


def alert_line(alert: Alert, state: State, colors: Palette) -> Line:
    """`! FAIL gpu.idle  2 min  101 W, the others 700 W`: for the screens that are about else."""
    style = colors.dim if alert.acknowledged else colors.severity(alert.severity)
    return words(
        (f" {'!' if alert.severity == 'fail' else ' '} {alert.severity.upper()} ", style),
        (f"{alert.id}  ", style),
        (f"{alert.subject}  ", colors.label),
        (alert.text, colors.dim if alert.acknowledged else colors.text),
        (f"  for {units.duration(state.now_s - alert.first_s)}", colors.dim),
    )
