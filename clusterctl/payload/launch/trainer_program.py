"""Programs of the training environment on this node: `python -m trainer…`."""

import json
import os
import subprocess
import time

from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.prelude import emit
from clusterctl.payload.proc_files import as_text
from clusterctl.payload.tools import start_tool

BEAT_S = 2.0


def why_not(python, home):
    """Why none can be started here, or None. `home` is the checkout, where it is one."""
    if not os.access(python, os.X_OK):
        return "there is no %s here" % python
    try:
        refuse_made_by_others(python, home)
    except OSError as error:
        return str(error)
    return None


def start_program(python, home, *words, **variables):
    """Start `python -m WORDS` with a pipe for its stdin. Raises OSError and ValueError."""
    env = dict(os.environ, **variables)
    if os.path.isdir(os.path.join(home, "trainer")):  # a checkout on a shared folder
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [home, env.get("PYTHONPATH")]))
    return start_tool([python, "-m", *words], env, stdin=subprocess.PIPE)


def tell(child, *messages):
    """Write lines of JSON to a program, which may be slow to read; False once it has ended."""
    try:
        child.stdin.write("".join(json.dumps(one) + "\n" for one in messages).encode())
        child.stdin.flush()
    except (OSError, ValueError):
        return False
    return True


def read_stderr(child, said):
    """Keep the last lines of its errors in `said`; for a thread."""
    for line in child.stderr:
        said.append(as_text(line))
        del said[:-40]


def beat(message):
    """Tell the head every BEAT_S that this payload lives."""
    while True:
        time.sleep(BEAT_S)
        emit(message)


def fail(message):
    """Tell the head why this payload ends, and end it."""
    emit(message)
    os._exit(1)
