"""What screens and dialogs use of the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dashboards.model.state import State
from dashboards.operations.actions import Actions
from dashboards.tui.widgets.replay_bar import Replay


class Top(Protocol):
    """Implemented by `TopApp`."""

    state: State
    actions: Actions | None
    readonly: bool
    replay: Replay | None
    selected: tuple[str, int] | None  # (node, GPU) that all screens mean

    @property
    def is_web(self) -> bool: ...
    def node(self) -> str | None: ...
    def open_node(self, name: str, gpu: int = 0) -> None: ...
    def acknowledge(self, key: tuple[str, str], yes: bool) -> None: ...
    def mute(self, key: tuple[str, str], until_s: float | None) -> None: ...
    def may_act(self) -> bool: ...
    def look_at_stacks(self, nodes: Sequence[str] = ()) -> None: ...
    def ask_to_kill(self, nodes: Sequence[str] = ()) -> None: ...
