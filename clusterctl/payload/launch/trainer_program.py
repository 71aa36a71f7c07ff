"""Programs of the training environment on this node: `python -m trainer…`."""

import os
import subprocess

from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.tools import start_tool


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
