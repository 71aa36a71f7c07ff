"""Import paramiko without invoke. To be imported before anything else imports paramiko.

paramiko needs invoke only for `Match exec` of its own ssh_config reader, which is not used here;
importing it takes longer than paramiko itself (95 of 145 ms). fabric imports it where it is wanted.
"""

import logging
import sys

_HIDE = "invoke" not in sys.modules
if _HIDE:
    sys.modules["invoke"] = None  # type: ignore[assignment]
try:
    import paramiko  # noqa: F401 - the import is the purpose
finally:
    if _HIDE:
        del sys.modules["invoke"]

# Errors reach callers as exceptions: paramiko's own log would print them once more.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
