"""The base of every payload: `python3 -I -S`, 3.8 or newer, with the standard library alone."""

import json
import os
import select
import signal
import sys
import threading
import time

# Imports are most of a payload's cost: 48 ms of CPU with traceback, socket, subprocess and
# importlib.abc, 30 without. What is needed only sometimes is imported where it is needed.

MARKER = "==clusterctl-payload-1=="  # the first line of every payload, after any shell output
VERB = ""
ARGS = {}  # type: dict
SECTIONS = {}  # type: dict

# Only root's PATH has sbin.
TOOL_PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MAX_BYTES = 1 << 20  # of one tool's output
DRAIN_S = 0.2  # after the end of a tool whose background process holds its pipes
START_S = 0.2  # for a tool that is being started; on a dead mount that never ends
REAP_S = 0.5  # after SIGKILL; a process that still lives then sleeps in the kernel

_live = {}  # type: dict  # process id -> Popen of tools that run now
_live_lock = threading.Lock()
_starting = []  # type: list  # an item for each tool that is not in _live yet
_out_lock = threading.Lock()


def tool_env():
    """The environment of tools: messages and numbers in the C locale, a PATH with sbin."""
    env = dict(os.environ)
    env["LC_ALL"] = env["LANG"] = "C"
    env.pop("LANGUAGE", None)
    have = [path for path in env.get("PATH", "").split(":") if path]
    env["PATH"] = ":".join(have + [path for path in TOOL_PATHS if path not in have])
    return env


def as_text(data):
    return data.decode("utf-8", "backslashreplace")


def error_text(error):
    return "%s: %s" % (type(error).__name__, error)


def section(
    name, argv, timeout_s, max_bytes=MAX_BYTES, grace_s=0.0, pack=as_text, newest=False, **options
):
    """Run a tool: {state, rc, out, err, seconds}, also in SECTIONS under `name`, if it has one.

    Keeps `max_bytes` of stdout and a quarter of that of stderr, with `newest` the end of stdout;
    `truncated` shows that something was cut. `pack` makes text of both; `options` are env and cwd.

    `state` is "ended", "missing" (no such program), "timeout" (its process group was killed) or
    "error"; only "ended" has an `rc`. With `grace_s` the group gets SIGTERM that long before
    SIGKILL. A tool that sleeps in the kernel after SIGKILL is abandoned.
    """

    def work():
        return _run_tool(list(argv), timeout_s, max_bytes, grace_s, newest, **options)

    # The start itself can hang, with a program on a dead network mount.
    return _keep(name, work, timeout_s + grace_s + REAP_S + 1.0, "could not be started", pack)


def call(name, function, timeout_s):
    """As `section` for a function that returns text; only for reading /proc, /sys or memory."""

    def work():
        try:
            return "ended", 0, function().encode(), ""
        except FileNotFoundError as error:
            return "missing", None, b"", str(error)
        except Exception as error:  # noqa: BLE001 - section boundary: it becomes the answer
            return "error", None, b"", error_text(error)

    return _keep(name, work, timeout_s, "no answer in %g s" % timeout_s)


def _keep(name, work, timeout_s, late, pack=as_text):
    """Keep the result of `work`, which runs in a thread; a time-out when it does not return."""
    started = time.monotonic()
    box = []  # type: list
    thread = in_thread(lambda: box.append(_result(*work(), started=started, pack=pack)))
    _wait_for(thread, timeout_s)
    if not box:
        box.append(_result("timeout", None, b"", late, started=started, pack=pack))
    if name:
        SECTIONS[name] = box[0]
    return box[0]


def in_thread(work, *args):
    """Run a function in a daemon thread; its exception goes to stderr."""
    thread = threading.Thread(target=_guard, args=(work, *args), daemon=True)
    thread.start()
    return thread


def together(tasks):
    """Run functions in threads and wait for all; `section` and `call` keep their deadlines."""
    for thread in [in_thread(task) for task in tasks]:
        _wait_for(thread, float("inf"))


def _wait_for(thread, timeout_s):
    """Join in slices: a signal that arrives just before a wait is handled only after it."""
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(min(0.5, max(0.0, deadline - time.monotonic())))


