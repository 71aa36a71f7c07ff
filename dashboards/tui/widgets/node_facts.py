"""What stands below a node's GPUs: links, disks, processes, alerts, as lines or in boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dashboards.model import units
from dashboards.model.samples import Disk, Link, NodeSample
from dashboards.model.state import State
from dashboards.tui.braille import bar
from dashboards.tui.widgets.attention import alert_line, alerts_of
from dashboards.tui.widgets.node_panels import NodePanel
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, fitted, width_of, words

FULL_DISK, NEARLY_FULL_DISK = 0.95, 0.85


class NodeFacts(NodePanel):
    """Links, disks, Xid and alerts, each in as few lines as there is room for."""

    with_boxes = False  # links and disks have panels of their own

    def lines_wanted(self, state: State) -> int:
        """One for the ports and one for the disks, if they have no boxes; one for each alert."""
        node = self.of(state)
        sample = node.sample if node else None
        if sample is None:
            return 0
        more = bool(sample.xids) + _log_is_missed(sample) + min(3, len(alerts_of(state, self.node)))
        return more if self.with_boxes else bool(sample.links) + bool(sample.disks) + more

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        sample = node.sample if node else None
        if sample is None:
            return []
        lines: list[Line] = []
        if sample.links and not self.with_boxes:
            lines.append(ports_line(sample.links, width, colors))
        if sample.disks and not self.with_boxes:
            lines.append(disks_line(sample, width, colors))
        if sample.xids:
            last = sample.xids[-1]
            where = "" if last.gpu is None else f" GPU {last.gpu}"
            text = f"Xid {last.code}{where} {units.age(state.now_s - last.at_s)} ago: {last.text}"
            lines.append(words((" ! ", colors.bad), (text, colors.bad)))
        if _log_is_missed(sample):
            lines.append(
                words((f" {units.UNKNOWN} Xid not known: {sample.log_error}", colors.warn))
            )
        lines += [alert_line(alert, state, colors) for alert in alerts_of(state, self.node)]
        return [fitted(line, width, colors.text) for line in lines]


def _log_is_missed(sample: NodeSample) -> bool:
    """Whether an Xid of its GPUs would not be seen."""
    return bool(sample.gpus and sample.log_error)


def ports_line(links: Sequence[Link], width: int, colors: Palette) -> Line:
    """All ports in a line: ` IB 8 Active 400G  ↓ 21 GB/s ↑ 20 GB/s  errors/min mlx5_4 12!`."""
    line: Line = []
    for kind, name in (("ib", "IB"), ("eth", "Eth")):
        ports = [link for link in links if link.kind == kind]
        if not ports:
            continue
        up = [port for port in ports if port.state.lower() in ("active", "up")]
        rates = sorted({port.rate_gbps for port in ports if port.rate_gbps})
        rate = "/".join(f"{value:g}" for value in rates) + "G" if rates else ""
        good = len(up) == len(ports)
        line += words(
            (f" {name} ", colors.dim),
            (f"{len(up)}/{len(ports)} up {rate}", colors.text if good else colors.bad),
            (
                (
                    f" ↓{units.rate(_sum(p.rx_bytes_s for p in ports))}"
                    f" ↑{units.rate(_sum(p.tx_bytes_s for p in ports))} "
                ),
                colors.label,
            ),
        )
        bad = [port for port in ports if port.errors_min]
        if bad:
            listed = ", ".join(f"{port.name} {port.errors_min:.0f}!" for port in bad)
            line += words((f" errors/min {listed} ", colors.bad))
        lost = [port for port in ports if port not in up]
        if lost:
            listed = ", ".join(f"{port.name} {port.state}" for port in lost)
            line += words((f" {listed} ", colors.bad))
    return line


def _is_fine(disk: Disk) -> bool:
    return disk.full is not None and disk.full <= NEARLY_FULL_DISK


def disks_line(sample: NodeSample, width: int, colors: Palette) -> Line:
    """` disk /home no answer  /data 96%!  / 41%  +2`: trouble first, then as many as fit."""
    line = words((" disk", colors.dim))
    left = 0
    for disk in sorted(sample.disks or (), key=_is_fine):
        full = disk.full
        style = colors.text
        text = units.percent(full)
        if full is None:
            text, style = disk.error or "no answer", colors.warn
        elif full > FULL_DISK:
            text, style = f"{text}!", colors.bad
        elif full > NEARLY_FULL_DISK:
            style = colors.warn
        part = words((f"  {disk.path} ", colors.label), (text, style))
        if width_of(line) + width_of(part) <= width:
            line += part
        else:
            left += 1
    return line + words((f"  +{left}" if left else "", colors.dim))


class NodeLinks(NodePanel):
    """Every port with its rates and errors."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        links = node.sample.links if node and node.sample else None
        self.title("network", "" if links else units.UNKNOWN)
        if not links:
            text = " no ports" if links is not None else " could not find out"
            return [words((text, colors.dim))]
        name_wide = max(6, *(len(link.name) for link in links))
        heading = (
            f" {'port':<{name_wide}} {'state':<7}{'rate':>6}{'in':>10}{'out':>10}"
            f"{'err/min':>8}{'downs':>6}"
        )
        lines = [words((heading, colors.dim))]
        for link in links:
            up = link.state.lower() in ("active", "up")
            errors = units.UNKNOWN if link.errors_min is None else f"{link.errors_min:.0f}"
            rate = units.UNKNOWN if link.rate_gbps is None else f"{link.rate_gbps:g}G"
            lines.append(
                words(
                    (f" {link.name:<{name_wide}} ", colors.text),
                    (f"{link.state[:7]:<7}", colors.good if up else colors.bad),
                    (f"{rate:>6}", colors.label),
                    (
                        f"{units.rate(link.rx_bytes_s):>10}{units.rate(link.tx_bytes_s):>10}",
                        colors.text,
                    ),
                    (
                        f"{errors + ('!' if link.errors_min else ''):>8}",
                        colors.bad if link.errors_min else colors.label,
                    ),
                    (f"{units.UNKNOWN if link.downs is None else link.downs:>6}", colors.label),
                )
            )
        return lines


