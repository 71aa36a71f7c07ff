"""How good a model is: `python -m trainer.evaluate RUN`; also of its videos."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.command_line import TRAINING, command, require

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)


@command
def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["digits"]:
        from trainer.evaluate import digits

        return digits.main(words[1:])
    if words[:1] == ["videos"]:
        from trainer.evaluate import videos

        return videos.main(words[1:])
    from trainer.evaluate import loss

    return loss.main(words)


if __name__ == "__main__":
    sys.exit(main())