def _guard(work, *args):
    try:
        work(*args)
    except Exception:  # noqa: BLE001 - one broken section must not end the others
        _print_traceback()


def _print_traceback():
    import traceback

    traceback.print_exc()
    sys.stderr.flush()


def read_text(path, limit=MAX_BYTES):
    """Text of a file of /proc or /sys."""
    with open(path, "rb") as file:
        return as_text(file.read(limit))


def read_word(path, default=None, limit=MAX_BYTES):
    """As `read_text`, without white space at the ends; `default` where it cannot be read."""
    try:
        return read_text(path, limit).strip()
    except OSError:
        return default


def names_in(folder):
    """Names in a folder, sorted; [] where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_bytes(path, limit=MAX_BYTES):
    """Contents of a file; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def environ_value(environ, name):
    """A variable in the bytes of /proc/PID/environ; None where it is not set."""
    _, found, rest = (b"\0" + environ).partition(b"\0" + name.encode() + b"=")
    return rest.split(b"\0", 1)[0].decode("utf-8", "replace") if found else None


def read_stat(task):
    """(name, words from the state on) of /proc/TASK/stat; None when the process is gone."""
    try:
        with open("/proc/%s/stat" % task, "rb", buffering=0) as file:
            head, _, tail = as_text(file.read(4096)).rpartition(")")
    except OSError:
        return None
    return head.partition("(")[2], tail.split()


def read_times():
    """Wall clock and seconds since boot, read with the shortest gap of three tries."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(3):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall_s = time.time()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        best = min(best, (after - before, wall_s, (before + after) / 2))
    return {"time_s": best[1], "boottime_s": best[2]}


def _result(state, rc, out, err, truncated=False, *, started, pack=as_text):
    err = err if isinstance(err, bytes) else err.encode("utf-8", "backslashreplace")
    result = {"state": state, "rc": rc, "out": pack(out), "err": pack(err)}
    result["seconds"] = round(time.monotonic() - started, 4)
    if truncated:
        result["truncated"] = True
    return result


def is_there(name, env):
    """Whether a program can be found: cheaper than a fork that fails."""
    if "/" in name:
        return True  # starting it will show
    folders = env.get("PATH", os.defpath).split(":")
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders if folder)


def start_tool(argv, env=None, cwd="/", **options):
    """Start a program in its own session; the end of the lease ends it. `options` are Popen's."""
    import subprocess

    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = dict(given, env=tool_env() if env is None else env, cwd=cwd, **options)
    _starting.append(None)
    try:
        child = subprocess.Popen(argv, start_new_session=True, **options)
        with _live_lock:
            _live[child.pid] = child
    finally:
        _starting.pop()
    return child


def forget_tool(child):
    """The end of the lease no longer ends it."""
    with _live_lock:
        _live.pop(child.pid, None)


def _run_tool(argv, timeout_s, max_bytes, grace_s, newest, env=None, cwd="/"):
    """(state, rc, out, err, truncated) of a tool."""
    deadline = time.monotonic() + timeout_s
    env = tool_env() if env is None else env
    if not is_there(argv[0], env):
        return "missing", None, b"", "not found: %s" % argv[0]
    try:
        child = start_tool(argv, env, cwd)
    except FileNotFoundError as error:
        return "missing", None, b"", "not found: %s" % error.filename
    except (OSError, ValueError) as error:
        return "error", None, b"", "%s: %s" % (argv[0], error)
    try:
        (out, err), truncated, in_time = _collect(child, deadline, max_bytes, newest)
        if in_time:
            return "ended", child.returncode, bytes(out), bytes(err), truncated
        how = "killed" if _kill_group(child, grace_s) else "and SIGKILL does not end it"
        why = b"no end in %g s, %s" % (timeout_s, how.encode())
        return "timeout", None, bytes(out), b"\n".join(filter(None, [err.strip(), why])), truncated
    finally:
        forget_tool(child)
        child.stdout.close()
        child.stderr.close()


