"""Tools for manifests.

python -m trainer.data probe clips.csv manifest.csv    # path,text -> every column
python -m trainer.data stats manifest.csv stage1       # buckets and steps of a config
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence

from trainer.command_line import command

# verb -> (module with add_arguments(parser) and run(args) -> exit code, what it does). Modules are
# imported for their own verb only: some need PyAV's processes, pyarrow, matplotlib or torch.
VERBS = {
    "probe": ("tools.probe", "write a complete manifest from path and text"),
    "check": ("tools.check", "decode every clip and add the result as a column"),
    "filter": ("tools.filters", "keep the rows that meet every condition"),
    "merge": ("tools.sets", "combine manifests: concatenate rows, or join columns"),
    "difference": ("tools.sets", "keep rows of the first that are not in the second"),
    "intersect": ("tools.sets", "keep rows of the first that are also in the second"),
    "dedupe": ("tools.sets", "keep the first of duplicate rows"),
    "clean-captions": ("tools.convert", "clean captions as the text encoder expects them"),
    "convert": ("tools.convert", "convert csv to parquet and back"),
    "shard": ("tools.shard", "write shards that training reads without holding captions in memory"),
    "stats": ("tools.stats", "show which clips a config uses, and how"),
    "encode": ("features.encode", "compute features for training without VAE and text encoder"),
    "features": ("features.check", "show what a feature cache holds and whether it is complete"),
    "simulate": ("tools.simulate", "simulate how long ranks wait for each other"),
    "examine": (
        "tools.file_probe",
        "answer questions about files (clusterctl data starts it on nodes)",
    ),
}
GO_ON = {"probe", "check", "clean-captions", "encode"}  # where an interrupted one stopped


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 when rows had to be left out; 2 for wrong usage or an unusable file."""
    given = list(sys.argv[1:] if argv is None else argv)
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data", description=__doc__, formatter_class=raw
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    wanted = next((word for word in given if not word.startswith("-")), None)
    modules = {}
    overrides: list[str] = []
    for name, (module, summary) in VERBS.items():
        verb = verbs.add_parser(name, help=summary, formatter_class=raw)
        if name == wanted:
            modules[name] = importlib.import_module(f"trainer.data.{module}")
            others = [one for one, what in VERBS.items() if what[0] == module and one != name]
            lines = (modules[name].__doc__ or "").splitlines()  # examples of the others left out
            own = [one for one in lines if not any(f"data {other} " in one for other in others)]
            verb.description = "\n".join(own)
            modules[name].add_arguments(verb)
            if getattr(modules[name], "OVERRIDES", False):
                given, overrides = _without_keys(given, verb)
    args = parser.parse_args(given)
    args.overrides = overrides
    try:
        return int(modules[args.verb].run(args))
    except KeyboardInterrupt:
        again = "run the same command again to continue"
        what = again if args.verb in GO_ON else "nothing was written"
        print(f"interrupted; {what}", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is None:  # a closed pipe, too
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1


def _without_keys(words: list[str], verb: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """The verb's own words, and keys of a training config with their values."""
    own = {name for action in verb._actions for name in action.option_strings}
    kept: list[str] = []
    keys: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word.partition("=")[0] in own:
            kept.append(word)
            continue
        keys.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            keys.append(rest.pop(0))
    return kept, keys


def _interrupt(number: int, _frame: object) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        # A second one must not interrupt the message. Not SIG_IGN: Python prints a traceback for
        # one that has arrived already.
        signal.signal(other, lambda *_: None)
    raise KeyboardInterrupt(f"signal {number}")


if __name__ == "__main__":
    for interrupt in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupt, _interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the verb's own modules are there
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
