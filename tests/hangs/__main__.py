"""Make standard training programs hang, and count what dump-stacks says. Needs root.

python -m tests.hangs                                   # every program, loader and fault once
python -m tests.hangs --programs ddp,fsdp2 --loaders workers --rounds 3
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tests.hangs.campaign import Outcome, run
from tests.hangs.faults import FAULTS
from tests.hangs.rig import LOADERS, Site
from tests.hangs.table import table
from tests.lab import why_not
from tests.lab.clip_mount import why_no_fuse

PROGRAMS = (
    "ddp", "fsdp2", "hf_accelerate", "hf_trainer", "lightning_module", "deepspeed_engine",
    "colossal_booster",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.hangs", description=__doc__.split("\n")[0])
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    options = parser.parse_args(arguments)
    if (reason := why_not() or why_no_fuse()) is not None:
        print(f"lab nodes: {reason}", file=sys.stderr)
        return 3
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="hangs-"))
    print(f"seed {seed}, jobs in {folder}", flush=True)
    draw, outcomes = random.Random(seed), list[Outcome]()
    faults = [FAULTS[name] for name in options.faults.split(",")]
    try:
        with Site(folder) as site:
            for number in range(options.rounds):
                for program in options.programs.split(","):
                    for loader in options.loaders.split(","):
                        place = folder / f"{number}-{program}-{loader}"
                        for one in run(site, place, program, LOADERS[loader], faults, draw):
                            print(one.line, flush=True)
                            outcomes.append(one)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    for line in table(outcomes):
        print(line)
    if options.json is not None:
        document = {"schema": 1, "seed": seed, "outcomes": [one.to_json() for one in outcomes]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(one.is_wrong for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
