"""What an agent says of itself to other programs of its user: a file beside its socket."""

import glob
import json
import os
import threading
import time

from clusterctl.payload.files.private import own_files, replace_file
from clusterctl.payload.launch.session import SPEAKS_S, living
from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import or_none, read_bytes

NAMES = ("run", "node", "job", "run_dir", "attempt", "first_rank", "slots", "lease_s")


class About:
    """The facts of this agent, written with every change."""

    def __init__(self, path):
        self.path = facts_file(path)
        self._lock, self._is_closed = threading.Lock(), False
        self.facts = {name: ARGS[name] for name in NAMES}
        self.facts.update(
            since_s=time.time(), state="waiting", head="", alone_since_s=None, beats=""
        )

    def change(self, **facts):
        """A full disk must not end a run. A head may go while the agent ends."""
        with self._lock:
            self.facts.update(facts)
            if not self._is_closed:
                or_none(replace_file, self.path, json.dumps(self.facts).encode())

    def connected(self, head):
        self.change(head=head, alone_since_s=None)

    def heard(self):
        """The head that is connected has just said something."""
        or_none(os.utime, self.path)

    def alone(self):
        self.change(head="", alone_since_s=time.time())

    def close(self):
        with self._lock:
            self._is_closed = True
            or_none(os.unlink, self.path)


def head_of(path):
    """The head that is connected to the agent of a socket; "" without one."""
    try:
        facts = json.loads(read_bytes(facts_file(path), -1) or b"{}")
        return str(facts.get("head", "")) if living(path) is not None else ""
    except (ValueError, AttributeError):
        return ""


def spoken_to(run, node=None):
    """The heads that are connected to agents of this run here and have spoken lately: one whose
    machine has lost its power stays connected."""
    heads = []
    for path, facts in living_agents():
        if facts and facts.get("run") == run and node in (None, facts.get("node")):
            heard_s = or_none(os.path.getmtime, facts_file(path))
            if facts.get("head") and heard_s and time.time() - heard_s < SPEAKS_S:
                heads.append(str(facts["head"]))
    return heads


def facts_file(path):
    return path[: -len(".sock")] + ".json"


def living_agents():
    """(socket, facts) of every agent of this user that lives here; None: they are not there yet."""
    found = []
    for path in own_files("agent-*.sock"):
        if living(path) is not None:
            try:
                facts = json.loads(read_bytes(facts_file(path), -1) or b"")
            except ValueError:
                facts = None
            found.append((path, facts if isinstance(facts, dict) else None))
    return found


def clean(run):
    """Remove the files of agents and starters of a run that were killed; those that live keep
    theirs."""
    for path in own_files("*-%s-*.sock" % glob.escape(run[-24:])):
        kind = os.path.basename(path).partition("-")[0]
        if kind in ("agent", "starter") and living(path) is None:
            for name in glob.glob(glob.escape(path[: -len(".sock")]) + ".*"):
                or_none(os.unlink, name)
