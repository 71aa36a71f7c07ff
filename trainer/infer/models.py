"""The model and its encoders on the device, kept from one request to the next that needs them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.files import verify
from trainer.components import Parts, build_parts, build_text_encoder, build_vae
from trainer.config.load import Config, to_dict
from trainer.errors import CheckpointError
from trainer.infer.prepare import Plan
from trainer.infer.sampling import Sampler
from trainer.models import memory
from trainer.runlog.output import LOG
from trainer.weights import checkpoints
from trainer.weights.load import load_into

_ENCODERS = ("vae", "text_encoder", "dtype")
_LESS = "a smaller text encoder or model, or dtype = bf16"


@dataclass
class Models:
    """At most one model with its encoders; with `checked` the files of a checkpoint of ours are
    compared with its manifest while they are read."""

    device: torch.device
    checked: bool = False
    _encoders: Any = None
    _parts: Parts | None = None
    _of_encoders: str = ""  # what they were built from
    _of_parts: str = ""
    _loaded: str = ""

    def sampler(self, plan: Plan) -> Sampler:
        """For the weights of a plan. Raises CheckpointError, ConfigError and OutOfMemory."""
        ema, partial = plan.options.weights == "ema", plan.options.allow_partial
        wanted = f"{plan.checkpoint} {plan.made_of}"
        parts = self.parts(
            plan.config, plan.run_dir, plan.checkpoint, wanted, ema=ema, partial=partial
        )
        return Sampler(parts, plan.settings, self.device)

    def parts(
        self,
        config: Config,
        run_dir: Path,
        checkpoint: Path | str,
        wanted: str,
        *,
        ema: bool,
        partial: bool = False,
    ) -> Parts:
        """The model with weights that `wanted` tells from all others. Raises as `sampler`."""
        with memory.as_one_sentence(self.device, "the model and its encoders", _LESS):
            parts = self._built(config, run_dir)
            if self._loaded != wanted:
                self._loaded = ""
                self._load(config, parts, checkpoint, ema=ema, partial=partial)
                self._loaded = wanted
        return parts

    def warm(self, config: Config, run_dir: Path) -> Parts:
        """Read the encoders that a run needs. Raises as `sampler`."""
        with memory.as_one_sentence(self.device, "the model and its encoders", _LESS):
            return self._built(config, run_dir)

    def _built(self, config: Config, run_dir: Path) -> Parts:
        whole = to_dict(config)
        own = str(run_dir) if config.text_encoder.type == "tiny_t5" else ""
        of_encoders = json.dumps([own, *(whole[name] for name in _ENCODERS)])
        of_parts = json.dumps([of_encoders, {**whole, "sample": None, "validation": None}])
        if self._parts is not None and self._of_parts == of_parts:
            return self._parts
        LOG.info("loading the text encoder, the VAE and the model")
        # What is not needed any more must not take the memory of what is.
        self._parts, self._of_parts, self._loaded = None, "", ""
        is_half = config.dtype == "bf16" and self.device.type == "cuda"
        dtype = torch.bfloat16 if is_half else torch.float32
        if self._encoders is None or self._of_encoders != of_encoders:
            self._encoders, self._of_encoders = None, ""
            vae = build_vae(config.vae, dtype)
            text = build_text_encoder(config, run_dir, dtype)
            vae.to(self.device)
            text.to(self.device)
            self._encoders, self._of_encoders = (vae, text), of_encoders
        kind, encoders = self.device.type, self._encoders
        self._parts = build_parts(config, run_dir, dtype, kind, empty=True, encoders=encoders)
        self._of_parts = of_parts
        return self._parts

    def _load(
        self, config: Config, parts: Parts, checkpoint: Path | str, *, ema: bool, partial: bool
    ) -> None:
        is_half = config.dtype == "bf16" and self.device.type == "cuda"
        with ThreadPoolExecutor(1) as pool:
            check = pool.submit(self._check, checkpoint)
            try:
                report = load_into(parts.model, checkpoint, ema=ema, allow_partial=partial)
            except (CheckpointError, OSError):
                check.result()  # which file is damaged says more than what cannot be read
                raise
            check.result()
        for line in report.lines() if not report.is_whole else report.notes:
            LOG.info(line)
        parts.model.to(self.device, torch.bfloat16 if is_half else torch.float32)

    def _check(self, checkpoint: Path | str) -> None:
        if self.checked and (Path(checkpoint) / checkpoints.MANIFEST).is_file():
            verify(Path(checkpoint), (checkpoints.MODEL, checkpoints.EMA))


def without_compiling(config: Config) -> Config:
    """Compiling takes minutes before the first video."""
    return replace(config, compile=False)
