"""Process 1 of a lab node: mounts, sshd, and a line protocol on stdin. Standard library only.

Run by `unshare` in fresh network, mount, pid and uts namespaces. It ends, and with it everything in
the node, when its stdin closes.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC = 4096, 16384


def mount(source, target, kind=None, flags=0, data=None):
    words = [None if word is None else str(word).encode() for word in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], flags, words[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def make_place(config):
    """A root file system shared with the host but for /proc, /sys, /run, /tmp and a few files."""
    mount("proc", "/proc", "proc")
    # Folders that every node shares with the host although they lie under /tmp.
    keep = [path for path in config["shared"] if path.startswith("/tmp/")]
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    for index, path in enumerate(keep):
        Path(f"/run/keep/{index}").mkdir(parents=True)
        mount(path, f"/run/keep/{index}", flags=MS_BIND | MS_REC)
    cgroups = Path("/run/keep/cgroup")
    cgroups.mkdir(parents=True)
    mount("/sys/fs/cgroup", cgroups, flags=MS_BIND | MS_REC)
    mount("sysfs", "/sys", "sysfs")  # shows this node's network interfaces
    with contextlib.suppress(OSError):  # not there where cgroups are not built in
        mount(cgroups, "/sys/fs/cgroup", flags=MS_BIND | MS_REC)
    mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
    mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    for index, path in enumerate(keep):
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/run/keep/{index}", path, flags=MS_BIND | MS_REC)
    for folder in ("/run/sshd", "/run/bin", "/run/lock", config["home"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    Path("/run/authorized_keys").write_text(config["authorized"])  # sshd reads it as the user
    for name, text in config["etc"].items():
        private = Path("/run") / f"etc-{name}"
        private.write_text(text)
        private.chmod(0o600 if name == "shadow" else 0o644)
        mount(private, f"/etc/{name}", flags=MS_BIND)
    name = config["name"].encode()
    libc.sethostname(name, len(name))


def set_up_network(config):
    commands = f"link set lo up\naddr add {config['address']}/24 dev eth0\nlink set eth0 up\n"
    subprocess.run(["ip", "-batch", "-"], input=commands.encode(), check=True)
    wait_until_up("eth0")


def wait_until_up(link):
    """The kernel sees that a cable is connected up to 1 s late, and drops what is sent until then."""
    folder, deadline = Path("/sys/class/net") / link, time.monotonic() + 10
    # To read `carrier` makes newer kernels look at once.
    while (folder / "carrier").read_text() != "1\n" or (folder / "operstate").read_text() != "up\n":
        if time.monotonic() > deadline:
            raise RuntimeError(f"{link} does not come up")
        time.sleep(0.005)


def start_sshd(config):
    """Start sshd in the foreground; returns when its port answers."""
    with Path(config["sshd_log"]).open("ab") as log:
        process = subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", config["sshd_config"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    deadline = time.monotonic() + 10
    while True:
        if answers(config):
            return process.pid
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                "sshd does not start: " + Path(config["sshd_log"]).read_text()[-500:]
            )
        time.sleep(0.005)


def answers(config):
    with socket.socket() as probe:
        return probe.connect_ex((config["address"], 22)) == 0


def reap():
    """Collect every orphan of the node, as process 1 must."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def say(**answer):
    print(json.dumps(answer), flush=True)


def obey(line, config, state):
    verb, _, rest = line.partition(" ")
    if verb == "kill-sshd":
        os.kill(state["sshd"], signal.SIGKILL)
        # The kernel closes a dead process's sockets when it finds time; until then they accept.
        while answers(config) or b"Z" not in status(state["sshd"]):
            time.sleep(0.001)
    elif verb == "start-sshd":
        state["sshd"] = start_sshd(config)
    elif verb == "bind":
        source, target = json.loads(rest)
        target = Path(target if target.startswith("/") else f"/run/bin/{target}")
        if not target.exists():
            if not str(target).startswith(("/run/", "/tmp/")):
                raise RuntimeError(f"{target} does not exist, and to make it would change the host")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mount(source, target, flags=MS_BIND)
    elif verb == "class":
        show_class(*json.loads(rest))


def show_class(name, source):
    """Make `source` a folder of /sys/class, which nobody can make there: a copy of it stands over it."""
    aside = Path("/run/class")
    if not aside.exists():
        aside.mkdir()
        for entry in Path("/sys/class").iterdir():
            (aside / entry.name).mkdir()
            mount(entry, aside / entry.name, flags=MS_BIND | MS_REC)
        mount(aside, "/sys/class", flags=MS_BIND | MS_REC)
    place = Path("/sys/class") / name
    place.mkdir(exist_ok=True)
    mount(source, place, flags=MS_BIND)


def status(pid):
    """The state letter of a process of ours, Z when it is gone or waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return b"Z"


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    say(pid=int(str(Path("/proc/self").readlink())))  # still the host's /proc: our pid out there
    sys.stdin.readline()  # the host has moved our end of the cable in
    make_place(config)
    set_up_network(config)
    state = {"sshd": start_sshd(config)}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    say(up=True)
    pending = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return  # the lease has ended; the kernel kills all that is in here with us
            pending += data
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                try:
                    obey(line.decode(), config, state)
                    say(ok=True)
                except (OSError, RuntimeError) as error:
                    say(error=str(error))
        reap()


if __name__ == "__main__":
    main()
