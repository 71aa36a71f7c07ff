"""How torch's allocator holds an accelerator's memory; set before torch is imported."""

from __future__ import annotations

from collections.abc import MutableMapping

_NAME, _OLDER_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def use_expandable_segments(environ: MutableMapping[str, str]) -> None:
    """Let segments grow, unless the user has set up the allocator.

    Hundreds of shapes of batches split blocks of fixed size until none is large enough.
    `clusterctl launch` sets the same; this is for ranks that torchrun or a shell starts.
    """
    if _OLDER_NAME not in environ:  # torch would read the newer name and not the user's
        environ.setdefault(_NAME, "expandable_segments:True")
