"""Text of others made safe to print: names, output and messages of nodes, processes and files."""

from __future__ import annotations

from trainer.runlog.output import printable as printable  # others import it from here
