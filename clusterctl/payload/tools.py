"""Tools, functions and threads of a payload, each with its deadline."""

import os
import select
import signal
import threading
import time

from clusterctl.payload.proc_files import MAX_BYTES, as_text, or_none

SECTIONS = {}  # type: dict  # results by name

# Only root's PATH has sbin.
TOOL_PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
DRAIN_S = 0.2  # after the end of a tool whose background process holds its pipes
START_S = 0.2  # for a tool that is being started; on a dead mount that never ends
REAP_S = 0.5  # after SIGKILL; a process that still lives then sleeps in the kernel

_live = {}  # type: dict  # process id -> Popen of tools that run now
_live_lock = threading.Lock()
_starting = []  # type: list  # an item for each tool that is not in _live yet


def tool_env():
    """The environment of tools: messages and numbers in the C locale, a PATH with sbin."""
    env = dict(os.environ, LC_ALL="C", LANG="C")
    env.pop("LANGUAGE", None)
    folders = [path for path in env.get("PATH", "").split(":") if path]
    env["PATH"] = ":".join(dict.fromkeys([*folders, *TOOL_PATHS]))
    return env


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
        return _run_tool(argv, timeout_s, max_bytes, grace_s, newest, **options)

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

    def keep():
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - section boundary: it becomes the answer
            found = "error", None, b"", error_text(error)
        box.append(result(*found, started=started, pack=pack))

    _wait_for(in_thread(keep), timeout_s)
    if not box:
        box.append(result("timeout", None, b"", late, started=started, pack=pack))
    if name:
        SECTIONS[name] = box[0]
    return box[0]


def result(state, rc, out, err, truncated=False, *, started, pack=as_text):
    err = err if isinstance(err, bytes) else err.encode("utf-8", "backslashreplace")
    found = {"state": state, "rc": rc, "out": pack(out), "err": pack(err)}
    found["seconds"] = round(time.monotonic() - started, 4)
    if truncated:
        found["truncated"] = True
    return found


def in_thread(work, *args):
    """Run a function in a daemon thread; its exception goes to stderr."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def together(tasks):
    """Run functions in threads and wait for all; `section` and `call` keep their deadlines."""
    # Python 3.13.0 gives a half-imported module to one of two threads that import it at once.
    import subprocess  # noqa: F401

    for thread in [in_thread(task) for task in tasks]:
        _wait_for(thread, float("inf"))


def at_once(function, items, width=None):
    """[function(item) for each item] by `width` threads, or by one for each; None if it fails."""
    found = [None] * len(items)  # type: list
    todo = iter(range(len(items)))  # each number goes to one thread

    def work():
        for index in todo:
            found[index] = function(items[index])

    together([work] * min(width or len(items), len(items)))
    return found


def _wait_for(thread, timeout_s):
    """Join in slices: a signal that arrives just before a wait is handled only after it."""
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(min(0.5, max(0.0, deadline - time.monotonic())))


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


def _is_there(name, env):
    """Whether a program can be found: cheaper than a fork that fails."""
    if "/" in name:
        return True  # starting it will show
    folders = env.get("PATH", os.defpath).split(":")
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders if folder)


def _run_tool(argv, timeout_s, max_bytes, grace_s, newest, env=None, cwd="/"):
    deadline = time.monotonic() + timeout_s
    env = tool_env() if env is None else env
    if not _is_there(argv[0], env):
        return "missing", None, b"", "not found: %s" % argv[0]
    try:
        child = start_tool(argv, env, cwd)
    except FileNotFoundError as error:
        return "missing", None, b"", "not found: %s" % error.filename
    except (OSError, ValueError) as error:
        return "error", None, b"", "%s: %s" % (argv[0], error)
    try:
        out, err, truncated, in_time = _collect(child, deadline, max_bytes, newest)
        if in_time:
            return "ended", child.returncode, bytes(out), bytes(err), truncated
        how = "killed" if kill_group(child, grace_s) else "and SIGKILL does not end it"
        why = b"no end in %g s, %s" % (timeout_s, how.encode())
        return "timeout", None, bytes(out), b"\n".join(filter(None, [err.strip(), why])), truncated
    finally:
        forget_tool(child)
        child.stdout.close()
        child.stderr.close()


def _collect(child, deadline, max_bytes, newest):
    """Read both pipes until the child has ended: (stdout, stderr, truncated, in time)."""
    out, err, truncated, ended_at = bytearray(), bytearray(), False, None
    pipes = {child.stdout.fileno(): (out, max_bytes), child.stderr.fileno(): (err, max_bytes // 4)}
    poller = select.poll()
    for descriptor in pipes:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    while pipes:
        now = time.monotonic()
        if now >= deadline:
            return out, err, truncated, False
        if child.poll() is not None:
            ended_at = ended_at or now
            if now - ended_at > DRAIN_S:
                break
        for descriptor, _ in poller.poll(1000 * min(0.1, max(0.001, deadline - now))):
            data = os.read(descriptor, 65536)
            kept, limit = pipes[descriptor]
            kept += data
            if len(kept) > limit:
                truncated = True
                del kept[slice(-limit) if newest and kept is out else slice(limit, None)]
            if not data:
                poller.unregister(descriptor)
                del pipes[descriptor]
    return out, err, truncated, _ends(child, max(0.0, deadline - time.monotonic()))


def _ends(child, timeout_s):
    import subprocess

    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_group(child, grace_s=0.0):
    """End a tool's process group; False when even SIGKILL does not end it."""
    has_ended = False
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, REAP_S)):
        if patience_s:
            or_none(os.killpg, child.pid, number)  # gone, or another user's (sudo): the wait shows
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
        kill_group(child, grace_s)
