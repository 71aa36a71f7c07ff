"""Run by `test_logged_out.py` as an ordinary user of a machine with logind, in mounts of its own."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from clusterctl.launch.head.link import Link
from clusterctl.runs import owner
from tests.clusterctl.commands.user import SHORT, User
from tests.clusterctl.launch.harness import ranks_of, tagged, wait_until


def log_out() -> None:
    """What logind removes 10 s after the end of a user's last session, with RemoveIPC, its default."""
    for folder in (Path(f"/run/user/{os.getuid()}"), Path("/dev/shm")):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def test_detached_run_is_found_and_taken_over_after_the_logout(user: User) -> None:
    process = user.start(*SHORT, "--detach")
    assert process.wait(40) == 0, process.communicate()
    run_id = user.run_id()
    ranks = ranks_of(run_id)
    log_out()
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (0, "running")
    (run,) = user.ask("runs", str(user.cluster.hostfile))[1]["runs"]
    assert (run["run_id"], run["ranks"], len(run["supervisors"])) == (run_id, 2, 1)

    before = owner.find(user.run_dir)
    os.kill(before.pid, signal.SIGKILL)
    log_out()
    user.command("attach", str(user.run_dir), "--detach")
    wait_until(lambda: owner.find(user.run_dir) not in (None, before), 20)
    wait_until(lambda: "supervisor" in [event["event"] for event in user.events()], 20)
    assert ranks_of(run_id) == ranks
    link = Link(owner.socket_path(run_id))
    link.send("stop")
    wait_until(lambda: not owner.find(user.run_dir), 20)
    assert tagged(run_id) == []
