"""What GPUs can do at most, for model FLOP utilisation: dense bf16 matrix products, by data sheet."""

from __future__ import annotations

import re

# TFLOP/s without sparsity; the first pattern that fits counts. The trainer's benchmark has the same
# table; it stands here again because nothing outside of the trainer may import it (a test compares).
_TABLE = (
    (r"GB200", 2500.0),
    (r"B200", 2250.0),
    (r"GH200|H200", 989.4),
    (r"H100.*(PCIe|PCI-E)", 756.0),
    (r"H100.*NVL", 835.0),
    (r"H100|H800", 989.4),
    (r"H20\b", 148.0),
    (r"A100|A800", 312.0),
    (r"A40\b", 149.7),
    (r"A30\b", 165.0),
    (r"A10G", 70.0),
    (r"A10\b", 125.0),
    (r"L40S", 362.0),
    (r"L40\b", 181.0),
    (r"L4\b", 121.0),
    (r"RTX 6000 Ada", 364.0),
    (r"RTX 5090", 209.5),
    (r"RTX 4090", 165.2),
    (r"RTX 3090", 71.0),
    (r"MI355", 2500.0),
    (r"MI325|MI300X", 1307.4),
    (r"MI250X", 383.0),
)


def bf16_flops(name: str) -> float | None:
    """FLOP/s of a GPU by its driver's name; None for one that is not in the table."""
    for pattern, teraflops in _TABLE:
        if re.search(pattern, name, re.IGNORECASE):
            return teraflops * 1e12
    return None
