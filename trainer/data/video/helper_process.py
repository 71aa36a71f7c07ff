"""How a helper process begins: it ends with its parent, and signals to the group are the parent's.

Ctrl-C in a terminal, and SIGTERM from a launcher, go to every process of the group; a helper that
they killed would look like a bad clip.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

TO_THE_GROUP = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[None]:
    """Start a helper in here: until it calls `begin`, these signals wait, also while Python starts.
    The mask is this thread's, so another thread of this process still takes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_THE_GROUP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(parent: int, name: str, ignored: Sequence[signal.Signals] = TO_THE_GROUP) -> None:
    """First call of a helper: end with the parent, set a name for `ps`, ignore group signals."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: the kernel ends it with the parent
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above
    libc.prctl(15, name.encode()[:15], 0, 0, 0)  # PR_SET_NAME
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)  # also drops one that has been held
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_THE_GROUP)
