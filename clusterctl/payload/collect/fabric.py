"""Census: the InfiniBand devices of a node and how their counters grow."""

from __future__ import annotations

import os
import time

from clusterctl.payload.prelude import call, read_text

IB = "/sys/class/infiniband"
IB_TOP = ("fw_ver", "board_id", "hca_type", "node_guid", "device/numa_node")
IB_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
GIDS = 16  # entries of a GID table that are read; drivers keep 128 or 256, nearly all empty


def look_at_fabric(growth_s):
    started = time.monotonic()
    if call("ib", read_infiniband, 5.0)["state"] == "ended":
        time.sleep(growth_s)
        call("ib_again", lambda: read_counters(started), 5.0)


def read_infiniband():
    """All that matters of /sys/class/infiniband as `path TAB value` lines."""
    lines = []
    try:
        modules = read_text("/proc/modules")
        lines.append("#peermem\t" + ("yes" if "nvidia_peermem" in modules else "no"))
    except OSError:
        pass
    devices = sorted(os.listdir(IB))
    lines.append("#devices\t%d" % len(devices))
    for device in devices:
        top = "%s/%s" % (IB, device)
        lines += values(top, IB_TOP)
        try:
            lines.append("%s/netdev\t%s" % (top, sorted(os.listdir(top + "/device/net"))[0]))
        except (OSError, IndexError):
            pass
        for port in ports_of(device):
            here = "ports/%s/" % port
            lines += values(top, [here + name for name in IB_PORT])
            lines += counters(top, here)
            for number in range(GIDS):
                gid = values(top, ["%sgids/%d" % (here, number)])
                if gid and gid[0].split("\t")[1].strip("0:"):
                    names = ("types", "ndevs")
                    more = ["%sgid_attrs/%s/%d" % (here, name, number) for name in names]
                    lines += gid + values(top, more)
    return "\n".join(lines)


def values(top, names):
    found = []
    for name in names:
        try:
            found.append("%s/%s\t%s" % (top, name, read_text(top + "/" + name, 400).strip()))
        except OSError:
            continue  # not every driver has every file
    return found


def counters(top, here):
    found = []
    for folder in ("counters", "hw_counters"):
        try:
            names = sorted(os.listdir("%s/%s%s" % (top, here, folder)))
        except OSError:
            continue
        found += values(top, ["%s%s/%s" % (here, folder, name) for name in names])
    return found


def read_counters(started):
    lines = ["#seconds\t%.3f" % (time.monotonic() - started)]
    for device in sorted(os.listdir(IB)):
        for port in ports_of(device):
            lines += counters("%s/%s" % (IB, device), "ports/%s/" % port)
    return "\n".join(lines)


def ports_of(device):
    """None where the card went away meanwhile: the head counts cards, and misses it."""
    try:
        return sorted(os.listdir("%s/%s/ports" % (IB, device)))
    except OSError:
        return []
