"""Start the starter of a run on a spare, which imports what ranks need before an agent comes.

ARGS: run, job, node, run_dir, workdir, group, python, slots (as for the agent), argv, env. Answers
`error`, or null. Nobody comes or asks again: the starter ends by itself (trainer/starter/serve.py,
STANDBY_S).
"""

import os

from clusterctl.payload.files.ownership import refuse_made_by_others, refuse_open_folder
from clusterctl.payload.launch.logout import leave_session
from clusterctl.payload.launch.run_folder import make_run_dir, run_file
from clusterctl.payload.launch.session import living, pid_file, socket_path
from clusterctl.payload.launch.starter import end_standby, log_name, start_standby, variables
from clusterctl.payload.prelude import ARGS, finish


def main():
    path = socket_path(ARGS["run"], ARGS["node"], "starter")
    try:
        if living(path) is not None:
            os.utime(pid_file(path))  # it stands by from now on
        else:
            end_standby(path)  # files of one that was killed
            refuse_made_by_others(ARGS["python"], ARGS["workdir"])
            refuse_open_folder(ARGS["workdir"])
            make_run_dir()
            leave_session()
            env = dict(ARGS["env"])
            if env.get("GLOO_SOCKET_IFNAME") == "auto":
                del env["GLOO_SOCKET_IFNAME"]  # decided when ranks are started
            log = run_file("ranks", log_name(ARGS["node"]))
            given = ARGS["argv"], variables(env), log
            with start_standby(path, *given, ends_with_agent=False):
                pass
    except OSError as error:
        finish({"error": str(error)})
        return
    finish({"error": None})
