"""A sandbox whose loopback is that of this machine: the parts of the contract that egress uses, over real sockets.

Each address and port of the sandbox is a free port of 127.0.0.1 here, so that tests can run side by side.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from dutyfree.errors import LinkFailed

_SMALL_BYTES = 64


class LoopbackConnection:
    """One end of a TCP connection."""

    def __init__(self, sock: socket.socket, local: tuple[str, int]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.local = local

    async def read(self, limit_bytes: int = 65536) -> bytes:
        try:
            return await self._loop.sock_recv(self._sock, limit_bytes)
        except OSError as error:
            raise LinkFailed(str(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise LinkFailed(str(error)) from error

    def write_now(self, data: bytes, *, last: bool = False) -> bool:
        if len(data) > _SMALL_BYTES:
            return False
        try:
            if data:
                assert self._sock.send(data) == len(data)  # the kernel does not cut what is so small
            if last:
                self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    async def end_input(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        self._sock.close()


class LoopbackListener:
    """A listening socket."""

    def __init__(self, local: tuple[str, int]) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._sock.setblocking(False)
        self._local = local
        self.port = self._sock.getsockname()[1]

    async def accept(self) -> LoopbackConnection:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._sock)
        return LoopbackConnection(sock, self._local)

    async def close(self) -> None:
        self._sock.close()


class LoopbackDatagrams:
    """A UDP socket."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self._sock.setblocking(False)
        self.port = self._sock.getsockname()[1]

    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        return await asyncio.get_running_loop().sock_recvfrom(self._sock, 65536)

    async def send(self, data: bytes, to: tuple[str, int]) -> None:
        await asyncio.get_running_loop().sock_sendto(self._sock, data, to)

    async def close(self) -> None:
        self._sock.close()


class LoopbackFiles:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 1.0) -> None:
        self.written[path] = data


class LoopbackSandbox:
    """The sandbox; `tcp` and `udp` say which real port stands for an address and port of it."""

    alive = True
    id = "loopback"

    def __init__(self) -> None:
        self.tcp: dict[tuple[str, int], int] = {}
        self.udp: dict[tuple[str, int], int] = {}
        self.files = LoopbackFiles()

    async def listen(self, port: int, *, address: str = "127.0.0.1") -> LoopbackListener:
        listener = LoopbackListener((address, port))
        self.tcp[address, port] = listener.port
        return listener

    async def datagrams(self, port: int, *, address: str = "127.0.0.1") -> LoopbackDatagrams:
        datagrams = LoopbackDatagrams()
        self.udp[address, port] = datagrams.port
        return datagrams
