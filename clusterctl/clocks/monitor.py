"""Watch clocks: a channel to each node stays open, and a step of a clock is reported at once."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from checks import units
from checks.facts import Unknown
from checks.parsers.clock import best_exchange
from checks.profile import Profile
from checks.rules.time import middle_clock
from checks.units import counted
from clusterctl.clocks.exchange import HeadClock, ask_time, clock_args, receive_one
from clusterctl.clocks.report import away, step_words
from clusterctl.nodes import Node
from clusterctl.output import Cell, Output, local_time
from clusterctl.remote.cluster import Cluster, session
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.node_threads import Followers
from clusterctl.transport.base import Connection

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for terminals that cannot show the others
HISTORY = 40
QUESTIONS = 4  # in a turn; over time the steps are what counts
FLAT_S = 0.0005  # a wobble below this is drawn as a flat line
STALE_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one node; seconds. `at_s` is the head's monotonic time."""

    node: str
    at_s: float
    offset_s: float
    error_s: float
    wall_minus_boot_s: float
    boot: str = ""  # changes when the channel was opened again after a reboot


@dataclass(frozen=True, slots=True)
class Lost:
    node: str
    at_s: float
    phase: str
    message: str

    def __str__(self) -> str:
        return f"no answer: {self.phase}: {self.message}"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A step of a clock; negative `moved_s` is backwards."""

    node: str
    moved_s: float

    def words(self) -> str:
        return f"{self.node}: the clock {step_words(self.moved_s, 'in one step')}"


@dataclass(slots=True)
class Track:
    """What is known of one node's clock since the start of the watch."""

    node: str
    offsets_s: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    newest: Sample | None = None
    lost: Lost | None = None
    steps: list[Alarm] = field(default_factory=list)

    def add(self, sample: Sample, limit_s: float) -> Alarm | None:
        """Take a sample in; returns the alarm when wall time was stepped since the last one."""
        before, self.newest, self.lost = self.newest, sample, None
        self.offsets_s.append(sample.offset_s)
        if before is None or before.boot != sample.boot:
            return None
        moved_s = sample.wall_minus_boot_s - before.wall_minus_boot_s
        if abs(moved_s) <= limit_s:
            return None
        alarm = Alarm(self.node, moved_s)
        self.steps.append(alarm)
        return alarm


def sparkline(values: Sequence[float], bars: str = BARS) -> str:
    """One character a value, from the lowest to the highest; nearly equal ones are a flat line."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if high - low < FLAT_S:
        return bars[0] * len(values)
    top = len(bars) - 1
    return "".join(bars[round((value - low) / (high - low) * top)] for value in values)


class Watch(Followers):
    """Samples of all nodes as they come, from `events`; leaving the context ends the channels."""

    def __init__(self, cluster: Cluster, interval_s: float) -> None:
        super().__init__(cluster)
        self.events: queue.Queue[Sample | Lost] = queue.Queue()
        self.head = HeadClock()
        self._interval_s = interval_s

    def report(self, result: NodeResult[Any]) -> None:
        why = result.unreachable
        assert why is not None
        self.events.put(Lost(result.node.name, time.monotonic(), why.phase, why.message))

    def talk(self, node: Node, connection: Connection) -> None:
        stop, command_s = self.stop, self.cluster.limits.command_s
        args = clock_args(self.cluster.limits)
        with session(connection, "clock", args, start_timeout_s=command_s) as stream:
            stream.send({"op": "boot"})
            reply = receive_one(stream, "boot_id", command_s) or {}
            boot = reply.get("boot_id") or ""  # None: the node could not read it
            while not stop.is_set():
                started = time.monotonic()
                answers = ask_time(stream, self.head.now_s, questions=QUESTIONS, budget_s=0.5)
                trip, moved_s = best_exchange(answers.samples), answers.wall_minus_boot_s
                if not isinstance(trip, Unknown):
                    offset_s, error_s = trip.offset_s, trip.error_s
                    self.events.put(Sample(node.name, started, offset_s, error_s, moved_s, boot))
                stop.wait(max(0.0, started + self._interval_s - time.monotonic()))


def show(
    cluster: Cluster, output: Output, limits: Profile, interval_s: float, for_s: float | None
) -> int:
    """The command's --watch, until its time is up or Ctrl-C; returns the exit code."""
    tracks = {node.name: Track(node.name) for node in cluster.nodes}
    started = time.monotonic()
    interrupted = False
    with Watch(cluster, interval_s) as watch:
        screen = Screen(output, limits, interval_s, watch.head)
        try:
            due = started + interval_s
            while for_s is None or time.monotonic() - started < for_s:
                until = due if for_s is None else min(due, started + for_s)
                with suppress(queue.Empty):
                    left_s = max(0.0, until - time.monotonic())
                    screen.take(tracks, watch.events.get(timeout=left_s))
                if time.monotonic() >= due:
                    due = max(due + interval_s, time.monotonic())
                    screen.draw(tracks)
        except KeyboardInterrupt:
            interrupted = True
        return screen.end(tracks, interrupted)


