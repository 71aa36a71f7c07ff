"""The process that reads files: one question a line on stdin, one answer a line on stdout.

It has PyAV and no torch, and one clip at a time; the caller has the deadline (file_probe.py).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from trainer.data.video import helper_process


def serve(parent: int) -> None:
    """Answer until stdin ends. A question is {"what": "probe" | "check", "path": …}."""
    helper_process.begin(parent, "examine")
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a codec prints must not stand between the answers
    try:
        from trainer.data.video import clip as video
    except ImportError as error:
        _write(answers, {"failed": str(error)})
        return
    _write(answers, {"ready": True})
    verbs = {"probe": _probe, "check": _check}
    for line in sys.stdin.buffer:
        question = json.loads(line)
        began = time.process_time()
        try:
            answer = verbs[question["what"]](question["path"])
        except video.ClipError as error:
            answer = {"error": str(error) or "cannot be read"}
        except Exception as error:  # noqa: BLE001 - process boundary: becomes this clip's answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = round(time.process_time() - began, 4)
        _write(answers, answer)


def _probe(path: str) -> dict[str, Any]:
    """Facts from container and packet index; the first frame is decoded for the rotation."""
    from trainer.data.video import clip as video

    size = video.check_regular(path).st_size
    facts = video.probe(path)
    names = ("num_frames", "height", "width", "fps")
    return {**{name: getattr(facts, name) for name in names}, "bytes": size}


def _check(path: str) -> dict[str, Any]:
    """Decode every frame; the number of them and their size after rotation."""
    import av

    from trainer.data.video import clip as video

    video.check_regular(path)
    try:
        with video.open_clip(path) as container:
            stream = video.video_stream(container)
            frames, size = 0, (0, 0)
            for frame in container.decode(stream):
                if frame.is_corrupt:
                    return {"error": f"frame {frames} is damaged"}
                if not frames:
                    size = (frame.height, frame.width)
                    size = size[::-1] if frame.rotation % 180 else size
                frames += 1
    except (av.FFmpegError, OSError) as error:
        return {"error": str(error.strerror or error or type(error).__name__).strip()}
    if not frames:
        return {"error": "no frame"}
    return {"num_frames": frames, "height": size[0], "width": size[1]}


def _write(descriptor: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