class NodeDisks(NodePanel):
    """Every file system with a bar."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        disks = node.sample.disks if node and node.sample else None
        self.title("disks")
        if not disks:
            return [words((" could not find out" if disks is None else " none", colors.dim))]
        wide = min(22, max(len(disk.path) for disk in disks))
        lines = []
        for disk in disks:
            full = disk.full
            style = (
                colors.bad
                if (full or 0) > FULL_DISK
                else colors.warn
                if (full or 0) > NEARLY_FULL_DISK
                else colors.good
            )
            filled, empty = bar(full, max(4, width - wide - 27))
            sizes = f"{units.size(disk.used_bytes)} of {units.size(disk.total_bytes)}"
            if full is None:
                sizes = disk.error or "no answer"
            lines.append(
                words(
                    (f" {disk.path[:wide]:<{wide}} ", colors.label),
                    (filled, style),
                    (empty, colors.dim),
                    (f" {units.percent(full):>4}", style),
                    (f" {sizes}", colors.warn if full is None else colors.dim),
                )
            )
        return lines


class NodeProcesses(NodePanel):
    """Who holds its GPUs."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        found = node.sample.processes if node and node.sample else None
        self.title(f"processes {len(found)}" if found else "processes")
        if not found:
            return [
                words((" could not find out" if found is None else " none on its GPUs", colors.dim))
            ]
        lines = [
            words(
                (
                    (
                        f" {'GPU':>3} {'pid':>8} {'user':<9}{'memory':>8} {'rank':>5}"
                        f" {'age':>7}  program"
                    ),
                    colors.dim,
                )
            )
        ]
        for one in sorted(found, key=lambda p: (p.gpu is None, p.gpu or 0, p.pid)):
            lines.append(
                words(
                    (f" {units.UNKNOWN if one.gpu is None else one.gpu:>3}", colors.text),
                    (f" {one.pid:>8} {one.user[:8]:<9}", colors.label),
                    (f"{units.size(one.memory_bytes):>8}", colors.text),
                    (f" {'' if one.rank is None else one.rank:>5}", colors.strong),
                    (f" {units.age(one.age_s):>7}", colors.label),
                    (f"  {one.name}", colors.text),
                    (f"  {one.run}", colors.dim),
                )
            )
        return lines


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