class Screen:
    """Draws the tracks on a terminal; else prints alarms as they come, the table at the end."""

    def __init__(self, output: Output, limits: Profile, interval_s: float, head: HeadClock) -> None:
        self._output, self._limits, self._head = output, limits, head
        self._stale_s = STALE_LOOKS * interval_s + 1.0
        self._live = output.can_repaint() and not output.json and not output.quiet
        self._head_moved_s = 0.0
        self._alarms: list[str] = []

    def take(self, tracks: dict[str, Track], event: Sample | Lost) -> None:
        track = tracks[event.node]
        if isinstance(event, Lost):
            if str(track.lost) != str(event):
                self._say(f"{event.node}: {event}", "lost", event)
            track.lost = event
            return
        if self._output.json:
            self._say("", "sample", event)
        alarm = track.add(event, self._limits.clock_step_warn_s)
        if alarm is not None:
            self._alarm(alarm)

    def draw(self, tracks: dict[str, Track]) -> None:
        moved_s = self._head.moved_s()
        if abs(moved_s - self._head_moved_s) > self._limits.clock_step_warn_s:
            self._alarm(Alarm("this machine", moved_s - self._head_moved_s))
            self._head_moved_s = moved_s
        if self._live:
            self._output.repaint()
            self._table(tracks)
            for line in self._alarms[-5:]:
                self._output.line(line, "bad")

    def end(self, tracks: dict[str, Track], interrupted: bool) -> int:
        """The last table and the verdict; returns the exit code."""
        if self._live:
            self._output.repaint()
        far = list(self._far(tracks))
        silent = [t.node for t in tracks.values() if t.newest is None or t.lost is not None]
        if not self._output.json and not self._output.quiet:
            self._table(tracks)
        code = 1 if self._alarms or far else 3 if silent else 130 if interrupted else 0
        steps = len(self._alarms)
        text = f"{counted(len(tracks), 'clock')} watched, {counted(steps, 'step')}"
        text += f", no answer: {', '.join(silent)}" if silent else ""
        if self._output.json:
            self._output.document(
                "clock", type="end", steps=steps, silent=silent, far=far, exit_code=code
            )
        elif self._output.quiet:
            self._output.line(text)
        else:
            for line in self._alarms if self._live else ():
                self._output.line(line, "bad")
            self._output.note(text, None if code in (0, 130) else "bad")
        return code

    def _alarm(self, alarm: Alarm) -> None:
        line = f"{local_time(time.time())} ALARM {alarm.words()}"
        self._alarms.append(line)
        if not self._live:
            self._say(line, "alarm", alarm)

    def _say(self, line: str, kind: str, event: Sample | Lost | Alarm) -> None:
        if self._output.json:
            fields = {key: value for key, value in asdict(event).items() if key != "at_s"}
            self._output.document("clock", type=kind, time_s=time.time(), **fields)
        elif not self._live:
            self._output.warn(line, "bad")

    def _far(self, tracks: dict[str, Track]) -> dict[str, str]:
        """Nodes whose clock is too far from the middle, and how far."""
        samples = [track.newest for track in tracks.values() if track.newest]
        middle_s = middle_clock([sample.offset_s for sample in samples])
        return {
            sample.node: f"{away(sample.offset_s - middle_s)} the others"
            for sample in samples
            if abs(sample.offset_s - middle_s) - sample.error_s > self._limits.clock_skew_warn_s
        }

    def _table(self, tracks: dict[str, Track]) -> None:
        bars = BARS if self._output.can_show(BARS) else PLAIN_BARS
        now_s, far = time.monotonic(), self._far(tracks)
        rows: list[list[str | Cell]] = []
        for name, track in tracks.items():
            newest = track.newest
            flags, style = ([far[name]], "bad") if name in far else ([], None)
            if track.steps:
                moved_s = sum(step.moved_s for step in track.steps)
                flags.append(
                    f"moved {units.offset(moved_s)} in {counted(len(track.steps), 'step')}"
                )
            if track.lost is not None:
                flags.append(f"x {track.lost}")
            elif newest is None:
                flags.append("- waiting")
            elif now_s - newest.at_s > self._stale_s:
                flags.append(f"~ {units.duration(now_s - newest.at_s)} old")
            offset = Cell(units.offset(newest.offset_s) if newest else "-", style)
            error = units.measured(newest.error_s) if newest else "-"
            noted = Cell("; ".join(flags), "bad" if flags else None)
            rows.append([name, offset, error, sparkline(track.offsets_s, bars), noted])
        page = self._output.page() if self._live else None
        columns = ["NODE", "OFFSET", "±", "LAST LOOKS", "FLAGS"]
        self._output.table(columns, rows, ["OFFSET", "±"], page.columns if page else None)
