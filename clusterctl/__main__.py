"""The entry point. Imports nothing of ours before Ctrl-C is handled."""

from __future__ import annotations

import sys


def main() -> None:
    """As `cli.main`; Ctrl-C during imports, which take a second, prints no traceback either."""
    try:
        import signal

        try:
            from clusterctl import cli

            cli.main()
        finally:
            # The interpreter's end cannot be interrupted in order.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
