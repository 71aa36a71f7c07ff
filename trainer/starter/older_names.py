"""Variables of torch's flight recorder whose names have changed: a rank gets those of its torch."""

from __future__ import annotations

import re
import sys
from collections.abc import MutableMapping
from importlib import metadata

OLDER_OF = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
KNOWS_NEWER = (2, 10)  # and warns of each older name that is set


def hide(variables: MutableMapping[str, str], version: str | None = None) -> None:
    """Leave out the older name where a torch of this version reads the newer one."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", torch_version() if version is None else version)
    if found is None or (int(found[1]), int(found[2])) < KNOWS_NEWER:
        return
    for newer, older in OLDER_OF.items():
        if newer in variables:
            variables.pop(older, None)


def torch_version() -> str:
    """That of the torch which is imported, or would be; "" without one."""
    imported = getattr(sys.modules.get("torch"), "__version__", None)
    if imported is not None:
        return str(imported)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
