"""Import paramiko without invoke. To be imported before anything else imports paramiko.

paramiko needs invoke only for `Match exec` of its own ssh_config reader, which is not used here;
importing it costs 65 ms of 150. fabric imports it by itself where it is wanted.
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

# What goes wrong reaches callers as exceptions; the last-resort handler would print it once more.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False
