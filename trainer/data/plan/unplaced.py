"""Clips that no epoch trains on, under any seed: how many, and what they lack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import AREA_SHARE, Buckets


def unplaced(manifest: Manifest, buckets: Buckets, interval: int = 1) -> list[str]:
    """One clause a reason, most clips first: `60 are shorter than the 52 frames of …`."""
    never = np.ones(len(manifest), bool)
    never[buckets.reachable(manifest, interval)[0]] = False
    length = manifest.num_frames.astype(np.int64)
    area = manifest.height.astype(np.int64) * manifest.width
    slots = [slot for slot in buckets.slots if slot.keep > 0 and slot.batch_size]
    if not slots or not never.any():
        return ["all: every bucket has probability 0"] if never.any() else []
    moving = [slot for slot in slots if slot.frames > 1]
    still = never & (length == 1)
    found: list[tuple[int, str]] = []

    def count(rows: NDArray[np.bool_], text: str) -> None:
        never[rows] = False
        if number := int(rows.sum()):
            found.append((number, f"{number:,} {'is' if number == 1 else 'are'} {text}"))

    if len(moving) == len(slots):
        count(still, "stills (1 frame), and no bucket has 1 frame")
    if moving:
        shortest = min(moving, key=lambda slot: slot.frames)
        need = buckets.frames_needed(shortest.frames, interval)
        rows = never & (length < need) & (length > 1)
        where = f"{shortest.resolution.name} {shortest.frames}f"
        where += f" at frame_interval {interval}" if interval > 1 else ""
        longest = int(length[rows].max()) if rows.any() else 0
        count(rows, f"shorter than the {need} frames of {where} (the longest has {longest})")
    else:
        count(never & (length > 1), "longer than 1 frame, and every bucket has 1")
    smallest = min((slot.resolution for slot in slots), key=lambda shape: shape.pixels)
    need_pixels = smallest.pixels * AREA_SHARE
    rows = never & (area < need_pixels)
    if rows.any():
        best = int(np.flatnonzero(rows)[area[rows].argmax()])
        size = f"{manifest.height[best]}x{manifest.width[best]}"
        text = f"smaller than {AREA_SHARE:.0%} of {smallest.name} (height x width from "
        count(rows, text + f"{need_pixels:,.0f}; the largest is {size})")
    count(never.copy(), "too small for the buckets of their length, too short for the others")
    return [text for _, text in sorted(found, key=lambda one: -one[0])]
