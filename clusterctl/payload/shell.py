"""Run one command of the user by sh: `clusterctl run`.

The text comes with the arguments, never in the remote command. Ends early, with everything the
command started in its process group, when stdin closes: a lost head leaves nothing running.
"""

from __future__ import annotations

import binascii
import os

from clusterctl.payload.prelude import ARGS, finish, hold_lease, section


def main():
    hold_lease()
    section(
        "command",
        ["/bin/sh", "-c", ARGS["command"]],
        ARGS["timeout_s"],
        env=dict(os.environ),  # the user's own: no C locale, no changed PATH
        cwd=None,
        max_bytes=ARGS["max_bytes"],
        grace_s=1.0,
        # Any bytes: as JSON a control character takes six, here four take three.
        pack=lambda data: binascii.b2a_base64(data, newline=False).decode(),
    )
    finish()
