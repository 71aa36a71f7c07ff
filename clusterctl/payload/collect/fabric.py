"""Census: the InfiniBand devices of a node and how their counters grow."""

import os
import time

from clusterctl.payload.proc_files import names_in, read_word
from clusterctl.payload.tools import call

IB = "/sys/class/infiniband"
IB_TOP = ("fw_ver", "board_id", "hca_type", "node_guid", "device/numa_node")
IB_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
GID = ("types", "ndevs")
VPD_BYTES = 1024  # each byte is asked of the card; what is searched stands at the begin
GIDS = 16  # entries of a GID table that are read; drivers keep 128 or 256, nearly all empty


def collect_fabric(growth_s):
    started = time.monotonic()
    if call("ib", read_infiniband, 5.0)["state"] == "ended":
        time.sleep(growth_s)
        call("ib_again", lambda: read_counters(started), 5.0)


def read_infiniband():
    """All that matters of /sys/class/infiniband as `path TAB value` lines."""
    lines = []
    modules = read_word("/proc/modules")
    if modules is not None:
        lines.append("#peermem\t" + ("yes" if "nvidia_peermem" in modules else "no"))
    devices = sorted(os.listdir(IB))
    lines.append("#devices\t%d" % len(devices))
    for device in devices:
        top = "%s/%s" % (IB, device)
        lines += values(top, IB_TOP)
        if is_bridge(top):
            lines.append("%s/role\tSW_MNG" % top)
        lines += ["%s/netdev\t%s" % (top, name) for name in names_in(top + "/device/net")[:1]]
        for port in names_in(top + "/ports"):
            here = "ports/%s/" % port
            lines += values(top, [here + name for name in IB_PORT])
            lines += counters(top, here)
            for number in range(GIDS):
                gid = values(top, ["%sgids/%d" % (here, number)])
                if gid and gid[0].split("\t")[1].strip("0:"):
                    attributes = [here + "gid_attrs/%s/%d" % (name, number) for name in GID]
                    lines += gid + values(top, attributes)
    return "\n".join(lines)


def is_bridge(top):
    """Whether a card manages NVSwitches (HGX B200 and B300): its vital product data say so.

    Only root may read them; another user sees a card like the others.
    """
    try:
        with open(top + "/device/vpd", "rb") as file:
            return b"SW_MNG" in file.read(VPD_BYTES)
    except OSError:
        return False


def values(top, names):
    """Lines of the files that can be read: not every driver has every file."""
    found = [(name, read_word(top + "/" + name, limit=400)) for name in names]
    return ["%s/%s\t%s" % (top, name, value) for name, value in found if value is not None]


def counters(top, here):
    folders = (here + "counters/", here + "hw_counters/")
    names = [folder + name for folder in folders for name in names_in(top + "/" + folder)]
    return values(top, names)


def read_counters(started):
    lines = ["#seconds\t%.3f" % (time.monotonic() - started)]
    for device in sorted(os.listdir(IB)):
        for port in names_in("%s/%s/ports" % (IB, device)):  # none where it has gone meanwhile
            lines += counters("%s/%s" % (IB, device), "ports/%s/" % port)
    return "\n".join(lines)
