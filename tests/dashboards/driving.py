"""Keys one after the other, each with all that it sets off: also on a machine that is busy."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.pilot import Pilot

ROUNDS = 4  # a key goes from the driver to the app, the screen, a widget, and its message back


async def quiet(pilot: Pilot[Any]) -> None:
    """Until everybody has worked off what was there, and what came of that.

    Textual's pilot takes a process that gets no CPU for one that has nothing to do.
    """
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
        await pilot._wait_for_screen()


def steady(pilot: Pilot[Any]) -> Pilot[Any]:
    """The pilot, with keys, clicks and new sizes that end when all is quiet."""
    press, click, resize = pilot.press, pilot.click, pilot.resize_terminal

    async def steady_press(*keys: str) -> None:
        for key in keys:
            await press(key)
            await quiet(pilot)

    async def steady_click(*args: Any, **kwargs: Any) -> bool:
        hit = await click(*args, **kwargs)
        await quiet(pilot)
        return hit

    async def steady_resize(width: int, height: int) -> None:
        await resize(width, height)
        await quiet(pilot)

    pilot.press, pilot.click, pilot.resize_terminal = steady_press, steady_click, steady_resize  # type: ignore[method-assign, assignment]
    return pilot
