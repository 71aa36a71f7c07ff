"""Cards that manage NVSwitches are told by their vital product data, where those can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.facts import Unknown
from checks.parsers.infiniband import parse_fabric
from clusterctl.payload.collect import fabric
from tests.checks.sections import ended


def test_card_with_the_mark_of_nvidia_carries_no_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in (("mlx5_0", b"\x82CX7\x90V3SMDL=NIC"), ("mlx5_8", b"\x82CX7\x90SMDL=SW_MNG")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (tmp_path / name / "device").mkdir()
        (tmp_path / name / "device" / "vpd").write_bytes(data + bytes(4000))
    (tmp_path / "mlx5_9" / "ports" / "1").mkdir(parents=True)  # nothing can be read of it
    (tmp_path / "mlx5_9" / "ports" / "1" / "state").write_text("4: ACTIVE\n")
    monkeypatch.setattr(fabric, "IB", str(tmp_path))
    text = fabric.read_infiniband().replace(str(tmp_path), "/sys/class/infiniband")
    found = parse_fabric(ended(text))
    assert not isinstance(found, Unknown)
    assert found.bridges == ("mlx5_8",)
    assert [port.device for port in found.ports] == ["mlx5_0", "mlx5_9"]
