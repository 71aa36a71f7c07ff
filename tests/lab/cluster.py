"""N nodes out of namespaces, on a bridge of their own in 10.231.0.0/16."""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusterctl.transport.loopback.nodes import make_key
from tests.lab.init import wait_until_up

HERE = Path(__file__).parent
REPO = HERE.parents[1]
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


class LabError(RuntimeError):
    """The lab itself failed, not what is tested in it."""


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot make lab nodes; None when it can."""
    if os.environ.get("CLUSTERCTL_TESTS_WITHOUT_LAB"):
        return "turned off by $CLUSTERCTL_TESTS_WITHOUT_LAB"
    if os.geteuid() != 0:
        return "needs root"
    tools = [tool for tool in ("ip", "unshare", "nsenter") if not shutil.which(tool)]
    if not Path("/usr/sbin/sshd").exists():
        tools.append("sshd")
    if tools:
        return f"{', '.join(tools)} not installed (tests/lab/install.sh)"
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "sh", "-c",
         "mount -t tmpfs lab /tmp && ip link add lab0 type veth peer name lab1"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return f"no namespaces here: {attempt.stderr.strip()[:120]}" if attempt.returncode else None


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
        while not _states(stopped) <= set("TtZD") and time.monotonic() < deadline:
            time.sleep(0.002)

    def thaw(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def drop_network(self) -> None:
        """Packets to and from the node vanish without a word."""
        _ip(f"link set {self.link} down")

    def restore(self) -> None:
        _ip(f"link set {self.link} up")
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
                "passwd": _passwd(),
                "shadow": _shadow(),
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


class Lab:
    """A context manager; inside it the nodes answer and `hostfile` names them."""

    def __init__(
        self,
        count: int,
        directory: Path,
        *,
        shared: Sequence[Path] = (),
        max_startups: int | str = 200,
    ) -> None:
        self.directory = directory.absolute()
        # What all nodes and the host see alike: the code, its Python, this lab's files, and `shared`.
        folders = [self.directory, REPO, Path(sys.prefix), Path(sys.base_prefix), *shared]
        self.shared = [str(folder.absolute()) for folder in folders]
        self.max_startups = max_startups
        self.hostfile = self.directory / "nodes.txt"
        self.known_hosts = self.directory / "known_hosts"
        self.identity = self.directory / "identity"
        self.known: dict[str, str] = {}
        self.authorized = ""
        self.subnet = _take_subnet()
        self._is_stopped = False
        self.names = [f"node-{index + 1}" for index in range(count)]
        self.nodes = [LabNode(self, index, name) for index, name in enumerate(self.names)]

    @property
    def bridge(self) -> str:
        return f"cclab{self.subnet}"

    def hosts_text(self) -> str:
        lines = [f"{node.address} {node.name}" for node in self.nodes]
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines]) + "\n"

    def __enter__(self) -> Lab:
        atexit.register(self.stop)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        public = make_key(self.identity)
        self.authorized = f"ssh-ed25519 {public} lab\n"
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.pid = int(str(node.answer()["pid"]))
        cables = []
        for node in self.nodes:
            cables += [
                f"link add {node.link} type veth peer name eth0 address {node.mac} netns {node.pid}",
                f"link set {node.link} master {self.bridge} up",
                # Known for good: without it a node that is gone would be "no route to host" after
                # three seconds of ARP instead of silence.
                f"neigh replace {node.address} lladdr {node.mac} dev {self.bridge} nud permanent",
            ]
        _ip(*cables)
        for node in self.nodes:
            node.tell("connected")
        for node in self.nodes:
            node.answer()
        for link in [*(node.link for node in self.nodes), self.bridge]:
            wait_until_up(link)
        self.known_hosts.write_text(
            "".join(f"{address} ssh-ed25519 {key}\n" for address, key in self.known.items())
        )
        self.hostfile.write_text(
            "".join(
                f"{node.name} host={node.address} user=root identity={self.identity} "
                f"known_hosts={self.known_hosts}\n"
                for node in self.nodes
            )
        )

    def stop(self) -> None:
        """End the nodes and remove the bridge. Once: its names may be another lab's by then."""
        if self._is_stopped:
            return
        self._is_stopped = True
        atexit.unregister(self.stop)
        for node in self.nodes:
            node.stop()
        # The kernel takes a namespace down when it finds time; its cable is not waited for.
        for link in [*(node.link for node in self.nodes), self.bridge]:
            with contextlib.suppress(LabError):  # gone already
                _ip(f"link del {link}")


def _ip(*commands: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True,
        timeout=20, check=False,
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"ip: {done.stderr.strip()}")


def _take_subnet() -> int:
    """Make the bridge of a subnet nobody uses; creating it is what takes it, so labs may race."""
    _remove_orphans()
    for subnet in range(256):
        name, address = f"cclab{subnet}", ipaddress.ip_address(f"10.231.{subnet}.1")
        # A bridge without an address of its own takes the lowest of its ports, and forgets its
        # neighbours, the permanent ones too, whenever that becomes another.
        mac = f"02:cb:00:{subnet:02x}:00:01"
        done = subprocess.run(
            ["ip", "link", "add", name, "address", mac, "type", "bridge"], capture_output=True,
            text=True, timeout=20, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            alias = f"clusterctl-lab:{os.getpid()}:{_started(os.getpid())}"
            _ip(f"link set {name} alias {alias} up", f"addr add {address}/24 dev {name}")
            return subnet
        if "exists" not in done.stderr:
            raise LabError(f"ip link add: {done.stderr.strip()}")
    raise LabError("all 256 subnets of 10.231.0.0/16 are in use")


def _remove_orphans() -> None:
    """Bridges of test runs that were killed."""
    for path in Path("/sys/class/net").glob("cclab*"):
        with contextlib.suppress(OSError, ValueError, LabError):
            mark, pid, started = (path / "ifalias").read_text().strip().split(":")
            if mark == "clusterctl-lab" and _started(int(pid)) != started:
                for link in [*(cable.name for cable in (path / "brif").iterdir()), path.name]:
                    with contextlib.suppress(LabError):  # the kernel was quicker
                        _ip(f"link del {link}")


def _states(pids: set[int]) -> set[str]:
    """Their state letters: R runs, S sleeps, T is stopped, Z waits to be collected."""
    letters = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            letters.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return letters


def _started(pid: int) -> str:
    """A process's start time in clock ticks; tells it from a later one with the same pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _passwd() -> str:
    lines = Path("/etc/passwd").read_text().splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    mine = [f"root:x:0:0:root:{HOME}:/bin/bash", f"{WORKER}:x:64200:64200::/tmp:/bin/bash"]
    return "\n".join([*mine, *others]) + "\n"


def _shadow() -> str:
    """No usable password, but not locked either: sshd without PAM refuses a locked account."""
    lines = Path("/etc/shadow").read_text().splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    mine = [f"{name}:*:20000:0:99999:7:::" for name in ("root", WORKER)]
    return "\n".join([*mine, *others]) + "\n"
