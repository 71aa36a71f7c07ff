"""What NCCL and the GPUs counted, for `--json`."""

from __future__ import annotations

from typing import Any

from clusterctl.stacks.counts.gpu_use import read_use
from clusterctl.stacks.counts.launched import Group, Member, read_launched
from clusterctl.stacks.model import JobSnapshot


def nccl_json(snapshot: JobSnapshot) -> dict[str, Any]:
    launched, gpus = read_launched(snapshot), read_use(snapshot)
    return {
        "answered": list(launched.answered),
        "silent": dict(launched.silent),
        "why_not": launched.why_not or None,
        "moved": launched.has_moved if launched.looks > 1 else None,
        "communicators": [_group_json(group) for group in launched.groups],
        "gpus": [
            {
                "rank": one.rank,
                "node": one.node,
                "use": one.use,
                "used_pct": one.load.used_pct,
                "power_w": one.load.power_w,
                "limit_w": one.load.limit_w,
                "clock_mhz": one.load.clock_mhz,
            }
            for one in gpus.ranks
        ],
        "gpus_unknown": gpus.unknown,
    }


def _group_json(group: Group) -> dict[str, Any]:
    moved = sorted(group.moved, key=lambda member: member.number)
    return {
        "name": group.name,
        "size": group.size,
        "equal": None if group.is_unclear else group.is_equal,
        "moved": [_member_json(member) for member in moved],
        "missing": [{**_member_json(member), "why": why} for member, why in group.missing],
        "ranks": [
            {**_member_json(member), "launched": dict(counts)}
            for member, counts in sorted(group.counts.items(), key=lambda one: one[0].number)
        ],
    }


def _member_json(member: Member) -> dict[str, Any]:
    return {"number": member.number, "rank": member.rank, "node": member.node, "pid": member.pid}
