"""Peak FLOP/s of GPUs by their data sheets: dense matrix products, no sparsity."""

from __future__ import annotations

import re

# TFLOP/s by dtype and a pattern over the device's name; the first that fits counts. bf16 with fp32
# accumulation; fp32 is what the plain fp32 units do (TF32 is off in this trainer).
_PEAKS: tuple[tuple[str, float, float], ...] = (
    (r"GB200", 2500.0, 80.0),
    (r"B200", 2250.0, 75.0),
    (r"GH200|H200", 989.4, 66.9),
    (r"H100.*(PCIe|PCI-E)", 756.0, 51.0),
    (r"H100.*NVL", 835.0, 60.0),
    (r"H100|H800", 989.4, 66.9),
    (r"H20\b", 148.0, 44.0),
    (r"A100|A800", 312.0, 19.5),
    (r"A40\b", 149.7, 37.4),
    (r"A30\b", 165.0, 10.3),
    (r"A10G", 70.0, 31.2),
    (r"A10\b", 125.0, 31.2),
    (r"L40S", 362.0, 91.6),
    (r"L40\b", 181.0, 90.5),
    (r"L4\b", 121.0, 30.3),
    (r"RTX 6000 Ada", 364.0, 91.1),
    (r"RTX 5090", 209.5, 104.8),
    (r"RTX 4090", 165.2, 82.6),
    (r"RTX 3090", 71.0, 35.6),
    (r"MI355", 2500.0, 157.3),
    (r"MI325|MI300X", 1307.4, 163.4),
    (r"MI250X", 383.0, 47.9),
)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s for "bf16" or "fp32" by the driver's name of a device; None for an unknown one."""
    for pattern, bf16, fp32 in _PEAKS:
        if re.search(pattern, device_name, re.IGNORECASE):
            return 1e12 * (bf16 if dtype == "bf16" else fp32)
    return None
