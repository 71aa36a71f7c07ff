"""The ranks of a run on this node, and their starter: watched, reported, ended."""

import json
import os
import signal
import time

from clusterctl.payload.files.private import new_folder, own_folder, replace_file
from clusterctl.payload.jobs import processes
from clusterctl.payload.launch.kernel_facts import KernelFacts
from clusterctl.payload.launch.log_files import Follower, Reading
from clusterctl.payload.launch.rendezvous import name_interface
from clusterctl.payload.launch.run_folder import run_file
from clusterctl.payload.launch.starter import Starter, log_name, standbys, variables
from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import read_bytes

LOOK_S = 0.2
SETTLE_S = 2.0  # for the starter to tell the ends of ranks that were killed, or its own
# From the first bad end of a rank to SIGTERM for the others, where no head decides: they find out
# by themselves within that, and say why.
PEERS_S = 5.0
BEAT_S = 1.0
LOG_BYTES_PER_S = 256 * 1024  # of a rank's log, to a head that does not share the run directory
LAST_BYTES = 1 << 20  # of telemetry at once, and of each rank's log when all is over
READ_S = 0.2  # for files; a storage that stalls is read aside, while beats go on
TAIL_S = 5.0  # for the last lines of a log, of all that end meanwhile
LAST_READ_S = 60.0  # for what files have when all is over
ALONE = "no supervisor was heard for %s (--orphan-timeout): its ranks were told to save and end"
END = {"op": "end"}  # the head has gone, or a signal asks the agent to end


killed_s = {}  # type: dict  # see processes.end_all


def end_members(grace_s, spare=None):
    """End all processes of the run on this node, but one that is spared; returns what is left."""
    own = os.getpid()
    # A starter that stood by is no child of this agent.
    roots = [own, *standbys(ARGS["run"], ARGS["node"])]

    def find():
        return processes.members(ARGS["run"], ARGS["node"], roots, without=(own, spare))

    return processes.end_all(find, grace_s, killed_s=killed_s)


