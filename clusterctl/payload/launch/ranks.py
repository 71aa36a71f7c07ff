"""The ranks of a run on this node, and torchrun, which starts them: watched, reported, ended."""

import ctypes
import json
import os
import re
import signal
import subprocess
import time

from clusterctl.payload.files.private import new_folder, own_folder
from clusterctl.payload.jobs import processes
from clusterctl.payload.launch.rendezvous import name_interface
from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import as_text, read_bytes

libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
LOOK_S = 0.2
LOG_S = 2.0  # until torchrun's log has the exit code of a rank whose end was not seen
BEAT_S = 1.0
LOG_BYTES_PER_S = 256 * 1024  # of a rank's log, to a head that does not share the run directory
LAST_BYTES = 1 << 20  # of telemetry at once, and of each rank's log when all is over
TAIL_BYTES = 16384
END = {"op": "end"}  # the head has gone, or a signal asks the agent to end


def end_members(grace_s):
    """End all processes of the run on this node; returns what is left."""
    own = os.getpid()
    return processes.end_all(lambda: processes.members(ARGS["run"], ARGS["node"], own), grace_s)


def starter_log():
    return run_file("ranks", "torchrun-%s.log" % ARGS["node"].replace("/", "_"))


def rank_log(rank):
    return run_file("ranks", "%d.log" % rank)


def run_file(*names):
    return os.path.join(ARGS["run_dir"], *names)


