"""The ssh server of one loopback node: runs commands as this user and outlives none of them."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.transport.loopback.sftp_files import HomeFiles
from clusterctl.transport.paramiko_import import BROKEN, channel_request, paramiko

# After the client has gone: end of stdin, which ends a payload (its lease); then signals.
LEASE_GRACE_S = 3.0
TERM_GRACE_S = 2.0
# The same when the whole node is stopped, inside LoopbackCluster.stop's five seconds.
STOP_GRACE_S = 1.0
PIPE_BYTES = 64 << 10

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_Channel: Any = paramiko.Channel
_Transport: Any = paramiko.Transport


def _handle_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """`signal`, which paramiko drops, and `exec`, whose end it may send before its start."""
    start = message.packet.tell()
    kind = message.get_text()
    if kind == "exec":
        wants_reply, text = message.get_boolean(), message.get_string()
        session: Any = channel.get_transport()
        command, answer = None, paramiko.common.cMSG_CHANNEL_SUCCESS
        try:
            command = Command(session.server_object.node, channel, text)
        except OSError as error:
            answer = paramiko.common.cMSG_CHANNEL_FAILURE
            print(f"cannot run {text!r}: {error}", file=sys.stderr, flush=True)
        if wants_reply:
            reply = paramiko.Message()
            reply.add_byte(answer)
            reply.add_int(channel.remote_chanid)
            session._send_user_message(reply)
        if command is not None:
            command.go()
    elif kind == "signal":
        message.get_boolean()
        number = getattr(signal, "SIG" + message.get_text(), None)
        running = getattr(channel, "clusterctl_command", None)
        if running is not None and number is not None:
            running.kill(number)
    else:
        message.packet.seek(start)
        _Channel._handle_request(channel, message)


class _Session(paramiko.Transport):
    _channel_handler_table = {  # noqa: RUF012 - paramiko's own shape
        **_Transport._channel_handler_table,
        paramiko.common.MSG_CHANNEL_REQUEST: _handle_request,
    }


class Node:
    def __init__(self, config: dict[str, Any]) -> None:
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.key = paramiko.PKey.from_path(config["host_key"])
        self.authorized = config["authorized"]
        # As from sshd, with the node's own additions.
        self.environment = {
            "HOME": os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir,
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/sh",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **config["env"],
        }
        self.lock = threading.Lock()  # over start and wait, so that a status finds its command
        self.commands: dict[int, Command] = {}
        self.sessions: set[_Session] = set()

    def accept(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms a command
        session = _Session(connection)
        session.add_server_key(self.key)
        session.set_subsystem_handler("sftp", paramiko.SFTPServer, HomeFiles)
        self.sessions = {known for known in self.sessions if known.is_active()} | {session}
        session.start_server(event=threading.Event(), server=_Login(self))

    def reap(self) -> None:
        """Collect ended commands and their orphans, which are ours as a subreaper."""
        with self.lock, suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                command = self.commands.pop(ended[0], None)
                if command is not None:
                    command.process.returncode = os.waitstatus_to_exitcode(ended[1])
                    command.exited.set()

    def stop(self) -> None:
        """End every session and every process below us; returns when none is left."""
        import psutil

        for session in self.sessions:
            session.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_GRACE_S
            while time.monotonic() < deadline:
                self.reap()
                children = psutil.Process().children(recursive=True)
                if not children:
                    return
                for child in children if number else ():
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, number)
                if number == signal.SIGTERM:
                    number = 0  # once; repeating it could cut a handler short
                time.sleep(0.02)


class _Login(paramiko.ServerInterface):
    """Who may log in, and what they may request: no environment, as sshd without AcceptEnv."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        fits = username == self.node.user and key.get_base64() == self.node.authorized
        return paramiko.common.AUTH_SUCCESSFUL if fits else paramiko.common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return paramiko.common.OPEN_SUCCEEDED
        return paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED


