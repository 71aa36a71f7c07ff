"""Flash attention 3 in torch's place for flash attention, packed text included: Hopper cards.

torch 2.11 and newer have a place for it; the kernels are a package of their own (flash_attn_3).
"""

from __future__ import annotations

from trainer.errors import ConfigError, one_line

NAMES = ("FA2", "FA3")


def why_not() -> str:
    """Put it in place for this process; why it cannot be had, or nothing."""
    from torch.nn import attention

    if not hasattr(attention, "activate_flash_attention_impl"):
        return "this torch has no place for it; 2.11 has"
    try:
        attention.activate_flash_attention_impl("FA3")
    except (ImportError, ValueError, RuntimeError) as error:
        return one_line(error)
    return ""


def activate() -> None:
    """Raises ConfigError."""
    if why := why_not():
        hint = "install flash_attn_3, or take an attention_table that was measured without it"
        raise ConfigError(f"the attention table wants flash attention 3: {why}", hint=hint)
