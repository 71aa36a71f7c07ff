"""A real chronyd on a lab node, and the server it follows: good, off, stepping, silent.

No test may touch this machine's clock, which all lab nodes share: chronyd runs with -x (it measures
and sets nothing), and without the kernel's right to set a clock (CAP_SYS_TIME), which no setting
brings back.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
import uuid
from pathlib import Path

from tests.lab.node import HERE, LabNode

CHRONYD = shutil.which("chronyd", path="/usr/sbin:/usr/bin:/sbin")
CAP_SYS_TIME = 25
SILENT = "127.0.0.9"  # nobody listens there
CONFIG = """
server {address} iburst minpoll -2 maxpoll -2
cmdport 0
pidfile /run/chronyd.pid
user root
"""


class TimeDaemons:
    """Who steers the clock of one node."""

    def __init__(self, node: LabNode) -> None:
        self.node = node
        self.shift = node.directory / "shift"
        boot = node.directory / "boot_id"  # nodes of one boot id are one machine with one clock
        boot.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, node.name)}\n")
        node.bind(boot, "/proc/sys/kernel/random/boot_id")

    def follow(self, shift_s: float | None) -> None:
        """Start chronyd and a server that is `shift_s` ahead; None is one that never answers."""
        address = SILENT if shift_s is None else "127.0.0.1"
        if shift_s is not None:
            self.step_server(shift_s)
            server = HERE / "ntp_server.py"
            self._start(
                f"{shlex.quote(sys.executable)} -I -S {server} {address} {self.shift}", "ntp"
            )
        config = self.node.directory / "chrony.conf"
        config.write_text(CONFIG.format(address=address))
        self._start(f"setpriv --bounding-set -sys_time {CHRONYD} -x -d -f {config}", "chrony")

    def step_server(self, shift_s: float) -> None:
        """From its next answer on the server is `shift_s` ahead of this machine's clock."""
        part = self.shift.with_suffix(".part")
        part.write_text(f"{shift_s}\n")
        part.replace(self.shift)

    def second_daemon(self, name: str) -> None:
        """A process that looks like another time daemon: only its name can be had here."""
        program = self.node.directory / name
        shutil.copyfile(Path("/bin/sleep").resolve(), program)
        program.chmod(0o755)
        self._start(f"{program} 1000", name)

    def _start(self, command: str, log: str) -> None:
        done = self.node.exec(["sh", "-c", f"setsid {command} </dev/null >/run/{log}.log 2>&1 &"])
        assert done.returncode == 0, done.stderr

    def tracking(self) -> list[str]:
        """Cells of chronyc's CSV; none while chronyd does not answer."""
        return self.node.exec(["chronyc", "-c", "-n", "tracking"]).stdout.strip().split(",")

    def source(self) -> list[str]:
        return self.node.exec(["chronyc", "-c", "-n", "sources"]).stdout.strip().split(",")

    def wait_for_reach(self, reach: str, deadline: float) -> None:
        """Until its source has answered the last eight questions (377), or was asked at all (0)."""
        self._wait(lambda: len(self.source()) > 9 and self.source()[5] == reach, deadline)

    def wait_for_offset(self, ahead_s: float, deadline: float) -> None:
        """Until chronyd is sure that its server is so far ahead, whatever it believed before."""

        def is_sure() -> bool:
            cells = self.tracking()
            if len(cells) < 14 or cells[0] != "7F000001":
                return False
            # Field 4 is how far this clock is behind; 5 what the last answer corrected.
            return abs(float(cells[4]) - ahead_s) < 0.05 and abs(float(cells[5])) < 0.002

        self._wait(is_sure, deadline)

    def wait_for_calm(self, deadline: float) -> None:
        """Until the mean of its offsets has forgotten what the start of a busy machine did to it."""
        self._wait(
            lambda: len(self.tracking()) > 13 and float(self.tracking()[6]) < 0.004, deadline
        )

    def _wait(self, condition: object, deadline: float) -> None:
        assert callable(condition)
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.1)
        log = self.node.exec(["cat", "/run/chrony.log"]).stdout
        raise AssertionError(f"{self.node.name}: {self.tracking()} {self.source()}\n{log}")

    def rights(self) -> list[int]:
        """Capability masks of every chronyd of the node."""
        found = []
        for pid in self.node.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                if status["Name"] == "chronyd":
                    found.append(int(status["CapEff"], 16) | int(status["CapBnd"], 16))
        return found
