"""Servers that run: start one that outlives the terminal, find those of a run, stop them."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from checks.units import counted
from clusterctl.errors import ClusterctlError, CouldNotFindOut
from clusterctl.launch.head.detached import last_words, spawn
from clusterctl.output import Output
from clusterctl.serve.claims import FOLDER, Server, ask_to_stop, servers
from trainer.runlog.own_modules import module_command

START_S = 60.0  # for Python, its imports and the first look at runs elsewhere
STOP_S = 20.0  # it looks every 2 s, and ends its samplers within 5 s
TICK_S = 0.1


def detach(samples: Path, words: Sequence[str], output: Output) -> int:
    """Start the same command as a process of its own. Raises `CouldNotFindOut`."""
    place = samples / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"{secrets.token_hex(4)}.log"
    command = module_command("clusterctl", *words, "--log", log)
    child = spawn(command, log)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.poll() is None:
        found = [one for one in servers(samples) if one.owner.pid == child.pid]
        if found:
            return _say_started(found[0], log, output)
        time.sleep(TICK_S)
    if child.poll() == 0:
        output.note("finished: nothing is left to sample")
        return 0
    why = last_words(log)
    raise CouldNotFindOut(f"the server did not start: {why}", hint=f"see {log}")


def _say_started(server: Server, log: Path, output: Output) -> int:
    if output.json:
        facts = {"server": server.id, "pid": server.owner.pid, "log": str(log)}
        output.document("serve", event="detached", **facts)
        return 0
    output.line(f"server running in the background: {server.owner.text}", "good")
    output.note(f"  its output: {log}")
    output.note("  clusterctl serve RUN --list shows it, --stop ends it")
    return 0


def show(folders: Sequence[Path], output: Output) -> int:
    """The servers of these runs."""
    for folder in folders:
        found = servers(folder / "samples")
        for server in found:
            if output.json:
                owner = server.owner
                facts = {"host": owner.host, "pid": owner.pid, "since_s": owner.since_s}
                more = {"presets": server.presets, "log": server.log or None}
                output.document(
                    "serve", event="server", run=str(folder), server=server.id, **facts, **more
                )
            else:
                output.line(f"{folder.name}  {server.text}")
        if not found:
            output.note(f"{folder.name}  no server follows this run")
    return 0


def stop(folders: Sequence[Path], output: Output) -> int:
    """Ask the servers of these runs to end, on whatever machine they are; 1 where one does not."""
    asked = [(folder, server) for folder in folders for server in servers(folder / "samples")]
    for folder, server in asked:
        try:
            ask_to_stop(folder / "samples", server)
        except OSError as error:
            text = f"{folder} cannot be written: {error.strerror}"
            raise ClusterctlError(text) from None
    left = list(asked)
    with contextlib.suppress(KeyboardInterrupt):
        deadline = time.monotonic() + STOP_S
        while left and time.monotonic() < deadline:
            time.sleep(TICK_S)
            left = [
                (folder, server)
                for folder, server in left
                if any(one.id == server.id for one in servers(folder / "samples"))
            ]
    for _, server in left:
        output.warn(f"{server.text} does not end; kill that process there", "bad")
    ended = {server.owner.pid for _, server in asked} - {server.owner.pid for _, server in left}
    code = 1 if left else 0
    if output.json:
        still = [server.id for _, server in left]
        output.document("serve", event="stopped", ended=len(ended), left=still, exit_code=code)
    else:
        output.line(f"{counted(len(ended), 'server')} stopped", None if left else "good")
    return code
