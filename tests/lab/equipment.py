"""What a GPU node has, for lab nodes: a driver, cards, a kernel log, a time daemon, its own boot.

Everything is bound into one node's mount namespace; the other nodes and the host see none of it.
"""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path

from tests.captures import fake_nvidia_smi as fake
from tests.lab.node import LabNode

CAPTURES = Path(__file__).parents[1] / "captures"
QUIET = "[    0.000000] Linux version 6.8\n"
PYTHON = "/tmp/venv/python"


class Equipment:
    """The tools and files of one node; every method may be called again to break something."""

    def __init__(self, node: LabNode) -> None:
        self.node = node
        self.folder = node.directory / "equipment"
        self.folder.mkdir()
        boot = self._file("boot_id", f"{uuid.uuid5(uuid.NAMESPACE_DNS, node.name)}\n")
        node.bind(boot, "/proc/sys/kernel/random/boot_id")
        if Path("/proc/modules").exists():
            node.bind(self._file("modules", "nvidia_peermem 1 0 - Live 0x0\n"), "/proc/modules")
        self.gpus()
        self.chrony("good")
        self.cards()
        self.python({})

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tool(self, name: str, script: str) -> None:
        """Put a program first on the node's PATH. A new one is bound over the old one."""
        number = len(list(self.folder.glob(f"{name}.*")))
        path = self._file(f"{name}.{number}", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        self.node.bind(path, name)

    def gpus(self, count: int = 8, *, hang: bool = False, log: str = QUIET) -> None:
        folder = self.folder / f"driver-{len(list(self.folder.glob('driver-*')))}"
        fake.install(folder, fake.h100(count), hang=hang, log=log)
        for name in ("nvidia-smi", "dmesg"):
            self.node.bind(folder / name, name)

    def chrony(self, state: str) -> None:
        """A chronyc that answers as one was recorded in that state."""
        top = CAPTURES / "chrony"
        self.tool(
            "chronyc",
            f'case "$*" in *tracking*) cat {shlex.quote(str(top))}/{state}.tracking.csv;;\n'
            f"*sources*) cat {shlex.quote(str(top))}/{state}.sources.csv;; esac",
        )

    def cards(self, down: str | None = None) -> None:
        """The InfiniBand tree of a recorded H100 node, one port down if named."""
        folder = self.node.lab.directory / f"class-{down or 'good'}"  # nodes share equal trees
        if not folder.exists():
            _write_cards(folder, down)
        self.node.show_class("infiniband", folder)

    def python(self, packages: dict[str, str]) -> None:
        """The training environment at PYTHON; `packages` have another version here."""
        number = len(list(self.folder.glob("site-*")))
        site = self.folder / f"site-{number}"
        site.mkdir()
        for name, version in packages.items():
            (site / f"{name}-{version}.dist-info").mkdir()
        path = self._file(
            f"python-{number}",
            f'#!/bin/sh\nPYTHONPATH={site} exec {shlex.quote(sys.executable)} "$@"\n',
        )
        path.chmod(0o755)
        self.node.bind(path, PYTHON)

    def clock_ahead(self, seconds: float) -> None:
        """Payloads on this node read a wall clock that is ahead."""
        self.tool(
            "python3",
            'shift 3; exec ' + shlex.quote(sys.executable) + f' -I -S -c "import time;_t=time.time;time.time=lambda:_t()+{seconds}\n$1"',
        )  # fmt: skip

    def daemon(self, name: str) -> None:
        """A process of that name, as far as anybody can see."""
        program = self._file(name, "")
        program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
        program.chmod(0o755)
        self.node.exec(["sh", "-c", f"setsid {program} 1000 </dev/null >/dev/null 2>&1 &"])

    def full_tmp(self) -> None:
        self.node.exec(["mount", "-o", "remount,size=4m", "/tmp"])
        self.node.exec(["sh", "-c", "head -c 8000000 /dev/zero > /tmp/filler"])

    def noisy_shell(self) -> None:
        self.node.exec(["sh", "-c", "echo 'echo Welcome to the cluster' > ~/.bashrc"])

    def dead_mount(self, path: str) -> None:
        """A FUSE file system whose program has gone."""
        program = (
            "import ctypes, os, sys; os.makedirs(sys.argv[1], exist_ok=True); fd = os.open('/dev/fuse', os.O_RDWR)\n"
            "data = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % fd\n"
            "sys.exit(ctypes.CDLL(None).mount(b'fuse', sys.argv[1].encode(), b'fuse.sshfs', 0, data))"
        )
        done = self.node.exec([sys.executable, "-c", program, path])
        assert done.returncode == 0, done.stderr

    def listen(self, port: int) -> None:
        program = f"import socket, time; s = socket.create_server(('', {port})); open('/run/listening', 'w'); time.sleep(1000)"
        self.node.exec(
            [
                "sh",
                "-c",
                f'setsid {shlex.quote(sys.executable)} -c "{program}" </dev/null >/dev/null 2>&1 &',
            ]
        )
        done = self.node.exec(
            [
                "sh",
                "-c",
                "for n in $(seq 400); do [ -e /run/listening ] && exit; sleep 0.05; done; exit 1",
            ]
        )
        assert done.returncode == 0


def _write_cards(folder: Path, down: str | None) -> None:
    text = (CAPTURES / "infiniband/sysfs-h100.tsv").read_text()
    assert down is None or f"/{down}/" in text
    for line in text.splitlines():
        path, _, value = line.partition("\t")
        if down is not None and f"/{down}/" in path:
            value = {"state": "1: DOWN", "phys_state": "2: Polling"}.get(
                path.rsplit("/")[-1], value
            )
        file = folder / path.removeprefix("/sys/class/infiniband/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
        if value == "InfiniBand":  # the recording has none
            (file.parent / "lid").write_text("0x30\n")
