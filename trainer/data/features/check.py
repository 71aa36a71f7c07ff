"""`features`: what a feature cache holds and whether it is complete.

python -m trainer.data features FOLDER            # kind, sizes, weights
python -m trainer.data features FOLDER --check    # reads every byte and compares
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.data.features.files import LATENTS, TEXTS, FeaturesError, verify
from trainer.data.features.index import read_document, read_index
from trainer.runlog import units
from trainer.runlog.progress import RowProgress
from trainer.runlog.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("folder", type=Path, help="made by encode")
    option("--check", action="store_true", help="read every shard and compare its hash")
    option("--json", action="store_true", help="one JSON document")
    option("-q", "--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when a shard is damaged."""
    if (document := read_document(args.folder)) is None:
        raise FeaturesError(
            f"there is no finished feature cache at {args.folder}",
            hint="python -m trainer.data encode makes one",
        )
    damaged = _damaged(args.folder, document, args.quiet) if args.check else []
    if args.json:
        shown = {name: value for name, value in document.items() if name != "shards"}
        if args.check:
            shown["damaged"] = damaged
        print(json.dumps({**shown, "schema": 1, "command": "data features"}))
    else:
        print(describe(args.folder, document))
        if args.check and not damaged:
            print("every byte is as it was written")
    for text in damaged:
        print(text, file=sys.stderr)
    return 1 if damaged else 0


def describe(folder: Path, document: Mapping[str, Any]) -> str:
    tables = read_index(folder, document)
    columns = tables[LATENTS].columns
    sizes = Counter(zip(columns["height"].tolist(), columns["width"].tolist(), strict=True))
    key, own = document["key"], document["key"]["latents"]
    shown = ", ".join(f"{h}x{w} {count:,}" for (h, w), count in list(sizes.items())[:12])
    more = f" and {len(sizes) - 12} sizes more" if len(sizes) > 12 else ""
    what = {"posterior": "mean and log-variance", "sample": "one sample", "exact": "pixels"}
    weights = [
        f"{word} {key[part].get('from_pretrained') or key[part]['type']}"
        + (f" ({key[part]['weights'][:12]})" if key[part].get("weights") else "")
        for part, word in (("vae", "VAE"), ("text", "text encoder"))
    ]
    embedder = key["captions"]["embedder"]
    behind = f" (behind the caption embedder {embedder[:12]})" if embedder else ""
    limit, shards = int(key["text"]["model_max_length"]), len(document["shards"])
    full = int((tables[TEXTS].columns["count"] >= limit).sum())
    cut = f"; {full:,} fill all {limit} tokens, what is longer was cut" if full else ""
    return (
        f"{folder}: {document['latents']:,} latents and {document['captions']:,} captions, "
        f"{units.size(document['bytes'])} in {counted(shards, 'shard')}\n"
        f"latents: {what[own['kind']]}, {own['dtype']}; {shown}{more}\n"
        f"captions: {document['text_channels']} channels{behind}, {document['text_dtype']}{cut}\n"
        f"made by: {', '.join(weights)}, dtype {key['dtype']}"
    )


def _damaged(folder: Path, document: Mapping[str, Any], quiet: bool) -> list[str]:
    found, done = [], 0
    with RowProgress(f"check {folder.name}", quiet) as progress:
        for number, (name, size, header) in enumerate(document["shards"], 1):
            try:
                verify(folder / str(name), str(header))
            except FeaturesError as error:
                found.append(str(error))
            done += size
            progress.at(done / document["bytes"], number, " (rows are shards)")
    return found
