"""Nodes that do not share the folders of the runs: weights go there, videos come back."""

from __future__ import annotations

import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.serve.remote_run import ENCODER, WEIGHTS
from clusterctl.serve.source import CONFIG, MANIFEST
from clusterctl.transfer import resume
from clusterctl.transport.base import Connection
from trainer.runlog.atomic_file import part_of, sha256_of
from trainer.runlog.run_files import opened_below, read_object
from trainer.runlog.samples import INDEX, SHEET

MOST_BYTES = 1 << 30  # of a video; half a minute of 4K has 200 MB
KEPT = 2  # checkpoints of a run on a node


class Carrier:
    """For one connection to a node. `before` and `after` may run at the same time."""

    def __init__(
        self,
        node: Node,
        connection: Connection,
        hello: dict[str, Any],
        folders: list[Path],
        word: str,
    ) -> None:
        """`folders` are those of the runs, in the order of the tokens; `word` is this server's own:
        another one may send the same file there."""
        self._word = word
        self._node, self._connection = node, connection
        shared = zip(folders, hello["shared"], strict=True)
        self._shared = {str(folder): is_shared for folder, is_shared in shared}
        self._cache = hello["cache"]
        self._orders: dict[int, dict[str, Any]] = {}  # as they came from the server
        self._there: dict[str, list[str]] = {}  # checkpoints of a run, the last used at the end
        self._lock = threading.Lock()  # of the one sftp session
        self._sftp: Any = None

    def before(self, order: dict[str, Any]) -> dict[str, Any]:
        """The order as this node can do it. Raises `TransportError` and OSError."""
        request = order.get("request")
        if request is None or self._shared.get(request["run_dir"], False):
            return order
        self._orders[order["id"]] = order
        with self._lock:
            sftp = self._session()
            run, name = Path(request["run_dir"]), request.get("checkpoint", "")
            there = self._home(run)
            self._put_run(sftp, run, there)
            changed = {**request, "run_dir": there}
            if name:
                self._put_checkpoint(sftp, run, there, name)
                changed["save_dir"] = self._place(request)
                # What is finished here is not made again there, and the sheet shows all of it.
                self._put_videos(sftp, order, run, changed["save_dir"])
        return {**order, "request": changed}

    def after(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Fetch what an answer says was made. Raises `TransportError` and OSError."""
        order = self._orders.get(answer.get("id", -1))
        if order is None or "begun" in answer:
            return answer
        del self._orders[answer["id"]]
        request = order["request"]
        here = Path(request.get("save_dir", ""))  # not of an order to warm up
        names = [SHEET, INDEX] if answer.get("sheet") else []
        if "made" in answer:  # also what an earlier server had made there and did not fetch
            is_loss = "stamp" in request  # a file of this name may be another checkpoint's
            names = [one for one in order["files"] if is_loss or not (here / one).is_file()]
        if names:
            there = self._place(request)
            with self._lock:
                for name in names:
                    self._get(f"{there}/{name}", here / name)
        if "look" in answer:
            for job in answer["look"]["jobs"]:
                job["finished"] = "stamp" not in request and (here / job["file"]).is_file()
        return answer

    def _home(self, run: Path) -> str:
        """Of a run on the node: of this one alone, since nodes may have one home."""
        check = zlib.crc32(f"{run}\0{self._node.name}".encode("utf-8", "backslashreplace"))
        return f"{self._cache}/{run.name}-{check:08x}"

    def _place(self, request: dict[str, Any]) -> str:
        there = self._home(Path(request["run_dir"]))
        return f"{there}/samples/{request['preset']}/{request['checkpoint']}"

    def _session(self) -> Any:
        if self._sftp is None:
            self._sftp = resume.sftp_over(self._connection, self._node)
        return self._sftp

    def _put_run(self, sftp: Any, run: Path, there: str) -> None:
        if there in self._there:
            return
        resume.make_folders(sftp, f"{there}/{ENCODER}")
        self._put(sftp, run, CONFIG, f"{there}/{CONFIG}")
        encoder = run / ENCODER
        for path in sorted(encoder.iterdir()) if encoder.is_dir() else ():
            self._put(sftp, run, f"{ENCODER}/{path.name}", f"{there}/{ENCODER}/{path.name}")
        self._there[there] = []

    def _put_checkpoint(self, sftp: Any, run: Path, there: str, name: str) -> None:
        known = self._there[there]
        if name in known:
            known.append(known.pop(known.index(name)))
            return
        remote = f"{there}/{name}"
        try:
            files = read_object(run, f"{name}/{MANIFEST}")["files"]
        except (OSError, ValueError, KeyError) as error:
            why = f"{run / name / MANIFEST} cannot be read: {error}"
            raise TransportError("command", why) from error
        for file, entry in files.items():
            if file.startswith(WEIGHTS):
                with opened_below(run, f"{name}/{file}"):  # nothing from elsewhere goes there
                    resume.make_folders(sftp, f"{remote}/{file}".rpartition("/")[0])
                    if resume.size_on(sftp, f"{remote}/{file}") != entry["size"]:
                        local = run / name / file
                        mark = f"{self._word}{entry['sha256']}"
                        resume.put(sftp, local, f"{remote}/{file}", mark)
        resume.make_folders(sftp, remote)
        self._put(sftp, run, f"{name}/{MANIFEST}", f"{remote}/{MANIFEST}")
        known.append(name)
        for old in known[:-KEPT]:
            with suppress(OSError):
                resume.remove_folder(sftp, f"{there}/{old}")
            known.remove(old)

    def _put_videos(self, sftp: Any, order: dict[str, Any], run: Path, there: str) -> None:
        resume.make_folders(sftp, there)
        local = Path(order["request"]["save_dir"])
        for name in order.get("files", ()):
            path = local / name
            if path.is_file() and resume.size_on(sftp, f"{there}/{name}") != path.stat().st_size:
                self._put(sftp, run, str(path.relative_to(run)), f"{there}/{name}")

    def _put(self, sftp: Any, run: Path, name: str, remote: str) -> None:
        with opened_below(run, name):
            resume.put(sftp, run / name, remote, f"{self._word}{sha256_of(run / name)}")

    def _get(self, remote: str, local: Path) -> None:
        """Whole or not at all. Raises OSError."""
        local.parent.mkdir(parents=True, exist_ok=True)
        with part_of(local) as part, part.open("wb") as out:
            resume.get(self._session(), remote, out, MOST_BYTES)
