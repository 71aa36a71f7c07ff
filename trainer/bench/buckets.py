"""The buckets of a config, one after the other: timed, or searched for their largest batch."""

from __future__ import annotations

import argparse
import functools
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trainer.bench.child import Kind, Outcome, try_in_child
from trainer.bench.search import Budget, SearchStopped, largest_batch
from trainer.bench.shapes import Shape, as_bucket_config, shapes_of
from trainer.bench.trial import OURS, PHASES, PLAIN, Measured, Spec, run_trial
from trainer.config.load import Config
from trainer.errors import ConfigError
from trainer.models.activation_checkpointing import GradCheckpoint
from trainer.models.stdit_config import PRESETS, STDiT3Config
from trainer.runlog.gpu_peaks import peak_flops
from trainer.runlog.output import LOG
from trainer.runlog.progress import StepProgress


class Bench:
    """The checked options of the command. Raises ConfigError."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self._args = args
        if args.grad_checkpoint:
            GradCheckpoint.parse(args.grad_checkpoint)  # an error here, not in each child
        self._config = replace(
            config,
            grad_checkpoint=args.grad_checkpoint or config.grad_checkpoint,
            offload_activations=args.offload or config.offload_activations,
            compile=args.compile or config.compile,
        )
        self._shapes = shapes_of(config, args.bucket or (), args.aspect_ratio)
        if not self._shapes:
            raise ConfigError("bucket_config has no bucket that takes clips")
        self._device = _device(args.device)
        on_cpu = self._device == "cpu"
        name = platform.processor() if on_cpu else torch.cuda.get_device_name(self._device)
        self._device_name = name or "cpu"
        if on_cpu and args.search_batch_size and not (args.budget_s or args.budget_mb):
            hint = "without one it would fill this machine's memory"
            raise ConfigError(
                "on a CPU the search needs a limit: --budget-s or --budget-mb", hint=hint
            )
        self._peak = None if on_cpu else peak_flops(name, config.dtype)
        if args.peak_tflops:
            self._peak = args.peak_tflops * 1e12

    def measure(self) -> int:
        """Time each bucket and print a table; exit code 1 if one could not be measured."""
        options = {**PRESETS.get(self._config.model.type, {}), **self._config.model.options}
        patch = options.get("patch_size", STDiT3Config().patch_size)
        rows = []
        for shape in self._shapes:
            for path in (OURS, PLAIN) if self._args.compare else (OURS,):
                spec = replace(self._spec(shape), path=path)
                outcome = self._try(spec, f", {path}")
                tokens = spec.shape.batch_size * spec.shape.tokens(patch)
                rows.append(Row(spec.shape, path, tokens, outcome))
        if self._args.json:
            self._print_document(self._peak, rows=[row.to_json(self._peak) for row in rows])
        else:
            print_table(rows, self._peak)
            print(self._notes())
        return 0 if all(row.outcome.kind is Kind.MEASURED for row in rows) else 1

    def search(self) -> int:
        """Print the config's bucket_config with the largest batch sizes. Raises SearchStopped."""
        args = self._args
        budget = Budget(args.budget_s, int(args.budget_mb * 1e6) if args.budget_mb else None)
        found: dict[tuple[str, int], int] = {}
        lines = []
        for shape in self._shapes:
            spec = replace(self._spec(shape), enough_s=args.budget_s)

            def trial(batch: int, spec: Spec = spec) -> Outcome:
                return self._try(replace(spec, shape=replace(spec.shape, batch_size=batch)))

            try:
                best = largest_batch(spec.shape.batch_size, budget, trial, args.most)
            except SearchStopped as error:
                hint = "memory is not the cause: fix it, or choose other buckets with --bucket"
                raise SearchStopped(f"{shape.name}: {error}", hint=hint) from None
            found[shape.resolution, shape.frames] = best.batch
            lines.append({"bucket": shape.name, **best.to_json()})
            LOG.info(f"{shape.name}: {best}")
        text = as_bucket_config(self._config, found)
        if args.json:
            self._print_document(None, buckets=lines, bucket_config=text)
        else:
            print(text)
        return 0

    def _spec(self, shape: Shape) -> Spec:
        """A trial of the bucket on our path, at the bucket's own batch size."""
        args, config = self._args, self._config
        masked = bool(config.mask_ratios and any(config.mask_ratios.values()))
        length = config.text_encoder.model_max_length
        return Spec(
            config,
            replace(shape, batch_size=args.batch_size or shape.batch_size),
            self._device,
            text_tokens=min(args.text_tokens or length, length),
            masked=masked if args.masks == "config" else args.masks == "on",
            shards=args.shards,
            warmup=args.warmup,
            steps=args.steps,
        )

    def _try(self, spec: Spec, what: str = "") -> Outcome:
        name, names = spec.shape.name, [shape.name for shape in self._shapes]
        place = f"bucket {names.index(name) + 1} of {len(names)}"
        title = f"{place}: {name} x {spec.shape.batch_size}{what}"
        if not sys.stderr.isatty():
            LOG.info(title)  # a log names it at once
        with StepProgress(title) as progress:
            work = functools.partial(run_trial, spec)
            return try_in_child(work, spec.device, self._args.timeout_s, progress)

    def _print_document(self, peak: float | None, **results: Any) -> None:
        document = {
            "schema": 1,
            "command": "bench",
            "config": self._args.config,
            "device": self._device,
            "device_name": self._device_name,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "peak_flops_per_s": peak,
            "shards": self._args.shards,
        }
        print(json.dumps(document | results))

    def _notes(self) -> str:
        peak, shards = self._peak, self._args.shards
        known = f"peak {peak / 1e12:g} TFLOP/s" if peak else "no peak known: set --peak-tflops"
        share = f"; optimizer state of 1 of {shards} ranks" if shards > 1 else ""
        again = "again: recomputed in the backward pass, not in TFLOP/s or MFU."
        return f"\n{self._device_name}, {known}{share}. {again}"