class Command:
    """One exec: `/bin/sh -c` in its own session, three pipes, and an end that is always sent."""

    def __init__(self, node: Node, channel: paramiko.Channel, command: bytes) -> None:
        self.channel = channel
        self.exited = threading.Event()
        with node.lock:
            self.process = subprocess.Popen(
                ["sh", "-c", os.fsdecode(command)],
                bufsize=0,
                executable="/bin/sh",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=node.environment,
                start_new_session=True,
            )
            node.commands[self.process.pid] = self
        pipe: Any = self.process.stdin
        self._stdin = pipe
        os.set_blocking(pipe.fileno(), False)
        channel.clusterctl_command = self  # type: ignore[attr-defined]
        channel.settimeout(None)

    def go(self) -> None:
        """Move data; call it after the client has the reply that the command runs."""
        out = (self.process.stdout, self.channel.sendall)
        err = (self.process.stderr, self.channel.sendall_stderr)
        work: list[tuple[Any, Any]] = [(self._pump, out), (self._pump, err)]
        work += [(self._feed, ()), (self._finish, ())]
        threads = [threading.Thread(target=one, args=args, daemon=True) for one, args in work]
        self._pumps = threads[:2]
        for thread in threads:
            thread.start()

    def _pump(self, pipe: Any, send: Any) -> None:
        """Pipe to channel; blocks while the client's window is full, and so does the command."""
        with pipe, suppress(*BROKEN):  # the client has gone; the closed pipe ends the command
            while data := pipe.read(PIPE_BYTES):
                send(data)

    def _feed(self) -> None:
        """Channel to stdin; when the client has gone, end the command."""
        try:
            while data := self.channel.recv(PIPE_BYTES):
                self._write(data)
        except BROKEN:
            pass  # the command does not read, or the connection broke: both end its stdin
        self._stdin.close()
        self.channel.status_event.wait()  # set when the channel closes, from either side
        if self.exited.wait(LEASE_GRACE_S):
            return  # what it left in the background stays, as with sshd
        graces_s = {signal.SIGHUP: 0.0, signal.SIGTERM: TERM_GRACE_S, signal.SIGKILL: TERM_GRACE_S}
        for number, grace_s in graces_s.items():
            self.kill(number)
            if self.exited.wait(grace_s):
                return

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                sent = self._stdin.write(view)
            except BrokenPipeError:
                return  # keep reading the channel, as sshd does, until the client stops
            if sent is None:  # the pipe is full
                if self.channel.closed:
                    raise EOFError
                select.select([], [self._stdin], [], 0.2)
            view = view[sent or 0 :]

    def _finish(self) -> None:
        self.exited.wait()
        with suppress(*BROKEN):  # the client has gone
            if self.process.returncode >= 0:
                self.channel.send_exit_status(self.process.returncode)
            else:
                name = signal.Signals(-self.process.returncode).name.removeprefix("SIG")
                message = channel_request(self.channel, "exit-signal", False, name, False, "", "")
                transport: Any = self.channel.get_transport()
                transport._send_user_message(message)
            for pump in self._pumps:
                pump.join()
            self.channel.close()

    def kill(self, number: int) -> None:
        """Signal the whole process group, as long as its leader lives."""
        if not self.exited.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def serve(config_path: Path) -> None:
    """Serve one node until SIGTERM or the end of stdin, its lease; prints JSON when ready."""
    config = json.loads(config_path.read_text(encoding="utf-8"))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if config["die_with_parent"]:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    stopping: list[bool] = []  # not an Event, whose lock a signal handler must not take twice
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes the selector
    node = Node(config)
    os.chdir(node.environment["HOME"])
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
    selector = selectors.DefaultSelector()
    for source in (listener, woken, sys.stdin.buffer):
        selector.register(source, selectors.EVENT_READ)
    while not stopping:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _address = listener.accept()
                node.accept(connection)
            elif key.fileobj == woken:
                os.read(woken, 4096)
                node.reap()
            elif not os.read(sys.stdin.fileno(), 4096):
                stopping.append(True)
    listener.close()
    node.stop()
    os._exit(0)  # paramiko's sftp threads are no daemons; nothing of ours is left to flush
