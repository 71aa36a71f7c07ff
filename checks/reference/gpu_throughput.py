"""What GPU models reach in bf16 matrix products, as measured by others.

Source: stas00/ml-engineering, compute/accelerator, table "Maximum Achievable Matmul FLOPS" (BF16
without sparsity, mean of 100 products of the best shape found; the table says that H200 is as H100
SXM). Not the vendors' figures, which are never reached. A model that is not here has no floor: only
the distance from the other devices counts.
"""

from __future__ import annotations

# Longest name first where one contains another; a name fits when the driver's has all its words.
REACHED_TFLOPS: tuple[tuple[str, float], ...] = (
    ("GB200", 1822.0),
    ("GH200", 828.6),
    ("B300", 1769.0),
    ("B200", 1745.0),
    ("H200", 794.5),
    ("H100 SXM", 794.5),
    ("H100 80GB HBM3", 794.5),  # what the driver calls the SXM card
    ("A100 PCIE", 252.9),
    ("A100 SXM", 271.2),
    ("A100-PCIE", 252.9),
    ("A100-SXM", 271.2),
    ("MI355X", 1565.0),
    ("MI325X", 784.9),
    ("MI300X", 668.4),
)
OTHER_CARDS = ("NVL", "PCIE", "MIG")  # of the same chip with less power: no figure


def reached_tflops(model: str) -> float | None:
    """TFLOP/s that a device of this name can reach; None for other models."""
    words = model.upper()
    for name, tflops in REACHED_TFLOPS:
        if all(word in words for word in name.split()):
            others = [card for card in OTHER_CARDS if card not in name]
            return None if any(card in words for card in others) else tflops
    return None
