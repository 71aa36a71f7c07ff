"""Upload what runs have recorded offline for W&B: `python -m trainer.sync RUN ...`."""

from __future__ import annotations

import sys

from trainer.sync.upload import main

if __name__ == "__main__":
    sys.exit(main())