def _device(wanted: str | None) -> str:
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = wanted.split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device {wanted!r} is not available")
    return wanted


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket on one path."""

    shape: Shape
    path: str
    tokens: int  # latent tokens of the batch
    outcome: Outcome

    def to_json(self, peak: float | None) -> dict[str, Any]:
        """Seconds, bytes, FLOP/s; `mfu` counts forward and backward pass, recomputation apart."""
        same = ("ratio", "height", "width", "latent")
        document = {
            "bucket": self.shape.name,
            **{name: getattr(self.shape, name) for name in same},
            "path": self.path,
            "batch_size": self.shape.batch_size,
            "tokens": self.tokens,
            "result": self.outcome.kind.value,
            "reason": self.outcome.reason,
        }
        measured = self.outcome.measured
        if measured is None:
            return document
        return document | asdict(measured) | rates(measured, self.tokens, peak)


def rates(measured: Measured, tokens: int, peak: float | None) -> dict[str, float | None]:
    """Throughput of a measurement; shares of the peak are None without one."""
    passes_s = measured.forward_s + measured.backward_s
    flops, recompute = measured.model_flops / passes_s, measured.recompute_flops / passes_s
    of_step = measured.model_flops / measured.step_s
    return {
        "tokens_per_s": tokens / measured.step_s,
        "flops_per_s": flops,
        "recompute_flops_per_s": recompute,
        "step_flops_per_s": of_step,
        "mfu": None if peak is None else flops / peak,
        "recompute_share": None if peak is None else recompute / peak,
        "mfu_of_step": None if peak is None else of_step / peak,
    }


def print_table(rows: Sequence[Row], peak: float | None) -> None:
    """Columns without boxes, the same on a terminal and in a pipe."""
    from rich.console import Console
    from rich.table import Table

    # Whole lines, however narrow the terminal: a figure cut short is a wrong figure.
    console = Console(width=240, highlight=False)
    plain = {row.shape.name: row.outcome.measured for row in rows if row.path == PLAIN}
    left_out = [] if plain else ["path", "faster"]
    left_out += ["MFU"] if peak is None else []
    names = ["bucket", "path", "batch", "tokens", *PHASES, "step s", "tokens/s", "TFLOP/s", "MFU"]
    names = [name for name in (*names, "again", "peak MB", "faster") if name not in left_out]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        left = name in ("bucket", "path")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        measured = row.outcome.measured
        if measured is None:
            cells = {"forward": row.outcome.kind.value}
        else:
            cells = _cells(measured, row.tokens, peak)
            other = plain.get(row.shape.name)
            if other is not None and row.path != PLAIN:
                cells["faster"] = f"{other.step_s / measured.step_s:.2f}x"
        cells |= {"bucket": row.shape.name, "path": row.path}
        cells |= {"batch": str(row.shape.batch_size), "tokens": f"{row.tokens:,}"}
        table.add_row(*(cells.get(name, "-") for name in names))
    console.print(table)
    for row in rows:
        if row.outcome.measured is None:
            console.print(f"{row.shape.name} {row.path}: {row.outcome.reason}", markup=False)


def _cells(measured: Measured, tokens: int, peak: float | None) -> dict[str, str]:
    figures = rates(measured, tokens, peak)
    mfu, recompute = figures["mfu"], measured.recompute_flops / measured.model_flops
    return {
        **{name: _seconds(getattr(measured, f"{name}_s")) for name in PHASES},
        "step s": _seconds(measured.step_s),
        "tokens/s": f"{figures['tokens_per_s']:,.0f}",
        "TFLOP/s": f"{(figures['flops_per_s'] or 0) / 1e12:.3g}",
        "MFU": "-" if mfu is None else f"{100 * mfu:.1f}%",
        "again": f"+{100 * recompute:.0f}%",
        "peak MB": f"{measured.peak_bytes / 1e6:,.0f}",
    }


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
