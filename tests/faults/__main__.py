"""Make faults in real runs on lab nodes, and print what became of each run as a table. Needs root.

python -m tests.faults                          # one round of each fault
python -m tests.faults --faults F1,F7 --rounds 5 --size 8x2
python -m tests.faults --faults none --random 50 --seed 7    # run N has seed 7 + N
python -m tests.faults --faults none --ctrl-c 100
python -m tests.faults --faults none --healthy 3600
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults import cases  # noqa: F401 - enters the faults
from tests.faults.campaign import Campaign, Outcome
from tests.faults.fault import FAULTS, with_size
from tests.faults.healthy import healthy
from tests.faults.interrupts import stopped_run
from tests.faults.random_runs import random_run
from tests.faults.table import table
from tests.lab import why_not


def size(text: str) -> tuple[int, int]:
    nodes, _, ranks = text.partition("x")
    return int(nodes), int(ranks or 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.faults", description=__doc__.split("\n")[0])
    parser.add_argument("--faults", default="all", help="all, none, or ids: F1,F7")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault (default: 1)")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="runs with 3 faults each"
    )
    parser.add_argument(
        "--ctrl-c", type=int, default=0, metavar="N", help="launches that are stopped"
    )
    parser.add_argument("--healthy", type=float, default=0, metavar="S", help="a run of so many s")
    parser.add_argument(
        "--size",
        type=size,
        default=(4, 1),
        metavar="NxR",
        help="nodes x ranks of a node (default: 4x1); limits in seconds grow with the ranks",
    )
    parser.add_argument(
        "--busy",
        type=float,
        default=1.0,
        metavar="F",
        help="times that limits in seconds are longer on a machine that others use (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--keep", action="store_true", help="leave the folders of all rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    options = parser.parse_args(arguments)
    how = (*options.size, options.busy)
    if (reason := why_not()) is not None:
        print(f"lab nodes: {reason}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also behind nohup
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = {"all": list(FAULTS), "none": []}.get(options.faults, options.faults.split(","))
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"no fault is called {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o711)  # a second user of the nodes has files in there
    print(f"seed {seed}, rounds in {folder}", flush=True)
    campaign = Campaign(folder, options.keep, lambda text: print(text, flush=True))
    sized = {name: with_size(fault, *how) for name, fault in FAULTS.items()}
    rounds = [(sized[name], seed + nth) for nth in range(options.rounds) for name in names]
    rounds += [
        (with_size(random_run(seed + nth), *how), seed + nth) for nth in range(options.random)
    ]
    rounds += [(stopped_run(seed + nth), seed + nth) for nth in range(options.ctrl_c)]
    rounds += [(with_size(healthy(options.healthy), *how), seed)] if options.healthy else []
    outcomes: list[Outcome] = []
    try:
        for fault, number in rounds:
            outcome = campaign.run(fault, number)
            outcomes.append(outcome)
            verdict = "wrong" if outcome.wrong else "ok"
            print(f"{fault.id} (seed {number}): {verdict}, {outcome.seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        print(f"stopped after {len(outcomes)} of {len(rounds)} rounds", flush=True)
    finally:
        for line in table(outcomes, FAULTS):
            print(line)
        if options.json is not None:
            document = {"schema": 1, "seed": seed, "rounds": [one.to_json() for one in outcomes]}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if len(outcomes) < len(rounds) or any(one.wrong for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
