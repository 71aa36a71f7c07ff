"""paramiko's Transport with our own limits: no timer threads, writes that end, exit signals."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.transport.paramiko_import import BROKEN, paramiko
from clusterctl.transport.public_keys import CERTIFICATE
from clusterctl.transport.ssh_config.patterns import limited

# How often an idle connection's thread wakes up; `close` does not wait for it.
IDLE_POLL_S = 5.0
CLOSE_WAIT_S = 0.2
# A connection whose peer reads and acknowledges nothing for so long is dead.
STALL_S = 20.0
# Output that a node may send ahead of its reader: the memory that a reader that stops can cost.
WINDOW_BYTES = 1 << 20

# 6.0 ms a connection with aes128-gcm against 6.7 with aes128-ctr + hmac.
_GCM = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_CIPHERS = (*_GCM, "aes128-ctr", "aes192-ctr", "aes256-ctr")
_MACS = tuple(f"hmac-sha2-{bits}{etm}" for etm in ("-etm@openssh.com", "") for bits in (256, 512))
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # signatures of keys of the type ssh-rsa
# Keyword of ssh_config: paramiko's names for what is preferred, and for what there is.
_LISTS = {
    "ciphers": ("_preferred_ciphers", "_cipher_info"),
    "hostkeyalgorithms": ("_preferred_keys", "_key_info"),
    "kexalgorithms": ("_preferred_kex", "_kex_info"),
    "macs": ("_preferred_macs", "_mac_info"),
    "pubkeyacceptedalgorithms": ("_preferred_pubkeys", "_key_info"),
}


# paramiko's inner names, which its type stubs leave out.
_Channel: Any = paramiko.Channel
_Transport: Any = paramiko.Transport


class _Packets(paramiko.packet.Packetizer):
    """Packets without paramiko's timer thread, which costs 9 % of a connection's CPU."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._sock = sock

    def start_handshake(
        self, timeout: float
    ) -> None: ...  # the caller's deadline closes the socket

    def handshake_timed_out(self) -> bool:
        return False

    def complete_handshake(self) -> None: ...

    def write_all(self, out: Any) -> None:
        """As paramiko's, but a peer that reads nothing for `STALL_S` ends the connection."""
        view = memoryview(out)
        moved = time.monotonic()
        while len(view):
            try:
                sent = self._sock.send(view)
            except (TimeoutError, BlockingIOError):
                if self.closed or time.monotonic() - moved > STALL_S:
                    raise EOFError("the node reads no data") from None
                continue
            except OSError as error:
                raise EOFError(str(error)) from None
            if sent <= 0:
                raise EOFError("connection closed")
            moved = time.monotonic()
            view = view[sent:]


class SafeChannel(paramiko.Channel):
    """A channel that sends nothing after its end, and reports exit signals and the node's close.

    paramiko reserves window under a lock and sends after it; when another thread closes meanwhile,
    data follow the end, and sshd closes the whole connection ("data packet referred to nonexistent
    channel"). Here the end waits for sends in progress.
    """

    closed_by_peer = False  # the node closed the channel, so the connection was alive at its end
    wake: Callable[[], None] | None = None  # called when the window opens or a status arrives
    _sends = 0  # in progress
    _end: tuple[Any, ...] = ()

    def send(self, s: Any) -> int:
        sent: list[int] = []
        self.before_end(lambda: sent.append(_Channel.send(self, s)))
        if not sent:
            raise OSError("the channel is closed")
        return sent[0]

    def shutdown(self, how: int) -> None:
        self.before_end(lambda: _Channel.shutdown(self, how))

    def before_end(self, action: Callable[[], object]) -> None:
        """Run an action that sends on this channel, unless it is closed."""
        with self.lock:
            if self.closed:
                return
            self._sends += 1
        try:
            action()
        finally:
            with self.lock:
                self._sends -= 1
                end = () if self._sends else self._end
                self._end = self._end if self._sends else ()
            transport: Any = self.transport
            for message in end:
                transport._send_user_message(message)

    def _close_internal(self) -> tuple[Any, Any]:
        # Under self.lock. The caller sends what is returned.
        messages = _Channel._close_internal(self)
        if self._sends and messages[1] is not None:
            self._end = tuple(message for message in messages if message is not None)
            return None, None
        return messages  # type: ignore[no-any-return]

    def _handle_request(self, m: paramiko.Message) -> None:
        """paramiko drops exit-signal, which is how a killed command ends."""
        start = m.packet.tell()
        if m.get_text() == "exit-signal":
            m.get_boolean()
            self.exit_status = -int(getattr(signal, "SIG" + m.get_text(), signal.SIGKILL))
            self.status_event.set()
        else:
            m.packet.seek(start)
            _Channel._handle_request(self, m)
        self._wake()

    def _window_adjust(self, m: paramiko.Message) -> None:
        _Channel._window_adjust(self, m)
        self._wake()

    def _handle_close(self, m: paramiko.Message) -> None:
        self.closed_by_peer = True
        _Channel._handle_close(self, m)

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()


