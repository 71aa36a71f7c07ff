"""One node out of namespaces, and what can be done to it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.transport.loopback.nodes import make_key
from tests.lab.bridge import LabError, ip
from tests.lab.init import wait_until_up

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

HERE = Path(__file__).parent
START_TIMEOUT_S = 20.0
HOME = "/tmp/home"  # a private one: the real ~/.bashrc may take seconds (pyenv)
WORKER = "worker"  # a user who is not root; sshd treats root differently
PATH = "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SSHD_CONFIG = """
Port 22
ListenAddress {address}
HostKey {host_key}
PidFile /run/sshd.pid
AuthorizedKeysFile /run/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups {max_startups}
MaxSessions 100
UseDNS no
PrintMotd no
AllowTcpForwarding yes
SetEnv PATH={path}
Subsystem sftp internal-sftp
LogLevel ERROR
"""


class LabNode:
    """One node, and what can be done to it from outside."""

    def __init__(self, lab: Lab, index: int, name: str) -> None:
        self.lab = lab
        self.name = name
        self.address = f"10.231.{lab.subnet}.{10 + index}"
        self.link = f"ccl{lab.subnet}-{index}"  # the host's end of its cable
        self.mac = f"02:cc:00:{lab.subnet:02x}:00:{index:02x}"
        self.directory = lab.directory / name
        self.pid = 0  # of its process 1, seen from here
        self.process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def exec(self, argv: Sequence[str], timeout_s: float = 20) -> subprocess.CompletedProcess[str]:
        """Run a command inside, without ssh. Raises `subprocess.TimeoutExpired`."""
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "--", *argv],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
            env={"PATH": PATH, "HOME": HOME}, cwd="/",
        )  # fmt: skip

    def processes(self) -> list[int]:
        """All processes of the node, by their pids here."""
        try:
            wanted = Path(f"/proc/{self.pid}/ns/pid").readlink()
        except OSError:
            return []
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == wanted:
                    found.append(int(entry.name))
        return found

    def kill_sshd(self) -> None:
        """Its port refuses from now on; sessions that are open live on."""
        self._order("kill-sshd")

    def start_sshd(self) -> None:
        self._order("start-sshd")

    def bind(self, source: Path | str, target: str) -> None:
        """Put a file over `target`; a name without a slash becomes first on the node's PATH."""
        self._order(f"bind {json.dumps([str(source), target])}")

    def show_class(self, name: str, source: Path) -> None:
        """A folder of files as /sys/class/NAME: cards that this machine does not have."""
        self._order(f"class {json.dumps([name, str(source)])}")

    def freeze(self) -> None:
        """Stop every process; the kernel goes on acknowledging packets, as on a hung machine."""
        stopped: set[int] = set()
        while fresh := set(self.processes()) - stopped:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= fresh
        # A stopped process shows T once it has been scheduled; one that sleeps in the kernel, D.
        deadline = time.monotonic() + 2
        while not states(stopped) <= set("TtZD") and time.monotonic() < deadline:
            time.sleep(0.002)

    def thaw(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def drop_network(self) -> None:
        """Packets to and from the node vanish without a word."""
        ip(f"link set {self.link} down")

    def restore(self) -> None:
        ip(f"link set {self.link} up")
        wait_until_up(self.link)
        state = [f"/sys/class/net/eth0/{name}" for name in ("carrier", "operstate")]
        deadline = time.monotonic() + START_TIMEOUT_S
        while (seen := self.exec(["cat", *state]).stdout) != "1\nup\n":
            if time.monotonic() > deadline:
                raise LabError(f"eth0 of {self.name} does not come up: {seen!r}")

    def die(self) -> None:
        """Power loss: all its processes are gone at once and nobody is told."""
        self.drop_network()  # first, so that no kernel says goodbye for them
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)

    def start(self) -> None:
        lab = self.lab
        self.directory.mkdir()
        host_key = make_key(self.directory / "host_key")
        lab.known[self.address] = host_key
        (self.directory / "sshd_config").write_text(
            SSHD_CONFIG.format(
                address=self.address, host_key=self.directory / "host_key", path=PATH,
                max_startups=lab.max_startups,
            )
        )  # fmt: skip
        config = {
            "name": self.name,
            "address": self.address,
            "home": HOME,
            "authorized": lab.authorized,
            "shared": lab.shared,
            "sshd_config": str(self.directory / "sshd_config"),
            "sshd_log": str(self.directory / "sshd.log"),
            "etc": {
                "passwd": passwd(),
                "shadow": shadow(),
                "hostname": self.name + "\n",
                "hosts": lab.hosts_text(),
            },
        }
        path = self.directory / "node.json"
        path.write_text(json.dumps(config))
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child=KILL",
             sys.executable, "-I", "-S", str(HERE / "init.py"), str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(self.directory / "init.log").open("wb"),
            start_new_session=True, env={"PATH": PATH, "HOME": HOME},
        )  # fmt: skip

    def answer(self, timeout_s: float = START_TIMEOUT_S) -> dict[str, object]:
        """The next line its process 1 says. Raises `LabError`."""
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                log = (self.directory / "init.log").read_text().strip()
                raise LabError(f"{self.name} says nothing: {log[-600:]}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise LabError(f"{self.name}: {answer['error']}")
        return answer

    def tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def _order(self, line: str) -> None:
        self.tell(line)
        self.answer()

    def stop(self) -> None:
        if self.process is None:
            return
        self.thaw()  # a stopped process 1 would not see its stdin close
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self.process.pid, signal.SIGKILL)
            self.process.wait(5)


def states(pids: set[int]) -> set[str]:
    """Their state letters: R runs, S sleeps, T is stopped, Z waits to be collected."""
    letters = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            letters.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return letters


def passwd() -> str:
    lines = Path("/etc/passwd").read_text().splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    mine = [f"root:x:0:0:root:{HOME}:/bin/bash", f"{WORKER}:x:64200:64200::/tmp:/bin/bash"]
    return "\n".join([*mine, *others]) + "\n"


def shadow() -> str:
    """No usable password, but not locked either: sshd without PAM refuses a locked account."""
    lines = Path("/etc/shadow").read_text().splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    mine = [f"{name}:*:20000:0:99999:7:::" for name in ("root", WORKER)]
    return "\n".join([*mine, *others]) + "\n"
