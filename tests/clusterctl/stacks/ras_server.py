"""A server of NCCL's RAS protocol that replays answers; with faults that real ones can have.

Commands and replies are those of src/ras/client_support.cc, NCCL 2.24.3 to 2.30.7. Run as a program
it prints its port and serves until it is killed: PORT FILE [behaviour].
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path


class RasServer:
    """`answers` in turn, the last one again; `behaviour` is what goes wrong."""

    def __init__(
        self, *answers: str, behaviour: str = "", address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.answers, self.behaviour = list(answers), behaviour
        self.asked = 0
        self.listener = socket.create_server(address)
        self.port: int = self.listener.getsockname()[1]
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self) -> RasServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stop.set()
        self.listener.close()

    def _accept(self) -> None:
        held = []
        while not self.stop.is_set():
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            if self.behaviour == "dead" or (self.behaviour == "dead once" and not held):
                held.append(link)  # as a stopped process: the kernel accepts, nobody reads
                continue
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                self._talk(link)
        except OSError:
            pass  # the client has gone, which some tests make it do

    def _talk(self, link: socket.socket) -> None:
        if self.behaviour == "endless line":
            while not self.stop.is_set():
                link.sendall(b"x" * 4096)
        if self.behaviour == "half a line":
            link.sendall(b"SERVER PROT")
            self.stop.wait(30)
        is_json = False
        for raw in link.makefile("rb"):
            command = raw.decode().strip().lower()
            if command.startswith("client protocol "):
                link.sendall(b"SERVER PROTOCOL 2\n")
            elif command.startswith("timeout "):
                link.sendall(b"OK\n")
            elif command.startswith("set format ") and self.behaviour != "old":
                is_json = True
                link.sendall(b"OK\n")
            elif command == "verbose status":
                self._answer(link, is_json)
                return
            else:
                link.sendall(f"ERROR: Unknown command {command}\n".encode())

    def _answer(self, link: socket.socket, is_json: bool) -> None:
        text = self.answers[min(self.asked, len(self.answers) - 1)].encode()
        self.asked += 1
        assert is_json or not text.startswith(b"{"), "JSON only for who asks for it"
        if self.behaviour == "flood":
            while not self.stop.is_set():
                link.sendall(text)
        if self.behaviour == "slow":
            for byte in text:
                link.sendall(bytes([byte]))
                if self.stop.wait(0.05):
                    return
        if self.behaviour == "cut":
            text = text[: len(text) // 2]
        link.sendall(text)


if __name__ == "__main__":
    port, file, *more = sys.argv[1:]
    server = RasServer(
        *Path(file).read_text().split("\n=====\n"),
        behaviour=more[0] if more else "",
        address=("127.0.0.1", int(port)),
    )
    print(server.port, flush=True)
    server.thread.join()
