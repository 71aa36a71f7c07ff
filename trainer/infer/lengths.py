"""Names for lengths of videos. Imports nothing: the command line needs them before torch."""

from __future__ import annotations

# Upstream's, 17 frames to 5 latents at about 25 a second.
LENGTHS = {"image": 1} | {
    name: 51 * times for times in (1, 2, 4, 8, 16) for name in (f"{2 * times}s", f"{times}x")
}
