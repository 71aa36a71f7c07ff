"""Which figures count as worse, and by which kind a kernel is counted."""

from __future__ import annotations

from tests.gpu.null.figures import Figures, worse
from tests.gpu.null.kinds import by_kind, kind_of

BEFORE: Figures = {"a": {"launches": 1000, "waits": 2, "peak_bytes": 10**9, "kernels": {"x": 1}}}


def changed(**values: int) -> Figures:
    return {"a": {**BEFORE["a"], **values}}


def test_a_figure_may_grow_by_two_percent() -> None:
    assert worse(BEFORE, changed(launches=1020, peak_bytes=1_019_000_000)) == []
    assert worse(BEFORE, changed(launches=1021)) == ["a: launches 1,021 instead of 1,000"]
    assert worse(BEFORE, changed(waits=3)) == ["a: waits 3 instead of 2"]


def test_fewer_are_no_fault() -> None:
    assert worse(BEFORE, changed(launches=10, waits=0, peak_bytes=1)) == []


def test_what_was_not_there_is_worse() -> None:
    assert worse({"a": {"programs": 0}}, {"a": {"programs": 1}}) == ["a: programs 1 instead of 0"]
    assert worse({}, BEFORE) == ["a: not in figures.json"]


def test_kernels_are_told_apart_by_their_names() -> None:
    names = {
        "cublasLtMatmul": "products",
        "cublasSgemmStridedBatched of one row": "products of one row or column",
        "_ZN13pytorch_flash16flash_fwd_kernelI23Flash": "flash forward",
        "triton_poi_fused_add_0": "compiled",
        "_norm_modulate": "_norm_modulate",
        "_ZN2at6native29vectorized_elementwise_kernelILi8E": "elementwise",
        "_ZN2at6native13reduce_kernelILi512E": "sums",
        "_ZN50_GLOBAL__N__2fa45684_17_RangeFactories": "others",
    }
    assert {name: kind_of(name) for name in names} == names
    assert by_kind({"cublasLtMatmul": 2, "cublasGemmEx": 3, "_add_up": 1}) == {
        "products": 5,
        "_add_up": 1,
    }