class Ranks:
    """The processes that the agent starts: torchrun and its ranks, which write heartbeats."""

    def __init__(self, shared, head, next_order):
        self.head, self.emit, self.next_order = head, head.send, next_order
        self.child = None  # type: Any  # Popen of torchrun
        self.code = None  # of torchrun
        self.is_over = False  # nothing more will be written
        self.beats = ""  # folder of the heartbeats
        self.sent_s = time.monotonic()  # when heartbeats were sent last
        self.numbers = range(ARGS["first_rank"], ARGS["first_rank"] + ARGS["slots"])
        self.pids = {}  # rank -> (pid, start ticks)
        self.ended = {}  # rank -> exit code or None
        self.vanished = {}  # rank -> when it was found gone, its exit code unknown so far
        self.telemetry = Follower(run_file("telemetry.jsonl"))
        self.logs = {} if shared else {rank: Follower(rank_log(rank)) for rank in self.numbers}

    def start(self, order):
        self.beats = new_folder("beats", (own_folder(),))
        env = dict(os.environ, **order["env"])
        python_bin = os.path.dirname(ARGS["python"])
        env["PATH"] = python_bin + ":" + env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        if env.get("OMP_NUM_THREADS") == "auto":
            env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ARGS["slots"]))
        name_interface(env, "GLOO_SOCKET_IFNAME", order["address"])
        env["CLUSTERCTL_HEARTBEATS"] = self.beats
        for name in ("run", "attempt", "job", "node", "run_dir"):
            env["CLUSTERCTL_" + name.upper()] = str(ARGS[name])
        with open(starter_log(), "ab") as log:
            self.child = subprocess.Popen(
                order["argv"],
                env=env,
                cwd=ARGS["workdir"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # If the agent is killed, torchrun ends its ranks. Children of the subreaper stay;
                # `reap` finds them by their tag.
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
            )

    def watch(self):
        """Until everything has ended, by itself or by order; returns what is left."""
        heard_s = time.monotonic()
        while self.code is None:
            order = self.turn()
            if order is not None:
                heard_s = time.monotonic()
            if order is not None and order["op"] == "stop":
                self.stop(order["grace_s"])
            elif order == END:
                self.stop(ARGS["fail_grace_s"])
            elif time.monotonic() - heard_s > ARGS["lease_s"]:
                self.stop(ARGS["grace_s"])  # nobody has come back: they save and end
        left = end_members(0.5)
        for rank in list(self.vanished):
            self.report_ended(rank, code_in_log(self.pids[rank][0]))
        self.is_over = True
        self.send_files(to_the_end=True)
        self.emit({"type": "ended", "code": self.code, "tail": tail(starter_log())})
        return left

    def turn(self):
        """Check everything and report to the head; returns its order, if there is one."""
        order = self.next_order(LOOK_S)
        self.look()
        if not self.head.is_behind():
            self.send_files()
            if time.monotonic() - self.sent_s >= BEAT_S:
                self.sent_s = time.monotonic()
                self.emit({"type": "beat", "ranks": self.heartbeats()})
        return order

    def look(self):
        """Find ranks that have started or ended, and report each once."""
        for rank in self.numbers:
            if rank not in self.pids:
                # The rank's shell writes its process id before it becomes the rank's program.
                text = read_bytes("%s/%d.pid" % (self.beats, rank)) or b""
                if text.endswith(b"\n"):
                    self.pids[rank] = (int(text), processes.start_of(int(text)))
                    self.emit({"type": "rank", "rank": rank, "pid": int(text)})
        for rank, (pid, start) in self.pids.items():
            if rank in self.ended:
                continue
            facts = processes.process(pid)
            if facts is not None and facts.start == start:
                if facts.state in "ZX":
                    self.report_ended(rank, processes.exit_code(facts.exit_code))
                continue
            # torchrun has reaped it; its log will have the exit code.
            gone_s = time.monotonic() - self.vanished.setdefault(rank, time.monotonic())
            code = code_in_log(pid)
            if code is not None or gone_s > LOG_S:
                self.report_ended(rank, code)
        self.reap()

    def report_ended(self, rank, code):
        self.ended[rank] = code
        self.vanished.pop(rank, None)
        how = processes.exit_text(code)
        message = {"type": "rank_ended", "rank": rank, "code": code, "how": how}
        if code != 0:
            message["tail"] = tail(rank_log(rank))
        self.emit(message)

    def reap(self):
        """Reap torchrun, and orphans that are ours as a subreaper."""
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                if pid == self.child.pid:
                    self.code = processes.exit_code(status)
                    self.child.returncode = self.code  # Popen must not wait for it again
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass  # none is left

    def stop(self, grace_s):
        """Send SIGTERM to the ranks alone, so that they can save, then end everything."""
        if grace_s > 0:
            keys = [key for rank, key in self.pids.items() if rank not in self.ended]
            pids = [pid for pid, start in keys if processes.start_of(pid) == start]
            processes.send(pids, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and len(self.ended) < len(self.pids):
                order = self.turn()
                if order is not None and order["op"] == "stop" and order["grace_s"] == 0:
                    break  # the user asked twice
        end_members(min(grace_s, 1.0))
        deadline = time.monotonic() + 2.0
        while self.code is None and time.monotonic() < deadline:
            self.look()
            time.sleep(0.05)
        if self.code is None:
            self.code = -signal.SIGKILL  # it cannot be ended; `gone` reports what is left

    def go_back(self, positions):
        """To what a head has got of each file; what was on its way to it is sent again."""
        self.telemetry.offset = positions.get("telemetry", 0)
        for rank, log in self.logs.items():
            log.offset = positions.get(str(rank), 0)
        if self.is_over:
            self.send_files(to_the_end=True)

    def send_files(self, to_the_end=False):
        """`at` and `end` are places in the file, so that a head takes each part once."""
        log_bytes = LAST_BYTES if to_the_end else int(LOG_BYTES_PER_S * LOOK_S)
        if ARGS["first_rank"] == 0:
            self.send_part({"type": "telemetry"}, self.telemetry, LAST_BYTES, to_the_end)
        for rank, log in self.logs.items():
            self.send_part({"type": "log", "rank": rank}, log, log_bytes, to_the_end)

    def send_part(self, message, file, limit, to_the_end):
        at = file.offset
        text = file.lines(limit, to_the_end)
        if text:
            self.emit(dict(message, text=text, at=at, end=file.offset))

    def heartbeats(self):
        """Step, phase and age of each rank's last beat; a rank without one is left out."""
        found = {}
        for rank in self.numbers:
            try:
                beat = json.loads(read_bytes("%s/%d.json" % (self.beats, rank)) or b"")
                age_s = round(time.monotonic() - beat["mono_s"], 2)
                found[str(rank)] = {"step": beat["step"], "phase": beat["phase"], "age_s": age_s}
            except (ValueError, KeyError, TypeError):
                continue
        return found


def code_in_log(pid):
    """Exit code of a process in torchrun's report, which has only the first; else None."""
    pattern = r"exitcode: (-?\d+)\) local_rank: \d+ \(pid: %d\)" % pid
    found = re.search(pattern, "\n".join(tail(starter_log())))
    return int(found.group(1)) if found else None


class Follower:
    """What was appended to a file since the last call."""

    def __init__(self, path):
        self.path, self.offset = path, 0

    def lines(self, limit, to_the_end=False):
        """Whole lines of at most `limit` bytes; at the end the last, after a line about a gap."""
        gap = 0
        try:
            with open(self.path, "rb") as file:
                if to_the_end:
                    gap = max(0, file.seek(0, os.SEEK_END) - limit - self.offset)
                self.offset += gap
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return ""
        # The last line may still be written, or be cut within a character.
        if (len(data) < limit and not to_the_end) or (len(data) == limit and b"\n" in data):
            data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        text = as_text(data)
        return "[%d bytes stayed on the node: %s]\n%s" % (gap, self.path, text) if gap else text


def tail(path):
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            lines = as_text(file.read()).splitlines()
    except OSError:
        return []
    return lines[1:] if start and len(lines) > 1 else lines  # the first one is cut
