"""PNG pictures of a run: its samples on one sheet, its losses as curves. They need no display."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.command_line import TRAINING, Parser, command, require

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigError
from trainer.runlog import telemetry
from trainer.runlog.atomic_file import part_of
from trainer.runlog.output import LOG
from trainer.runlog.validation import FILE as VALIDATION
from trainer.runlog.validation import Point, final_points

# T frames · H,W height, width
CURVE = "loss_curve.png"
DPI = 100
_COLUMNS, _FRAMES, _HEIGHT = 4, 8, 48  # of the sheet: clips a row, frames a clip, pixels a frame
PAPER, INK, FAINT = "#ffffff", "#222222", "#b8c4d0"


def contact_sheet(
    path: Path, clips_THW3: Iterable[NDArray[np.uint8]], labels: Sequence[str]
) -> None:
    """One clip or more as labelled strips of frames."""
    strips = [_strip(clip) for clip in clips_THW3]
    columns = min(_COLUMNS, len(strips))
    rows = -(-len(strips) // columns)
    cell_width = max(strip.shape[1] for strip in strips) + 12
    cell_height = max(strip.shape[0] for strip in strips) + 26
    sheet = np.full((rows * cell_height + 6, columns * cell_width + 12, 3), 255, np.uint8)
    figure = _figure(sheet.shape[1] / DPI, sheet.shape[0] / DPI)
    capacity = cell_width // 6  # characters at this font size
    for number, (strip, label) in enumerate(zip(strips, labels, strict=True)):
        top = number // columns * cell_height + 22
        left = number % columns * cell_width + 12
        sheet[top : top + strip.shape[0], left : left + strip.shape[1]] = strip
        text = label if len(label) <= capacity else label[: capacity - 1] + "…"
        x, y = left / sheet.shape[1], 1 - (top - 7) / sheet.shape[0]
        figure.text(x, y, text, fontsize=7, color=INK, parse_math=False)
    figure.figimage(sheet)
    _save(figure, path)


def _strip(clip_THW3: NDArray[np.uint8]) -> NDArray[np.uint8]:
    count = min(_FRAMES, len(clip_THW3))
    chosen = clip_THW3[np.linspace(0, len(clip_THW3) - 1, count).round().astype(int)]
    tall = chosen.shape[1]
    if tall >= _HEIGHT:
        chosen = chosen[:, :: tall // _HEIGHT, :: tall // _HEIGHT]
    else:
        factor = round(_HEIGHT / tall)
        chosen = chosen.repeat(factor, 1).repeat(factor, 2)
    framed = np.pad(chosen, ((0, 0), (0, 0), (0, 2), (0, 0)), constant_values=255)
    return np.concatenate(list(framed), axis=1)


def loss_curve(
    path: Path, losses: Mapping[int, float], title: str, validation: Sequence[Point] = ()
) -> None:
    """Loss by step, faint, with its running mean, and what was measured on clips that are not
    trained on; logarithmic over decades. Raises ValueError."""
    from matplotlib.ticker import LogLocator

    finite = [(step, losses[step]) for step in sorted(losses) if np.isfinite(losses[step])]
    if not finite:
        raise ValueError(f"{len(losses)} steps with 0 finite losses make no curve")
    x, y = np.asarray(finite, dtype=float).T
    figure = _figure(7.2, 3.6)
    axes = figure.add_axes((0.09, 0.15, 0.88, 0.73))
    axes.plot(x, y, color=FAINT, linewidth=0.8, label="each step")
    width = max(1, len(y) // 25)
    if width > 1:
        mean = np.convolve(y, np.ones(width) / width, mode="valid")
        axes.plot(x[width - 1 :], mean, color="#0b5fa5", linewidth=1.8, label=f"mean of {width}")
    of_weights = [(one.step, one.model) for one in validation]
    of_average = [(one.step, one.ema) for one in validation if one.ema is not None]
    for text, style, curve in (
        ("validation", {"color": "#c2570c"}, of_weights),
        ("validation, averaged weights", {"color": "#1b7837", "linestyle": "--"}, of_average),
    ):
        if curve:
            points = np.asarray(curve, dtype=float).T
            axes.plot(*points, marker="o", markersize=3, linewidth=1.4, label=text, **style)
            y = np.append(y, points[1])
    if width > 1 or validation:
        axes.legend(frameon=False, fontsize=8)
    if y.min() > 0 and y.max() > 8 * y.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        # 0.2 and 0.5 between decades: matplotlib's 2 x 10^-1 is cut off at the left
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss", color=INK)
    axes.set_title(title, fontsize=10, color=INK, loc="left", parse_math=False)
    axes.grid(visible=True, which="both", color="#eeeeee", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _figure(width_inches: float, height_inches: float) -> Any:
    # The object API, not pyplot: no display, no global state, and no figure left open.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), dpi=DPI, facecolor=PAPER)


def _save(figure: Any, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with part_of(path) as part:
        FigureCanvasAgg(figure).print_png(str(part))


def draw_run(run_dir: Path) -> Path:
    """Draw a run directory's losses; returns the path of it. Raises ValueError without steps."""
    records = list(telemetry.read(run_dir))
    beside = list(telemetry.read(run_dir, VALIDATION))
    steps = telemetry.final_steps(records)
    if not steps:
        raise ValueError(f"{run_dir} has no recorded step")
    last, path = steps[max(steps)], run_dir / CURVE
    title = f"{run_dir.resolve().name}: loss, {last.step} of {last.steps_total} steps"
    losses = {step: record.loss for step, record in steps.items()}
    loss_curve(path, losses, title, final_points(records + beside))
    return path


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("pictures", "Draw a run's loss curve.")
    parser.add_argument("run_dir", type=Path)
    args = parser.parse_args(argv)
    if not args.run_dir.is_dir():
        raise ConfigError(f"there is no run directory {args.run_dir}")
    try:
        print(draw_run(args.run_dir))
    except (ValueError, OSError) as error:
        LOG.error("error: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
