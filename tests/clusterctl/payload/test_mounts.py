"""Which lines of /proc/self/mountinfo are measured, and how each is named."""

from __future__ import annotations

import pytest

from clusterctl.payload.collect import mounts

LINES = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
101 22 0:50 / /lustre/scratch rw,noatime shared:50 - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch rw
103 22 0:52 / /mnt/weka rw,relatime shared:52 - wekafs wekacluster/default rw,writecache
106 22 0:55 / /mnt/jfs rw,nosuid,nodev,relatime shared:55 - fuse.juicefs JuiceFS:myjfs rw
109 22 0:58 / /panfs rw,relatime shared:58 - panfs panfs://10.2.0.1/ rw
110 22 0:59 / /orange rw,relatime shared:59 - pvfs2 tcp://host:3334/orangefs rw
111 22 0:60 / /tank/data rw,relatime shared:60 - zfs tank/data rw,xattr,posixacl
113 22 8:17 / /mnt/usb rw,relatime shared:62 - fuseblk /dev/sdb1 rw
114 22 8:17 / /mnt/usb/again rw,relatime shared:62 - fuseblk /dev/sdb1 rw
117 22 0:65 / /proc/fs/nfsd rw - nfsd nfsd rw
118 22 0:66 / /run/rpc_pipefs rw - rpc_pipefs sunrpc rw
120 22 0:68 / /afs rw - afs none rw
121 22 0:69 / /mnt/smb rw - smb3 //srv/share rw
122 22 0:70 / /mnt/lustre\\040x rw - lustre 10.0.0.1@o2ib:/y rw
"""


def test_file_systems_of_every_kind_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "read_text", lambda path: LINES)
    found = {one["path"]: one["kind"] for one in mounts.list_mounts()}
    assert found == {
        "/": "ext4",
        "/afs": "afs",
        "/lustre/scratch": "lustre",
        "/mnt/jfs": "fuse.juicefs",
        "/mnt/lustre x": "lustre",
        "/mnt/smb": "smb3",
        "/mnt/usb": "fuseblk",  # a disk: once
        "/mnt/weka": "wekafs",
        "/orange": "pvfs2",
        "/panfs": "panfs",
        "/tank/data": "zfs",
    }
