"""Survive the end of the login session that started this process, where systemd would end it.

logind with KillUserProcesses=yes kills what is left in a session's scope when the session ends, a
process of its own session too (logind.conf(5)). A scope of the user's own manager is no part of the
session; the manager lives on without one where lingering is enabled (loginctl(1)).
"""

from __future__ import annotations

import os
import pwd
import subprocess

from clusterctl.payload.files.private import lingers

TOOL_S = 2.0
LOGIN = "org.freedesktop.login1"
SYSTEMD = "org.freedesktop.systemd1"


def leave_session() -> str | None:
    """Why this process would be killed at logout; None where it would not, or no more."""
    if not _kills():
        return None
    name = "clusterctl-%d.scope" % os.getpid()
    words = ["--user", "call", SYSTEMD, "/org/freedesktop/systemd1", SYSTEMD + ".Manager"]
    words += ["StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail"]
    moved = _busctl(words + ["1", "PIDs", "au", "1", str(os.getpid()), "0"])
    if moved is None:
        return "systemd ends processes at logout (KillUserProcesses) and gives no scope of its own"
    if not lingers(os.getuid()):
        user = pwd.getpwuid(os.getuid()).pw_name
        return "systemd ends processes at logout: run `loginctl enable-linger %s` once" % user
    return None


def _kills():
    """Whether logind ends this user's processes; root is left alone by its default."""
    if os.getuid() == 0:
        return False
    words = ["--system", "get-property", LOGIN, "/org/freedesktop/login1", LOGIN + ".Manager"]
    return _busctl(words + ["KillUserProcesses"]) == "b true"


def _busctl(words):
    """Its output; None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["busctl", *words],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
