"""What a server says: a line for each thing that happens, or a JSON document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.output import Live, Output
from clusterctl.serve.presets import LOSS
from clusterctl.serve.source import Source
from clusterctl.serve.work import NEW, OPEN, Folder

PROGRESS_S = 0.5
AGAIN_S = 60.0  # between two lines about one node or sampler that goes and comes
MOST_SAID = 4096  # things that are remembered as said; the oldest are forgotten


class Events:
    """Says each thing once. Finished checkpoints are data, all else goes to stderr."""

    def __init__(self, output: Output) -> None:
        self._output, self._live = output, Live(enabled=not output.quiet)
        self._said: dict[tuple[str, ...], float] = {}  # and when, by the monotonic clock
        self._shown_s = 0.0

    def following(self, run: str, preset: str, prompts: int, place: str) -> None:
        text = f"{run}: preset {preset}, {counted(prompts, 'prompt')} of {place}"
        facts = {"run": run, "preset": preset, "prompts": prompts, "file": place}
        self._emit("following", text, None, **facts)

    def validating(self, run: str) -> None:
        text = f"{run}: validation loss of each checkpoint"
        self._emit("following", text, None, run=run, preset=LOSS.name)

    def source(self, source: Source) -> None:
        """How it stands with a run that is followed."""
        if source.why:
            if self._is_new("why", source.name, source.why.rstrip("0123456789. s")):
                self._emit("unreadable", f"{source.name}: {source.why}", "warn", run=source.name)
        elif source.sealed == [] and self._is_new("waiting", source.name):
            text = f"{source.name}: no complete checkpoint yet"
            self._emit("waiting", text, None, run=source.name)

    def node_up(self, node: str, before: str) -> None:
        if before and self._said.pop(("is-down", node), None) is not None:
            self._emit("node-up", f"{node} is back", "good", node=node)

    def node_down(self, node: str, why: str) -> None:
        """Each state once, and no more than one line a minute of a node that goes and comes."""
        if ("is-down", node) not in self._said and self._is_due("down", node):
            self._is_new("is-down", node)
            text = f"{node} is not used now and is tried again: {why}"
            self._emit("node-down", text, "bad", node=node, why=why)

    def ready(self, node: str, slot: int, device: str) -> None:
        if self._output.verbose and self._is_due("ready", node, str(slot)):
            self._emit("ready", f"{node}: sampler {slot} is ready ({device})", "dim", node=node)

    def sampler_ended(self, node: str, slot: int, why: str) -> None:
        if self._is_due("ended", node, str(slot)):
            text = f"{node}: {why}; it is started again"
            self._emit("sampler-ended", text, "warn", node=node, slot=slot, why=why)

    def begun(self, folder: Folder) -> None:
        after_s = time.time() - folder.sealed.sealed_s
        later = f"{units.duration(max(0.0, after_s))} after the checkpoint was saved"
        text = f"{_of(folder)}: started {later}"
        self._emit("begun", text, "dim", **_facts(folder), after_seal_s=round(after_s, 3))

    def finished(self, folder: Folder) -> None:
        if self._output.json:
            self._document("finished", **_facts(folder), **folder.results())
            return
        self._live.clear()
        made = folder.contents
        if folder.made < folder.total:
            made += f", {folder.made} of them made here now"
        self._output.line(f"{_of(folder)}: {made}, {folder.path}", "good")
        self._output.flush()

    def failed(self, folder: Folder, hint: str | None = None) -> None:
        facts = {**_facts(folder), "why": folder.why, "hint": hint}
        self._emit("failed", f"{_of(folder)}: {folder.why}", "bad", **facts)
        if hint and not self._output.json and self._is_new("hint", hint):
            self._output.warn(f"  hint: {hint}")

    def gone(self, folder: Folder) -> None:
        text = f"{_of(folder)}: skipped, it was deleted before all of it was made"
        self._emit("skipped", text, "warn", **_facts(folder))

    def warning(self, text: str, hint: str | None = None) -> None:
        if self._is_new("warning", text):
            self._emit("warning", text, "warn", why=text, hint=hint)

    def progress(self, folders: Sequence[Folder], samplers: int) -> None:
        """The line on a terminal."""
        if not self._live.is_on or time.monotonic() - self._shown_s < PROGRESS_S:
            return
        self._shown_s = time.monotonic()
        for folder in sorted(folders, key=lambda one: -one.sealed.sealed_s):
            if folder.state == OPEN:
                self._live.show(f"{_of(folder)}: {folder.progress}")
                return
        waits = "all is made; waiting for checkpoints"
        if any(folder.state == NEW for folder in folders):
            waits = "looking at checkpoints"
        self._live.show(waits if samplers else "waiting for a sampler")

    def close(self) -> None:
        self._live.clear()

    def _is_new(self, *said: str) -> bool:
        is_new = said not in self._said
        self._said[said] = self._said.pop(said, time.monotonic())
        while len(self._said) > MOST_SAID:
            del self._said[next(iter(self._said))]
        return is_new

    def _is_due(self, *said: str) -> bool:
        """Whether it was not said in the last minute: what a node says may change each time."""
        before_s, now = self._said.get(said), time.monotonic()
        if before_s is not None and now - before_s < AGAIN_S:
            return False
        self._said.pop(said, None)
        return self._is_new(*said)

    def _emit(self, event: str, text: str, style: str | None, **facts: Any) -> None:
        if self._output.json:
            self._document(event, text=text, **facts)
            return
        self._live.clear()
        write = self._output.warn if style in ("bad", "warn") else self._output.note
        write(text, style)

    def _document(self, event: str, **facts: Any) -> None:
        self._output.document("serve", event=event, **facts)


def _of(folder: Folder) -> str:
    return f"{folder.source.name} {folder.sealed.name} {folder.preset.name}"


def _facts(folder: Folder) -> dict[str, Any]:
    return {
        "run": folder.source.name,
        "checkpoint": folder.sealed.name,
        "step": folder.sealed.step,
        "preset": folder.preset.name,
        "folder": str(folder.path),
    }
