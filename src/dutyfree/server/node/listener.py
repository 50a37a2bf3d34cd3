"""The node's ports: connections of clients, from the first byte to the stream of frames.

A connection begins as an HTTP request that asks for an upgrade, so that it passes proxies; then HELLO and WELCOME; then
the client's stream, which goes on over the next connection when this one is lost. All that a stranger sends before its
token was checked is small, and has to come within seconds.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from dutyfree.codec import ERROR
from dutyfree.codec.values import natural, optional, text
from dutyfree.errors import DutyfreeError, GuestMisbehaved, InvalidRequest
from dutyfree.protocol.frames import (
    HELLO_ONLY,
    PROTOCOL,
    UPGRADE_PATH,
    VERSION,
    NodeFrame,
    decode_plain,
    encode_plain,
)
from dutyfree.server.node.caller import Caller
from dutyfree.server.node.node import Node
from dutyfree.tables import Table
from dutyfree.wire.frames import FrameDecoder

GREETING_S: Final = 10.0
ACK_AFTER_S: Final = 0.2
KEEP_ALIVE_S: Final = 10.0
SILENT_S: Final = 45.0
"""A connection that brings nothing for so long is dead: both sides send something every ten seconds."""
READ_BYTES: Final = 96 * 1024
MAX_REQUEST_BYTES: Final = 8 * 1024
MAX_CONNECTIONS: Final = 10_000
_HEALTHY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nok\n"
_SWITCHED: Final = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
_PEER: Final = struct.Struct("3i")


def bind_unix(path: Path) -> socket.socket:
    """A socket of this machine that only its own user can reach. One that a dead server left is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other,
        suppress(FileNotFoundError, ConnectionRefusedError),
    ):
        other.settimeout(1.0)
        other.connect(str(path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    with suppress(FileNotFoundError):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    return listening


class Listener:
    """All ports of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._servers: list[asyncio.Server] = []
        self.connections: set[ClientConnection] = set()
        self.incoming = memoryview(bytearray(READ_BYTES))

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take connections from a bound socket."""
        loop = asyncio.get_running_loop()
        make = partial(ClientConnection, self._node, self)
        if listening.family == socket.AF_UNIX:
            server = await loop.create_unix_server(make, sock=listening, ssl=tls, backlog=1024)
        else:
            server = await loop.create_server(make, sock=listening, ssl=tls, backlog=1024)
        self._servers.append(server)

    async def close(self) -> None:
        """Take no more connections, and end those that there are."""
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.sleep(0)


class ClientConnection(asyncio.BufferedProtocol):
    """One connection of a client. It reads into its listener's buffer: each read is taken before the next."""

    def __init__(self, node: Node, listener: Listener) -> None:
        self._node = node
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._request: bytearray | None = bytearray()
        """What came before the upgrade; None after it."""
        self._decoder = FrameDecoder(HELLO_ONLY)
        self._caller: Caller | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ack: asyncio.TimerHandle | None = None
        self._heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._listener.connections) >= MAX_CONNECTIONS:
            self._transport.abort()
            return
        self._listener.connections.add(self)
        self._deadline = self._loop.call_later(GREETING_S, self.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        for timer in (self._deadline, self._ack):
            if timer is not None:
                timer.cancel()
        caller, self._caller, self._transport = self._caller, None, None
        if caller is not None and caller.connection is self:
            caller.connection = None
            caller.disconnect()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        if self._caller is not None:
            self._caller.is_blocked = True

    def resume_writing(self) -> None:
        if self._caller is not None:
            self._caller.is_blocked = False
            self._caller.unblock()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.incoming

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._listener.incoming[:nbytes])
        self._heard_s = self._loop.time()
        try:
            if self._caller is not None:
                self._receive(self._caller, data)
            elif self._request is not None:
                self._take_request(data)
            else:
                self._take_hello(data)
        except GuestMisbehaved as error:
            self._refuse(error)
            if self._caller is not None:
                self._caller.end()

    def _receive(self, caller: Caller, data: bytes) -> None:
        caller.receive(data)
        if caller.is_over:
            self.abort()
        elif caller.stream.owes and self._ack is None:
            self._ack = self._loop.call_later(ACK_AFTER_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack = None
        if self._caller is not None and self._caller.stream.owes:
            self._caller.stream.acknowledge()

    def _take_request(self, data: bytes) -> None:
        assert self._request is not None
        assert self._transport is not None
        self._request += data
        head, end, rest = bytes(self._request).partition(b"\r\n\r\n")
        if len(self._request) > MAX_REQUEST_BYTES:
            self._answer("431 Request Header Fields Too Large")
        elif end:
            lines = head.decode("latin-1").split("\r\n")
            headers = [line.lower().replace(" ", "") for line in lines[1:]]
            if lines[0].startswith("GET /health "):
                self._transport.write(_HEALTHY)
                self._transport.close()
            elif not lines[0].startswith(f"GET {UPGRADE_PATH} HTTP/1.1") or f"upgrade:{PROTOCOL}" not in headers:
                self._answer("426 Upgrade Required")
            elif rest:
                self._answer("400 Bad Request")
            else:
                self._request = None
                self._transport.write(_SWITCHED)

    def _answer(self, status: str) -> None:
        assert self._transport is not None
        self._transport.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        self._transport.close()

    def _take_hello(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        if not frames:
            return
        if len(frames) > 1:
            raise GuestMisbehaved("a client sent more than its HELLO before it was welcome")
        try:
            self._greet(decode_plain(frames[0]))
        except GuestMisbehaved:
            raise
        except DutyfreeError as error:
            self._refuse(error)

    def _greet(self, document: dict[str, Any]) -> None:
        hello = Table(document, "HELLO")
        version = hello.required("version", natural)
        if version != VERSION:
            raise InvalidRequest(f"this node speaks version {VERSION} of the protocol, not {version}")
        identity = self._node.identify(hello.required("token", text), trusted=self._is_trusted())
        before = hello.required("caller", optional(text))
        caller = self._node.returned(before, identity) if before is not None else None
        received = hello.required("received", natural) if caller is not None else 0
        if caller is None:
            caller = self._node.welcome(identity)
        if isinstance(caller.connection, ClientConnection):
            caller.connection.replace()
        assert self._transport is not None
        welcome = {
            "version": VERSION,
            "caller": caller.id,
            "received": caller.stream.received,
            "resume_s": self._node.resume_s,
        }
        self._transport.write(encode_plain(NodeFrame.WELCOME, {**welcome, "owner": identity.owner}))
        caller.connection = self
        self._caller = caller
        caller.connect(self._transport.write, received)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def replace(self) -> None:
        """The client has another connection now: this one must not count as lost."""
        self._caller = None
        self.abort()

    def _keep_alive(self) -> None:
        if self._caller is None or self._loop.time() - self._heard_s > SILENT_S:
            self.abort()
            return
        self._caller.stream.acknowledge()
        self._deadline = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def _refuse(self, error: DutyfreeError) -> None:
        if self._transport is not None:
            kind = NodeFrame.FAILED if self._caller is None else NodeFrame.ENDED
            self._transport.write(encode_plain(kind, ERROR.write(error)))
            self._transport.close()

    def _is_trusted(self) -> bool:
        """Whether it comes from this machine's own user, or root, through a unix socket."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX:
            return False
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return uid in (0, os.geteuid())
