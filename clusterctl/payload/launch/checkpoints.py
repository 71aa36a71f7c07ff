"""The whole checkpoints in a run directory, as this node sees it.

ARGS: run_dir, timeout_s (for a file system that does not answer). Answers `complete`, names in the
order in which they were made, or `error`.
"""

import os
import re

from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import call

NAME = re.compile(r"epoch\d+-global_step\d+$")
MANIFEST = "manifest.json"  # written last (trainer/weights/checkpoints.py)


def main():
    found = call("", lambda: "\n".join(complete()), ARGS["timeout_s"])
    is_known = found["state"] in ("ended", "missing")  # missing: no directory, so none in it
    finish({"complete": found["out"].split(), "error": None if is_known else found["err"]})


def complete():
    made = []
    for name in os.listdir(ARGS["run_dir"]):
        if NAME.match(name):
            facts = or_none(os.stat, os.path.join(ARGS["run_dir"], name, MANIFEST))
            if facts is not None:
                made.append((facts.st_mtime_ns, int(name.rpartition("step")[2]), name))
    return [name for _, _, name in sorted(made)]
