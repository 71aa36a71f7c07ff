from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.samples import Gpu
from dashboards.watch_line import parse, parse_csv

ROW = "0, NVIDIA H100 80GB HBM3, 698.30, 700.00, 100, 71204, 81559, 64, 1980"


def test_figures_of_nvml_get_our_units() -> None:
    line = {
        "cpu": 0.21, "cpus": 208, "load1": 40.3, "network_bytes_s": 21_000_000_000,
        "memory": {"used": 6e11, "total": 2e12},
        "gpus": [{"index": 0, "name": "H100", "power_mw": 698300, "limit_mw": 700000, "util": 97,
                  "used": 71e9, "total": 80e9, "temperature_c": 64, "sm_mhz": 1980}],
    }  # fmt: skip
    sample = parse("n1", line, 5.0)
    assert sample.gpus == (Gpu(0, "H100", 698.3, 700.0, 0.97, 71e9, 80e9, 64.0, 1980.0),)
    assert (sample.cpu, sample.cpus, sample.memory) == (0.21, 208, 0.3)


def test_nvidia_smis_text_gives_the_same() -> None:
    sample = parse("n1", {"gpu_csv": ROW + "\n"}, 5.0)
    assert sample.gpus == (
        Gpu(0, "NVIDIA H100 80GB HBM3", 698.3, 700.0, 1.0, 71204 * 2.0**20, 81559 * 2.0**20, 64.0, 1980.0),
    )  # fmt: skip


def test_node_without_gpus_has_none_and_that_is_known() -> None:
    assert parse("n1", {"gpus": []}, 5.0).gpus == ()


def test_gpus_that_could_not_be_read_are_unknown_with_the_reason() -> None:
    sample = parse("n1", {"gpus": None, "gpu_error": "NVML: no answer for 9 s"}, 5.0)
    assert (sample.gpus, sample.gpu_error) == (None, "NVML: no answer for 9 s")
    assert parse("n1", {}, 5.0).gpus is None


def test_unreadable_column_is_unknown_and_the_others_stay() -> None:
    gpus = parse_csv(ROW.replace("698.30", "[N/A]"))
    assert gpus is not None
    assert (gpus[0].power_w, gpus[0].util, gpus[0].error) == (None, 1.0, "")


def test_lost_card_is_an_error_and_not_a_zero() -> None:
    lost = "3, NVIDIA H100 80GB HBM3" + ", [GPU is lost]" * 7
    gpus = parse_csv(f"{ROW}\n{lost}")
    assert gpus is not None
    assert [gpu.error for gpu in gpus] == ["", "GPU is lost"]
    assert gpus[1].power_w is None


@pytest.mark.parametrize("text", ["", "No devices were found", ROW[:30], "a, b, c\n", "\0\0"])
def test_text_that_is_no_table_is_unknown(text: str) -> None:
    assert parse_csv(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYS = ("cpu", "cpus", "load1", "memory", "network_bytes_s", "gpus", "gpu_csv", "gpu_error")


@settings(max_examples=60)
@given(line=st.dictionaries(st.sampled_from(KEYS), json_values))
def test_odd_lines_never_raise(line: dict[str, Any]) -> None:
    sample = parse("n1", line, 5.0)
    assert sample.node == "n1"