def _collect(child, deadline, max_bytes, newest):
    """Read both pipes until the child has ended; returns ([out, err], truncated, in time)."""
    kept = [bytearray(), bytearray()]
    index = {child.stdout.fileno(): 0, child.stderr.fileno(): 1}
    poller = select.poll()
    for descriptor in index:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    truncated = False
    ended_at = None
    while index:
        now = time.monotonic()
        if now >= deadline:
            return kept, truncated, False
        if child.poll() is not None:
            ended_at = ended_at or now
            if now - ended_at > DRAIN_S:
                break
        for descriptor, _ in poller.poll(1000 * min(0.1, max(0.001, deadline - now))):
            data = os.read(descriptor, 65536)
            target = kept[index[descriptor]]
            capacity = (max_bytes if target is kept[0] else max_bytes // 4) - len(target)
            truncated = truncated or len(data) > capacity
            if newest and target is kept[0]:
                target += data
                del target[: max(0, len(target) - max_bytes)]
            else:
                target += data[: max(0, capacity)]
            if not data:
                poller.unregister(descriptor)
                del index[descriptor]
    return kept, truncated, _ends(child, max(0.0, deadline - time.monotonic()))


def _ends(child, timeout_s):
    """Whether a tool ends in time."""
    import subprocess

    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(child, grace_s=0.0):
    """End a tool's process group; False when even SIGKILL does not end it."""
    has_ended = False
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, REAP_S)):
        if patience_s:
            try:
                os.killpg(child.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # gone, or another user's (sudo): the wait below shows
            has_ended = _ends(child, patience_s)
    return has_ended


def kill_tools(grace_s=0.0):
    """End everything that `section` runs now."""
    until = time.monotonic() + START_S
    while _starting and time.monotonic() < until:
        time.sleep(0.005)
    with _live_lock:
        children = list(_live.values())
    for child in children:
        _kill_group(child, grace_s)


def user_name(uid):
    """Login name of a user id; the number itself where it has none."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def node_facts():
    """Name, boot, interpreter, clock and user of this node."""
    return {
        "hostname": os.uname().nodename,
        "boot_id": read_word("/proc/sys/kernel/random/boot_id"),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "time_s": time.time(),
        "boottime_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "user": user_name(os.getuid()),
    }


def emit(message):
    """Send one JSON line to the head. Ends the payload when the head has gone."""
    _emit(message)


def emit_through(send):
    """From now on `send` takes the messages of `emit`."""
    global _emit
    _emit = send


def _emit(message):
    _write((json.dumps(message) + "\n").encode())


def _write(data, on_loss=None):
    """Write to the head; `on_loss()`, else `leave()`, when it has gone."""
    with _out_lock:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            (on_loss or leave)()


def leave(*_):
    """End all tools and this process; also a signal handler."""
    kill_tools()
    os._exit(0)


def envelope(**data):
    """The answer of a one-shot payload, with `data` on top."""
    return dict(schema=1, verb=VERB, node=node_facts(), sections=dict(SECTIONS), **data)


def finish(data=None, rc=0):
    """Send the envelope of a one-shot payload, `data` on top, and end the process."""
    emit(envelope(**(data or {})))
    # sys.exit would wait for threads that hang in a dead mount, and older interpreters abort at
    # exit while a thread reads stdin.
    os._exit(rc)


def hold_lease(on_message=None, on_close=None):
    """Each JSON line of stdin goes to `on_message`; at its end `on_close()`, else all ends."""

    def watch():
        while True:
            line = sys.stdin.buffer.readline()
            if not line.endswith(b"\n"):
                break
            if on_message is not None and line.strip():
                _guard(lambda: on_message(json.loads(line)))  # noqa: B023
        if on_close is not None:
            on_close()
        else:
            kill_tools(1.0)
            os._exit(0)

    in_thread(watch)


def on_signals(handler):
    """Call `handler(number, frame)` when something asks this payload to end."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, handler)


def _on_signal(number, _frame):
    kill_tools()
    os._exit(128 + number)


def run(module):
    """Read the arguments, print the marker, run the module's `main`."""
    global VERB
    given = json.loads(sys.stdin.buffer.readline())
    VERB = given["verb"]
    ARGS.update(given["args"])
    on_signals(_on_signal)
    _write(("\n" + MARKER + "\n").encode())
    try:
        __import__(module)
        sys.modules[module].main()
    except BaseException:  # noqa: BLE001 - the head shows stderr
        _print_traceback()
        kill_tools()
        os._exit(1)
    os._exit(0)
