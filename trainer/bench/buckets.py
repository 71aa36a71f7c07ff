"""The buckets of a config, one after the other: timed, or searched for their largest batch."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from dataclasses import replace
from typing import Any

import torch

from trainer.bench.child import Kind, Outcome, Work, try_in_child
from trainer.bench.encoders import TEXT, VAE, encode_trial
from trainer.bench.rows import Row, other_paths, print_table
from trainer.bench.search import Budget, SearchStopped, largest_batch
from trainer.bench.shapes import Shape, as_bucket_config, shapes_of
from trainer.bench.trial import OTHERS, OURS, Spec, run_trial
from trainer.components import check_model
from trainer.config.load import Config
from trainer.device import find_device, name_of
from trainer.errors import ConfigError
from trainer.models.stdit_config import PRESETS, STDiT3Config
from trainer.runlog.figures import peak_flops
from trainer.runlog.output import LOG
from trainer.runlog.progress import StepProgress


class Bench:
    """The checked options of the command. Raises ConfigError."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self._args = args
        self._config = replace(
            config,
            grad_checkpoint=args.grad_checkpoint or config.grad_checkpoint,
            offload_activations=args.offload or config.offload_activations,
            fused_blocks=config.fused_blocks and not args.compile and not args.eager,
            compile=args.compile or (config.compile and not args.eager),
            threads=args.threads or config.threads,
        )
        check_model(self._config)  # an error here, not in each child
        self._shapes = shapes_of(config, args.bucket or (), args.aspect_ratio)
        if not self._shapes:
            raise ConfigError("bucket_config has no bucket that takes clips")
        self._device = device_of(args.device)
        on_cpu = self._device == "cpu"
        self._device_name = name_of(self._device)
        if on_cpu and args.search_batch_size and not (args.budget_s or args.budget_mb):
            hint = "without one it would fill this machine's memory"
            raise ConfigError(
                "on a CPU the search needs a limit: --budget-s or --budget-mb", hint=hint
            )
        self._peak = None if on_cpu else peak_flops(self._device_name, config.dtype)
        if args.peak_tflops:
            self._peak = args.peak_tflops * 1e12
        self._threads = self._config.threads or torch.get_num_threads()  # of each trial
        self._simulates_fp8 = on_cpu and config.fp8_linears
        self._load, self._cores = os.getloadavg()[0], len(os.sched_getaffinity(0))

    def measure(self) -> int:
        """Time each bucket and print a table; exit code 1 if one could not be measured."""
        options = {**PRESETS.get(self._config.model.type, {}), **self._config.model.options}
        patch = options.get("patch_size", STDiT3Config().patch_size)
        rows = []
        for shape in self._shapes:
            for path in (OURS, *(path for path in OTHERS if path in self._args.compare)):
                spec = replace(self._spec(shape), path=path)
                outcome = self._try(spec, f", {path}")
                tokens = spec.shape.batch_size * spec.shape.tokens(patch)
                encoders = self._encoders(spec) if path == OURS else {}
                rows.append(Row(spec.shape, path, tokens, outcome, encoders))
        if self._args.json:
            lines = [row.to_json(self._peak, other_paths(rows, row)) for row in rows]
            self._print_document(self._peak, rows=lines)
        else:
            print_table(rows, self._peak)
            print(self._notes(rows))
        outcomes = [outcome for row in rows for outcome in (row.outcome, *row.encoders.values())]
        return 0 if all(outcome.kind is Kind.MEASURED for outcome in outcomes) else 1

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

    def _encoders(self, spec: Spec) -> dict[str, Outcome]:
        if not self._args.encoders:
            return {}
        works = {
            name: functools.partial(encode_trial, spec, name, self._args.tiny_encoders)
            for name in (VAE, TEXT)
        }
        return {name: self._try(spec, f", {name}", work) for name, work in works.items()}

    def _try(self, spec: Spec, what: str = "", work: Work | None = None) -> Outcome:
        name, names = spec.shape.name, [shape.name for shape in self._shapes]
        place = f"bucket {names.index(name) + 1} of {len(names)}"
        title = f"{place}: {name} x {spec.shape.batch_size}{what}"
        if not sys.stderr.isatty():
            LOG.info(title)  # a log names it at once
        with StepProgress(title) as progress:
            work = work or functools.partial(run_trial, spec)
            return try_in_child(work, spec.device, self._args.timeout_s, progress)

    def _print_document(self, peak: float | None, **results: Any) -> None:
        document = {
            "schema": 1,
            "command": "bench",
            "config": self._args.config,
            "device": self._device,
            "device_name": self._device_name,
            "torch": torch.__version__,
            "threads": self._threads,
            "cores": self._cores,
            "load": round(self._load, 2),
            "fp8_simulated": self._simulates_fp8,
            "peak_flops_per_s": peak,
            "shards": self._args.shards,
        }
        print(json.dumps(document | results))

    def _notes(self, rows: list[Row]) -> str:
        peak, shards = self._peak, self._args.shards
        threads = f"{self._threads} thread{'s' * (self._threads > 1)}"
        load = f"load {self._load:.1f} on {self._cores} cores at the start"
        known = f"peak {peak / 1e12:g} TFLOP/s" if peak else "no peak known: set --peak-tflops"
        share = f"; optimizer state of 1 of {shards} ranks" if shards > 1 else ""
        notes = ["", f"{self._device_name}, {threads}, {load}", f"{known}{share}"]
        if self._device == "cpu" and 1 < self._threads > self._cores - self._load + 0.5:
            notes.append(
                "Other programs used the cores: where threads wait for each other, a step can"
            )
            notes.append("take many times as long. --threads 1 suffers least.")
        if self._simulates_fp8:
            notes.append(
                "fp8_linears is simulated on a CPU: rounded to fp8, computed in fp32. These"
            )
            notes.append("seconds say nothing about a GPU.")
        notes.append("again: recomputed in the backward pass, not in TFLOP/s or MFU.")
        found = [row.outcome.measured for row in rows if row.path == OURS and row.outcome.measured]
        if found and any(found[0].compiled_blocks.values()):
            kinds = " and ".join(f"{n} {kind}" for kind, n in found[0].compiled_blocks.items())
            notes.append(f"compiled: {kinds} blocks; embedders and last layer not")
        if self._args.encoders:
            notes.append("of a step: of encoders, model and optimizer, one after the other.")
        return "\n".join(notes)


def device_of(wanted: str | None) -> str:
    """The device of --device, or the one that training would choose. Raises ConfigError."""
    if wanted is None:
        return find_device().type  # the trials have processes of their own: CUDA starts there
    kind = wanted.split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device {wanted!r} is not available")
    return wanted
