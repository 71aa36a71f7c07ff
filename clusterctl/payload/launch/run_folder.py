"""The run directory as a node sees it."""

import os
import shutil

from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.files.private import replace_file
from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import read_word


def run_file(*names):
    return os.path.join(ARGS["run_dir"], *names)


def make_run_dir():
    """Whether the head's is visible here; where it is not, one is made. Raises OSError.

    From now on, files of this process and of ranks are for their user alone, or for the group that
    the user has named.
    """
    os.umask(0o027 if ARGS["group"] else 0o077)
    run_dir = ARGS["run_dir"]
    os.makedirs(run_dir, 0o700, exist_ok=True)
    owners = [read_word(run_file(name)) for name in (".run-id", ".run-id-here")]
    is_heads = owners[0] == ARGS["run"]
    # Of a run whose files the head cannot see the logs would be mixed with this one's.
    strangers = [run for run in owners if run not in (None, "", ARGS["run"])]
    if strangers and not is_heads:
        raise OSError("%s is not the head's and holds run %s" % (run_dir, strangers[0]))
    if ARGS["group"] and not is_heads:
        try:
            shutil.chown(run_dir, group=ARGS["group"])
        except LookupError:
            raise OSError("there is no group %s on this node" % ARGS["group"]) from None
        os.chmod(run_dir, 0o2750)  # also for what is made in there
    folders = [run_file(name) for name in ("ranks", "stacks", "samples")]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    refuse_made_by_others(*folders)
    if not is_heads:
        # In one piece: other nodes of these files read it meanwhile.
        mode = 0o640 if ARGS["group"] else 0o600
        replace_file(run_file(".run-id-here"), ARGS["run"].encode(), mode)
    return is_heads
