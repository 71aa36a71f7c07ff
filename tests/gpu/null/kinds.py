"""Kernels by kind, from the names that the null GPU counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

# The first that matches. Kernels of our own keep their names.
_KINDS = (
    ("products of one row or column", r"[gG]em[vV]|of one row$"),
    ("products", r"^cublas|gemm|Gemm|cutlass.*gemm"),
    ("flash forward", r"flash_fwd"),
    ("flash backward", r"flash_bwd"),
    ("efficient attention", r"fmha"),
    ("collectives", r"^nccl"),
    ("compiled", r"^triton_"),
    ("lists", r"multi_tensor_apply|chunk_cat|split_with_sizes|lpnorm_cleanup"),
    ("sums", r"reduce_kernel|Reduce"),
    ("copies", r"copy|CatArray|Memcpy"),
    ("fills", r"FillFunctor|Memset"),
    ("elementwise", r"elementwise"),
)


def kind_of(name: str) -> str:
    for kind, pattern in _KINDS:
        if re.search(pattern, name):
            return kind
    return "others" if name.startswith("_Z") or name == "?" else name


def by_kind(kernels: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, count in kernels.items():
        found[kind_of(name)] += count
    return dict(found.most_common())
