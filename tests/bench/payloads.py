"""CPU time that each payload costs its node, in turns against another checkout of this repository.

    python -m tests.bench.payloads [--against FOLDER] [--times 15]

A payload is what `clusterctl` sends to a node's python3; it runs here as it would there, with the same
arguments for both. A figure is the median of user and system time of the interpreter and all it
starts. The last column is the median of the quotients of neighbouring runs. Without `--against` the
peer is a python3 that imports what every payload imports, and does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checks.parsers.kernel_log import INTERESTING
from clusterctl.remote import payload
from tests.bench import tiny
from tests.captures import fake_nvidia_smi as fake

RUN = "bench-payloads"
PICK = {"runs": [RUN]}
LAUNCH = {"launch": True, "cards": [], "variables": [], "network": True, "python": sys.executable}
EVERYTHING = {"everything": True, "log": INTERESTING, "names": ["@"], "growth_s": 0.1}
DUMP = {
    "pick": PICK, "samples": 2, "interval_s": 0.1, "limit_s": 20.0, "budget_s": 60.0,
    "py_spy": str(Path(sys.executable).with_name("py-spy")),
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpus": ("census", {"tool_timeout_s": 10.0}),
    "launch's census": ("census", LAUNCH),
    "preflight's census": ("census", EVERYTHING),
    "clock": ("clock", {"tool_timeout_s": 5.0}),
    "kill, look": ("kill", {"op": "look", "pick": PICK}),
    "stop, look": ("stop", {"op": "look", "pick": PICK}),
    "stacks, no job": ("stacks", {**DUMP, "pick": {"runs": ["nothing-has-this-tag"]}}),
    "stacks, one rank": ("stacks", DUMP),
}
IMPORTS = b"import json, os, select, signal, subprocess, sys, threading, time"
RANK = "import time; [time.sleep(1) for _ in range(3600)]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, such as one of a tag")
    parser.add_argument("--times", type=int, default=15)
    options = tiny.parse(parser, times=1)
    print(
        f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; CPU ms, medians of {options.times}"
    )
    peer = "bare" if options.against is None else "there"
    print(f"{'payload':<20}{'here':>8}{peer:>8}{'here / ' + peer:>16}")
    with tempfile.TemporaryDirectory() as name:
        env = fake.install(Path(name) / "bin", fake.h100(8))
        job = subprocess.Popen(
            [sys.executable, "-c", RANK], env={**env, "CLUSTERCTL_RUN": RUN, "RANK": "0"}
        )
        try:
            for label, (verb, args) in CASES.items():
                ours = payload.request(verb, args)
                theirs = other_request(options.against, verb, args)
                pairs = [(cpu_ms(ours, env), cpu_ms(theirs, env)) for _ in range(options.times)]
                here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
                ratio = statistics.median(one / other for one, other in pairs)
                print(f"{label:<20}{here:8.1f}{there:8.1f}{ratio:16.2f}", flush=True)
        finally:
            job.kill()
            job.wait()
    return 0


def other_request(checkout: Path | None, verb: str, args: dict[str, Any]) -> bytes:
    """The bytes that another checkout sends for the same question, made by its own code."""
    if checkout is None:
        return b"%d\n" % len(IMPORTS) + IMPORTS
    module = (
        "remote.payload" if (checkout / "clusterctl/remote/payload.py").exists() else "payload.ship"
    )
    code = (
        f"import json, sys; from clusterctl.{module} import request; "
        "sys.stdout.buffer.write(request(sys.argv[1], json.loads(sys.argv[2])))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, verb, json.dumps(args)],
        cwd=checkout, stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(checkout)},
    ).stdout  # fmt: skip


def cpu_ms(request: bytes, env: dict[str, str]) -> float:
    """One run of a payload; its stdin stays open until it has answered, as over ssh."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", payload.command_line()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    before = time.monotonic()
    child.stdin.write(request)
    child.stdin.flush()
    if b'"verb": "clock"' in request[-200:]:  # it answers questions until there is nobody to ask
        child.stdin.write(b'{"op": "state"}\n')
        child.stdin.flush()
        while b'"sections"' not in child.stdout.readline():
            assert time.monotonic() - before < 60
        child.stdin.close()
    child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    error = child.stderr.read().decode()
    assert not error, error
    return (used.ru_utime + used.ru_stime) * 1000


if __name__ == "__main__":
    sys.exit(main())
