"""Torchrun's contract on the command line without torch: its options, rank variables, first failure.

Starts in 30 ms where torch takes seconds, so that tests of the launcher can have many launches.
"""

import argparse
import json
import os
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("nnodes", "node_rank", "nproc_per_node", "master_port", "max-restarts"):
    parser.add_argument(f"--{name}", type=int)
for name in ("master_addr", "monitor-interval", "log-dir"):
    parser.add_argument(f"--{name}")
parser.add_argument("--no-python", action="store_true")
parser.add_argument("command", nargs=argparse.REMAINDER)
options = parser.parse_args()
macros = {"local_rank": "MACRO", "rank": "MACRO", "restart_count": "MACRO", "run_id": "MACRO"}
options.command = [string.Template(word).safe_substitute(macros) for word in options.command]

# torchrun's nodes tell each other their numbers of ranks; these here read the plan.
plan = Path(os.environ.get("CLUSTERCTL_RUN_DIR", "/none"), "plan.json")
first_rank, world_size = options.node_rank * options.nproc_per_node, None
if plan.exists():
    data = json.loads(plan.read_text())
    first_rank = data["nodes"][options.node_rank]["first_rank"]
    world_size = data["world_size"]

children = []
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    for local_rank in range(options.nproc_per_node):
        rank = first_rank + local_rank
        env = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(local_rank),
            WORLD_SIZE=str(world_size or options.nnodes * options.nproc_per_node),
            MASTER_ADDR=options.master_addr,
            MASTER_PORT=str(options.master_port),
        )
        children.append(subprocess.Popen(options.command, env=env))
    while True:
        time.sleep(float(os.environ.get("POLL_S", "0.3")))  # torchrun's monitor interval
        codes = [child.poll() for child in children]
        for local_rank, code in enumerate(codes):
            if code:
                print(
                    f"failed (exitcode: {code}) local_rank: {local_rank} "
                    f"(pid: {children[local_rank].pid}) of binary: {options.command[0]}",
                    flush=True,
                )
                sys.exit(1)
        if None not in codes:
            break
finally:
    for child in children:
        child.terminate()