class Ranks:
    """The processes that the starter starts for the agent, which write heartbeats."""

    def __init__(self, shared, head, next_order):
        self.head, self.emit, self.next_order = head, head.send, next_order
        self.starter = Starter(ARGS["run"], ARGS["node"])
        self.have_ended = False
        self.code = None  # 1 after a bad end of a rank; the starter's own where it has failed
        self.keeps_starter = True  # for the next attempt
        self.is_over = False  # nothing more will be written
        self.has_told_end = False
        self.beats = ""  # folder of the heartbeats
        self.sent_s = time.monotonic()  # when heartbeats were sent last
        self.numbers = range(ARGS["first_rank"], ARGS["first_rank"] + ARGS["slots"])
        self.pids = {}  # rank -> (pid, start ticks)
        self.ended = {}  # rank -> exit code or None
        self.reaped = {}  # pid -> exit code of what the starter has left behind
        self.kernel = None  # type: Any  # KernelFacts
        self.told_pid = None  # of the starter that the head knows
        self.kills = False  # whether SIGKILL may be ours
        self.failed_s = None  # type: Any  # when the first rank ended badly
        self.gone_s = None  # type: Any  # when the starter was found gone
        self.telemetry = Follower(run_file("telemetry.jsonl"))
        self.logs = {rank: Follower(run_file("ranks", "%d.log" % rank)) for rank in self.numbers}
        self.starter_log = Follower(run_file("ranks", log_name(ARGS["node"])))
        self.carried = {} if shared else self.logs
        self.reading = None  # type: Any  # of files, and whether it was to the end
        self.tail_reading = None  # type: Any  # of last lines, while the storage stalls

    def start(self, order):
        """Raises OSError."""
        self.beats = new_folder("beats", (own_folder(),))
        if ARGS["first_rank"] == 0:  # an earlier attempt that lives on elsewhere reads it and ends
            mode = 0o640 if ARGS["group"] else 0o600
            replace_file(run_file(".attempt"), b"%d\n" % ARGS["attempt"], mode)
        env = dict(order["env"])
        more = name_interface(env, "GLOO_SOCKET_IFNAME", order["address"])
        more["CLUSTERCTL_HEARTBEATS"] = self.beats
        more["CLUSTERCTL_ATTEMPT"] = str(ARGS["attempt"])
        if "launched_s" in order:
            more["CLUSTERCTL_LAUNCHED_S"] = "%.3f" % order["launched_s"]
        asked = {"argv": order["argv"], "env": variables(env), "more": more}
        asked["fail_grace_s"] = ARGS["fail_grace_s"]
        self.starter.start(asked, self.starter_log.path)
        self.tell_start()

    def tell_start(self):
        self.told_pid = self.starter.pid
        self.kernel = KernelFacts(self.starter.pid)
        self.emit({"type": "started", "pid": self.starter.pid})

    def watch(self):
        """Until everything has ended, by itself or by order; returns what is left."""
        heard_s = time.monotonic()
        while not self.have_ended:
            order = self.turn()
            now = time.monotonic()
            if order is not None:
                heard_s = now
            if order is not None and order["op"] == "stop":
                self.stop(order["grace_s"])
            elif order is not None and order["op"] == "told":
                self.keeps_starter = self.keeps_starter and order["by"] != "kill"
            elif order == END:
                self.keeps_starter = False
                self.stop(ARGS["grace_s"])  # a machine that goes down leaves time to save
            elif now - heard_s > ARGS["lease_s"]:
                self.keeps_starter = False
                lease_s = ARGS["lease_s"]
                span = "%g h" % (lease_s / 3600) if lease_s >= 3600 else "%g s" % lease_s
                self.emit({"type": "leaving", "text": ALONE % span})
                self.stop(ARGS["grace_s"])
            elif self.failed_s is not None and not self.head.is_connected:
                if now - self.failed_s > PEERS_S:
                    self.stop(ARGS["fail_grace_s"])
        if self.starter.is_gone:
            self.tell_end()  # before those of the ranks, which it has brought about
        is_warm = self.keeps_starter and self.code != 0 and not self.starter.is_gone
        left = end_members(0.5, self.starter.pid if is_warm else None)
        self.look()
        stuck = [one["pid"] for one in left]
        for rank, (pid, _) in self.pids.items():
            if pid not in stuck:
                self.report_ended(rank, self.reaped.get(pid))
        for fact in self.kernel.xids(is_last=True) if self.code != 0 else ():
            self.emit(fact)
        self.is_over = True
        self.send_the_rest()
        if not self.has_told_end:
            self.tell_end()
        return left

    def tell_end(self):
        self.has_told_end = True
        self.emit({"type": "ended", "code": self.code, "tail": self.tail(self.starter_log)})

    def turn(self):
        """Check everything and report to the head; returns its order, if there is one."""
        order = self.next_order(LOOK_S)
        self.look()
        if not self.head.is_behind():
            self.send_files()
            self.beat()
        return order

    def beat(self):
        if time.monotonic() - self.sent_s >= BEAT_S:
            self.sent_s = time.monotonic()
            self.emit({"type": "beat", "ranks": self.heartbeats()})

    def look(self):
        """Take what the starter reports of ranks, and find out whether it lives."""
        messages = self.starter.messages()
        if self.starter.pid != self.told_pid:
            self.tell_start()  # another one, since the one that stood by could not serve
        for message in messages:
            if message["type"] == "rank":
                rank, pid = message["rank"], message["pid"]
                self.pids[rank] = (pid, processes.start_of(pid))
                self.emit({"type": "rank", "rank": rank, "pid": pid})
            elif message["type"] == "ended":
                self.report_ended(message["rank"], message["code"])
            elif message["type"] == "over":
                self.have_ended, self.code = True, message["code"]
        self.reap()
        if self.starter.is_gone and not self.have_ended:
            self.gone_s = self.gone_s or time.monotonic()
            child = self.starter.child
            self.code = child and child.returncode
            waits = child is not None and self.code is None
            self.have_ended = not waits or time.monotonic() - self.gone_s > SETTLE_S

    def report_ended(self, rank, code):
        if rank in self.ended:
            return
        self.ended[rank] = code
        if code != 0:
            self.failed_s = self.failed_s or time.monotonic()
        how = processes.exit_text(code)
        message = {"type": "rank_ended", "rank": rank, "code": code, "how": how}
        if code != 0:
            message["tail"] = self.tail(self.logs[rank])
            facts = self.kernel.xids()
            if not self.kills:
                facts.append(self.kernel.of_death(rank, code, message["tail"]))
            for fact in filter(None, facts):
                self.emit(fact)
        self.emit(message)

    def reap(self):
        """Reap the starter, and orphans that are ours as a subreaper: its ranks, after its end."""
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                code = processes.exit_code(status)
                if self.starter.child is not None and pid == self.starter.child.pid:
                    self.starter.child.returncode = code  # Popen must not wait for it again
                self.reaped[pid] = code
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass  # none is left

    def stop(self, grace_s):
        """Send SIGTERM to the ranks alone, so that they can save, then end everything."""
        if grace_s > 0:
            keys = [key for rank, key in self.pids.items() if rank not in self.ended]
            pids = [pid for pid, start in keys if start and processes.start_of(pid) == start]
            processes.send(pids, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and len(self.ended) < len(self.pids):
                order = self.turn()
                if order is not None and order["op"] == "stop" and order["grace_s"] == 0:
                    break  # the user asked twice
        self.kills = True
        left = end_members(min(grace_s / 4, 1.0), self.starter.pid)  # what ranks have started
        if self.pids and not left:
            self.wait_for_ends(SETTLE_S)
        if not self.have_ended:  # it cannot tell: it was stopped, or still imports
            self.keeps_starter = False
            end_members(0 if left else 0.5)
            self.wait_for_ends(0.1 if left else SETTLE_S)
        if not self.have_ended:
            self.have_ended, self.code = True, -signal.SIGKILL  # `gone` reports what is left

    def wait_for_ends(self, limit_s):
        deadline = time.monotonic() + limit_s
        while not self.have_ended and time.monotonic() < deadline:
            self.look()
            time.sleep(0.05)

    def go_back(self, positions):
        """To what a head has got of each file; what was on its way to it is sent again."""
        self.telemetry.go_to(positions.get("telemetry", 0))
        for rank, log in self.carried.items():
            log.go_to(positions.get(str(rank), 0))
        if self.reading is not None:
            self.reading = self.reading[0], False  # what it finds may be from another place
        if self.is_over:
            self.send_the_rest()

    def send_the_rest(self):
        """What files have when all is over; said where the storage does not give it."""
        deadline = time.monotonic() + LAST_READ_S
        while not self.send_files(to_the_end=True):
            self.beat()
            if time.monotonic() > deadline:
                text = (
                    "the last of its files could not be read within %g s: the storage of %s stalls"
                )
                self.emit({"type": "unread", "text": text % (LAST_READ_S, ARGS["run_dir"])})
                return

    def send_files(self, to_the_end=False):
        """Whether they were read, which is done aside. `at` and `end` are places in this attempt's
        part, so that a head takes each once."""
        if self.reading is None:
            self.reading = Reading(self.parts, to_the_end), to_the_end
        reading, was_to_the_end = self.reading
        found = reading.within(READ_S)
        if found is None:
            return False
        self.reading = None
        for file, message in found[0] if found else ():
            # Not what an earlier head was to get, where another has come meanwhile.
            if message["at"] == file.place:
                file.go_to(message["end"])
                self.emit(message)
        return was_to_the_end or not to_the_end

    def parts(self, to_the_end):
        """[(file, message)] of what is new; changes nothing."""
        log_bytes = LAST_BYTES if to_the_end else int(LOG_BYTES_PER_S * LOOK_S)
        asked = [
            ({"type": "log", "rank": rank}, log, log_bytes) for rank, log in self.carried.items()
        ]
        if ARGS["first_rank"] == 0:
            asked.insert(0, ({"type": "telemetry"}, self.telemetry, LAST_BYTES))
        found = []
        for message, file, limit in asked:
            at = file.place
            text, end = file.lines(limit, to_the_end)
            if text:
                found.append((file, dict(message, text=text, at=at, end=end)))
        return found

    def tail(self, log):
        """The last lines of a log, or that its storage stalls."""
        if self.tail_reading is not None and self.tail_reading.within(0) is None:
            found = None  # the storage stalls already
        else:
            self.tail_reading = Reading(log.tail)
            found = self.tail_reading.within(TAIL_S)
        if found is None:
            return ["[%s could not be read within %g s: its storage stalls]" % (log.path, TAIL_S)]
        return found[0] if found else []

    def heartbeats(self):
        """Step, phase and age of each rank's last beat; a rank without one is left out."""
        found = {}
        for rank in self.numbers:
            try:
                beat = json.loads(read_bytes("%s/%d.json" % (self.beats, rank)) or b"")
                age_s = round(time.monotonic() - beat["mono_s"], 2)
                found[str(rank)] = {"step": beat["step"], "phase": beat["phase"], "age_s": age_s}
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
        return found
