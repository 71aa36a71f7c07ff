"""Stacks as numbers, each sent once: 136 processes are 12 kB packed, not 900 kB of JSON."""

import threading

from clusterctl.payload.dump.proc_tasks import read_file


class Table:
    """Frames [function, file, short file, line] and stacks (leaf first) of one node."""

    def __init__(self):
        self.frames = []  # type: list
        self.stacks = []  # type: list
        self._frame_ids = {}  # type: dict
        self._stack_ids = {}  # type: dict
        self._lock = threading.Lock()

    def add(self, threads):
        """Rows [thread id, name, stack, active, owns_gil] of py-spy's output for one process."""
        with self._lock:
            return [self._row(thread) for thread in threads]

    def _row(self, thread):
        stack = tuple(self._frame(frame) for frame in thread["frames"])
        if stack not in self._stack_ids:
            self._stack_ids[stack] = len(self.stacks)
            self.stacks.append(list(stack))
        tid = thread.get("os_thread_id") or thread["thread_id"]
        flags = [bool(thread.get(name)) for name in ("active", "owns_gil")]
        return [tid, thread.get("thread_name"), self._stack_ids[stack], *flags]

    def _frame(self, frame):
        short = frame.get("short_filename") or frame["filename"]
        key = (frame["name"], frame["filename"], short, frame["line"])
        if key not in self._frame_ids:
            self._frame_ids[key] = len(self.frames)
            self.frames.append(list(key))
        return self._frame_ids[key]

    def leaves(self):
        """(file, line) of the innermost frame of every stack, once each, not of torch/_ops.py."""
        found = {}
        for stack in self.stacks:
            frames = [self.frames[number] for number in stack]
            # torch/_ops.py calls whatever operator it was given.
            own = [frame for frame in frames if not frame[1].endswith("torch/_ops.py")]
            found.update({(path, line): True for _, path, _, line in own[:1]})
        return list(found)


def source_lines(places, limit=200):
    """{"file:line": text} of the current source lines; a wait for a GPU has no own frame."""
    found, texts = {}, {}
    for path, line in places[:limit]:
        if not path.startswith("/") or not path.endswith(".py"):
            continue
        try:
            if path not in texts:
                texts[path] = read_file(path, 2 << 20).decode("utf-8", "replace").splitlines()
            found["%s:%d" % (path, line)] = texts[path][line - 1].strip()[:160]
        except (OSError, IndexError):
            continue
    return found