# paramiko names the class in the middle of methods and has no hook for another one.
paramiko.transport.Channel = SafeChannel  # type: ignore[attr-defined]


class PatchedTransport(paramiko.Transport):
    """One ssh connection; calls `on_banner` at the server's banner, `on_close` at its end."""

    _active_check_timeout = IDLE_POLL_S
    _preferred_keys: tuple[str, ...] = _Transport._preferred_keys
    _preferred_pubkeys: tuple[str, ...] = _Transport._preferred_pubkeys
    _preferred_ciphers = tuple(c for c in _CIPHERS if c in _Transport._cipher_info)
    _preferred_macs = tuple(m for m in _MACS if m in _Transport._mac_info)
    _channel_handler_table = {  # noqa: RUF012 - paramiko's own shape
        **_Transport._channel_handler_table,
        paramiko.common.MSG_CHANNEL_REQUEST: SafeChannel._handle_request,
        paramiko.common.MSG_CHANNEL_WINDOW_ADJUST: SafeChannel._window_adjust,
        paramiko.common.MSG_CHANNEL_CLOSE: SafeChannel._handle_close,
    }

    def __init__(
        self, sock: Any, on_banner: Callable[[], None], on_close: Callable[[], None]
    ) -> None:
        super().__init__(sock, default_window_size=WINDOW_BYTES, packetizer_class=_Packets)
        self.banner_timeout = 3600  # the caller's deadline decides
        self.clear_to_send_timeout = STALL_S
        self._on_banner = on_banner
        self._on_close = [on_close]
        self._is_limited = False

    def _parse_global_request(self, m: paramiko.Message) -> None:
        # sshd announces its host keys after login, and Nagle's algorithm holds back its next answer
        # until the kernel's delayed acknowledgement: 40 ms for the first command.
        if isinstance(self.sock, socket.socket) and self.sock.family != socket.AF_UNIX:
            with suppress(OSError):  # closed meanwhile
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        _Transport._parse_global_request(self, m)

    def _check_banner(self) -> None:
        _Transport._check_banner(self)
        self._on_banner()

    def negotiate(self, deadline: float) -> None:
        """Banner and key exchange. Raises `TimeoutError`, `SSHException`, `EOFError`, `OSError`."""
        done = threading.Event()
        self.start_client(event=done)
        if not done.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        if not self.is_active():
            raise self.get_exception() or EOFError()

    def limit(self, algorithms: tuple[tuple[str, str], ...]) -> None:
        """Use only what ssh_config's lists allow. Raises `TransportError`."""
        for keyword, spec in algorithms:
            preferred, known = _LISTS[keyword]
            ours, supported = getattr(self, preferred), getattr(_Transport, known)
            if keyword == "pubkeyacceptedalgorithms":
                ours += tuple(name for name in supported if name.removesuffix(CERTIFICATE) in ours)
            else:
                supported = [name for name in supported if not name.endswith(CERTIFICATE)]
            chosen = limited(ours, supported, spec)
            if not chosen:
                raise TransportError("kex", f"{keyword} {spec}: this backend has none of these")
            setattr(self, preferred, chosen)
            self._is_limited |= keyword == "pubkeyacceptedalgorithms"

    def may_offer(self, key: paramiko.PKey) -> bool:
        """Whether PubkeyAcceptedAlgorithms allows a key, or its certificate."""
        shown: Any = key.public_blob
        kind = shown.key_type if shown else key.get_name()
        kinds = [kind.replace("ssh-rsa", name) for name in ("ssh-rsa", *_RSA)]
        return not self._is_limited or any(one in self._preferred_pubkeys for one in kinds)

    def prefer_host_keys(self, types: tuple[str, ...]) -> None:
        """Prefer the host key types on record, so that a known host shows a known key.

        They keep our own order, not the file's, as in OpenSSH: a host must show the key that it
        shows to ssh, not an old one of a weaker type.
        """
        supported: tuple[str, ...] = self._preferred_keys
        known = [one for one in supported if ("ssh-rsa" if one in _RSA else one) in types]
        self._preferred_keys = tuple(dict.fromkeys([*known, *supported]))

    def close(self) -> None:
        """Idempotent, and immediate: paramiko alone would wait for its thread's idle poll."""
        with suppress(*BROKEN):  # not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)
        # The shutdown wakes the thread. Closing the file before it ends could leave it waiting on
        # another connection's socket with the same number.
        if self.is_alive() and self is not threading.current_thread():
            self.join(CLOSE_WAIT_S)
        super().close()
        with suppress(*BROKEN):
            self.sock.close()
        with suppress(IndexError):  # atomic: another thread may close as well
            self._on_close.pop()()
