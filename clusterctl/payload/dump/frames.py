"""Stacks as numbers, each sent once: 136 processes are 12 kB packed, not 900 kB of JSON."""

import threading

from clusterctl.payload.dump.proc_tasks import read_file

FLAGS = ("active", "owns_gil")
MOST_LINES = 200  # of sources that are read


class Table:
    """Frames [function, file, short file, line] and stacks (leaf first) of one node."""

    def __init__(self):
        self._frames, self._stacks = {}, {}  # type: dict, dict  # numbers of frames and of stacks
        self._lock = threading.Lock()

    @property
    def frames(self):
        return [list(frame) for frame in self._frames]

    @property
    def stacks(self):
        return [list(stack) for stack in self._stacks]

    def add(self, threads):
        """Rows [thread id, name, stack, active, owns_gil] of py-spy's output for one process."""
        with self._lock:
            return [self._row(thread) for thread in threads]

    def _row(self, thread):
        stack = tuple(self._frame(frame) for frame in thread["frames"])
        number = self._stacks.setdefault(stack, len(self._stacks))
        tid = thread.get("os_thread_id") or thread["thread_id"]
        return [tid, thread.get("thread_name"), number, *(bool(thread.get(f)) for f in FLAGS)]

    def _frame(self, frame):
        short = frame.get("short_filename") or frame["filename"]
        key = (frame["name"], frame["filename"], short, frame["line"])
        return self._frames.setdefault(key, len(self._frames))

    def leaves(self):
        """(file, line) of the innermost frame of every stack, once each, not of torch/_ops.py."""
        found, frames = {}, self.frames
        for stack in self._stacks:
            # torch/_ops.py calls whatever operator it was given.
            own = [number for number in stack if not frames[number][1].endswith("torch/_ops.py")]
            found.update({(frames[number][1], frames[number][3]): True for number in own[:1]})
        return list(found)


def source_lines(places):
    """{"file:line": text} of the current source lines; a wait for a GPU has no own frame."""
    found, texts = {}, {}
    for path, line in places[:MOST_LINES]:
        if not path.startswith("/") or not path.endswith(".py"):
            continue
        try:
            if path not in texts:
                texts[path] = read_file(path, 2 << 20).decode("utf-8", "replace").splitlines()
            found["%s:%d" % (path, line)] = texts[path][line - 1].strip()[:160]
        except (OSError, IndexError):
            continue
    return found
