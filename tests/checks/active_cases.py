"""Good and bad cases of the checks about nodes that were made to work."""

from __future__ import annotations

import dataclasses
from typing import Any

from checks.facts import (
    Active,
    BadLink,
    Collectives,
    DeviceCopies,
    DeviceProducts,
    DeviceSpeed,
    Difference,
    Fleet,
    PortSeen,
    RepeatedProduct,
    SharedSeen,
    Unknown,
    WrongCopy,
)
from checks.finding import Verdict
from tests.checks import healthy as h

H100 = "NVIDIA H100 80GB HBM3"
WARN, FAIL, UNKNOWN = Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN
LOST = Unknown("could not be asked: no answer in 20 s")


def speeds(tflops: float = 720.0, model: str = H100, **fields: Any) -> tuple[DeviceSpeed, ...]:
    plain = [DeviceSpeed(f"cuda:{at}", model, 720.0) for at in range(8)]
    return (*plain[:7], DeviceSpeed("cuda:7", model, tflops, **fields))


def products(last: Any = "5eed") -> tuple[DeviceProducts, ...]:
    """Of eight GPUs; `last` is the sum of the last one's bf16 products, or all of its products."""
    kinds = [RepeatedProduct(kind, 400, 0, "5eed") for kind in ("bf16", "fp32", "tf32")]
    devices = [DeviceProducts(f"cuda:{at}", H100, tuple(kinds)) for at in range(8)]
    if isinstance(last, str):
        last = (dataclasses.replace(kinds[0], sum=last), *kinds[1:])
    return (*devices[:7], dataclasses.replace(devices[7], products=last))


def copies(*wrong: WrongCopy, **fields: Any) -> tuple[DeviceCopies, ...]:
    good = [DeviceCopies(f"cuda:{at}", 10, (), "5eed", H100) for at in range(7)]
    plain: dict[str, Any] = {"steps": 10, "sum": "5eed", "kin": H100}
    return (*good, DeviceCopies("cuda:7", wrong=wrong, **{**plain, **fields}))


GOOD = Active(
    device="cuda",
    speeds={name: speeds() for name in h.NAMES},
    collectives=Collectives(tuple(h.NAMES), rounds=3, pair_bytes_s=4.2e10),
    meeting_ports={name: PortSeen(29500, reached_by=("n1",)) for name in h.NAMES},
    shared={name: SharedSeen(0.1, 2e9) for name in h.NAMES},
    writer="n1",
    products={name: products() for name in h.NAMES},
    copies={name: copies() for name in h.NAMES},
)


def fleet(active: Active = GOOD) -> Fleet:
    return dataclasses.replace(h.fleet(), active=active)


def with_collectives(**fields: Any) -> Fleet:
    return fleet(dataclasses.replace(GOOD, collectives=Collectives(tuple(h.NAMES), **fields)))


def at(field: str, value: Any) -> Fleet:
    """The good fleet with another value of node n3."""
    return fleet(dataclasses.replace(GOOD, **{field: {**getattr(GOOD, field), "n3": value}}))


CASES: dict[str, list[tuple[str, Verdict, Fleet]]] = {
    "active.matmul": [
        ("15 % slower", FAIL, at("speeds", speeds(612.0))),
        ("7 % slower", WARN, at("speeds", speeds(670.0))),
        ("under the floor", FAIL, at("speeds", speeds(300.0))),
        ("not finite", FAIL, at("speeds", speeds(720.0, finite=False))),
        ("no torch", UNKNOWN, at("speeds", Unknown("torch is not installed for /venv/bin/python there"))),
    ],
    "active.compute": [
        ("another result", FAIL, at("products", products("bad"))),
        ("now and then", FAIL, at("products", products((RepeatedProduct("bf16", 400, 2, "5eed", Difference(3, 4, 77)),)))),
        ("one not tested", UNKNOWN, at("products", products(Unknown("CUDA error: an illegal memory access")))),
        ("no torch", UNKNOWN, at("products", Unknown("torch is not installed for /venv/bin/python there"))),
    ],
    "active.copy": [
        ("flipped", FAIL, at("copies", copies(WrongCopy("host to device, pinned", Difference(1, 1, 5))))),
        ("between GPUs", FAIL, at("copies", (*copies(), DeviceCopies("between", 56, (WrongCopy("cuda:0 to cuda:3", Difference(70_000)),))))),
        ("checksum", FAIL, at("copies", copies(WrongCopy("within the device", Difference(0))))),
        ("another pattern", FAIL, at("copies", copies(sum="bad"))),
        ("one not tested", UNKNOWN, at("copies", copies(steps=Unknown("CUDA out of memory")))),
        ("lost", UNKNOWN, at("copies", LOST)),
    ],
    "active.allreduce": [
        ("bad node", FAIL, with_collectives(bad_nodes={"n3": "bad with n1"})),
        ("nobody can tell", UNKNOWN, with_collectives(unclear=((("n3",), "no pair works"),))),
        ("lost", UNKNOWN, with_collectives(unknown={"n3": "lost in the all-reduce"})),
    ],
    "active.port": [
        ("closed to all", FAIL, at("meeting_ports", PortSeen(29500, failed={"n4": "no answer in 3 s", "n1": "no answer in 3 s"}))),
        ("held", FAIL, at("meeting_ports", PortSeen(None, "Address already in use by pid 7: python"))),
        ("lost", UNKNOWN, at("meeting_ports", LOST)),
        ("nobody tried", UNKNOWN, at("meeting_ports", PortSeen(29500))),
    ],
    "active.token": [
        ("not seen", FAIL, at("shared", SharedSeen(Unknown("not seen within 10 s"), Unknown("not seen")))),
        ("hangs", FAIL, at("shared", SharedSeen(Unknown("no answer in 15 s"), Unknown("-"), hung=True))),
        ("slow", WARN, at("shared", SharedSeen(4.0, 2e9))),
        ("lost", UNKNOWN, at("shared", SharedSeen(LOST, LOST))),
    ],
    "active.read": [
        ("a tenth", WARN, at("shared", SharedSeen(0.1, 2e8))),
        ("other bytes", FAIL, at("shared", SharedSeen(0.1, Unknown("what is read is not what was written (5 bytes)")))),
        ("hangs", UNKNOWN, at("shared", SharedSeen(0.1, Unknown("no answer in 60 s"), hung=True))),
    ],
}  # fmt: skip


LINK = with_collectives(bad_links=(BadLink("n2", "n3", "0.1 GB/s, the middle pair has 42.0 GB/s"),))
"""A finding about two nodes at once."""
