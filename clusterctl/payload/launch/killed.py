"""Tells the agents of a run that somebody ends its ranks: it is not to be started again."""

import glob
import os
import signal

from clusterctl.payload.files.private import places_of
from clusterctl.payload.jobs.processes import tags
from clusterctl.payload.launch.session import living
from clusterctl.payload.proc_files import or_none, owner_of

KILLED = signal.SIGUSR1


def tell_agents(pids):
    """Those of the runs that these processes belong to, also of another user, for sudo."""
    runs = {(tags(pid)[0], owner_of(pid)) for pid in pids}
    for run, uid in runs:
        if run is None or uid is None:
            continue
        for folder in folders_of(uid):
            for path in glob.glob("%s/agent-%s-*.sock" % (folder, glob.escape(run[-24:]))):
                agent = living(path)
                if agent is not None and owner_of(agent) == uid:
                    or_none(os.kill, agent, KILLED)


def folders_of(uid):
    """Those that are there of a user's own folder."""
    paths = [os.path.join(*place) for place in places_of(uid)]
    return [path for path in paths if or_none(lambda path=path: os.lstat(path).st_uid) == uid]
