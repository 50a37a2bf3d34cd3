"""Hijacked connections: an engine turns an HTTP connection into the byte stream of a container or of an exec."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from typing import Any, Final

from dutyfree.errors import GuestMisbehaved
from dutyfree.failure import on_failure
from dutyfree.substrates.docker.address import Address
from dutyfree.substrates.docker.failures import EngineRefused

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_ERROR_BYTES: Final = 4 * 1024
_ERROR_TIMEOUT_S: Final = 2.0
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)


async def connect(address: Address) -> socket.socket:
    """Connect to the engine. Raises OSError."""
    loop = asyncio.get_running_loop()
    if address.path:
        return await _connect(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address.path)
    places = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _name, place = places[0]
    sock = await _connect(socket.socket(family, kind, protocol), place)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def hijack(address: Address, path: str, document: object = None) -> socket.socket:
    """Request a stream. The next byte to read from the returned socket is the first byte of the stream.

    Raises EngineRefused for an error status, OSError, and GuestMisbehaved for an answer that is not HTTP.
    """
    sock = await connect(address)
    with on_failure(sock.close):
        await asyncio.get_running_loop().sock_sendall(sock, request(address, path, document))
        head = await _read_head(sock)
        status = _STATUS.match(head)
        if status is None:
            raise GuestMisbehaved(f"the engine answered {head[:80]!r} instead of HTTP")
        if int(status[1]) not in (101, 200):
            raise EngineRefused(int(status[1]), await _read_error(sock, head))
    return sock


def request(address: Address, path: str, document: object) -> bytes:
    """The bytes of the request. `path` must need no quoting."""
    body = b"" if document is None else json.dumps(document).encode()
    head = (
        f"POST {path} HTTP/1.1",
        f"Host: {address.authority}",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def _connect(sock: socket.socket, place: Any) -> socket.socket:
    with on_failure(sock.close):
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place)
    return sock


async def _read_head(sock: socket.socket) -> bytes:
    """Read up to the empty line and no further: the next byte belongs to the stream."""
    head = b""
    while len(head) < MAX_HEAD_BYTES:
        try:
            seen = sock.recv(MAX_HEAD_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(sock)
            continue
        if not seen:
            raise ConnectionResetError("the engine closed the connection")
        end = (head + seen).find(b"\r\n\r\n")
        head += sock.recv(len(seen) if end < 0 else end + 4 - len(head))
        if end >= 0:
            return head
    raise GuestMisbehaved(f"the engine's answer begins with more than {MAX_HEAD_BYTES} bytes of headers")


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


async def _read_error(sock: socket.socket, head: bytes) -> str:
    length = _LENGTH.search(head)
    wanted_bytes = min(int(length[1]), MAX_ERROR_BYTES) if length else MAX_ERROR_BYTES
    body = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ERROR_TIMEOUT_S):
            while len(body) < wanted_bytes:
                data = await asyncio.get_running_loop().sock_recv(sock, wanted_bytes - len(body))
                if not data:
                    break
                body += data
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["message"])
    return body.decode("utf-8", "replace")
