"""Looks names up and connects to them. The address that was checked is the one that is connected to."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from dutyfree.egress import host_proxy
from dutyfree.egress.addresses import refusal, unmapped
from dutyfree.egress.refusal import Refused, Unreachable
from dutyfree.model.egress import Egress, static_address
from dutyfree.model.hostname import Address, HostName

Resolve = Callable[[str], Awaitable[list[Address]]]
"""Gives the addresses of a name; raises OSError."""
_MAX_ADDRESSES: Final = 16
_MAX_ANSWER_BYTES: Final = 16 * 1024
_LOOKUPS: Final = 4
"""At the same time, for one sandbox: names with slow servers must not take the threads of all."""
_THREADS: Final = 32
_BUFFER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Upstream:
    """A connection to the outside."""

    sock: socket.socket
    address: str
    early: bytes = b""
    """What the server sent together with the proxy's answer."""


class Connector:
    """Connects for one sandbox."""

    def __init__(
        self, egress: Egress, *, resolve: Resolve | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._static = {name: static_address(text) for name, text in egress.hosts.items()}
        self._timeout_s = egress.connect_timeout_s
        self._resolve = resolve or look_up
        self._environment = os.environ if environment is None else environment
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    async def connect(self, host: HostName, port: int, *, private: bool) -> Upstream:
        """Connect to a host that the rules allow. Raises Refused for its addresses, Unreachable if it fails."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._connect(host, port, private)
        except TimeoutError:
            raise Unreachable(f"no connection within {self._timeout_s:g} s", timed_out=True) from None

    async def _connect(self, host: HostName, port: int, private: bool) -> Upstream:
        if isinstance(host, str) and host in self._static:
            address, other_port = self._static[host]
            return await self._first([address], other_port or port, private, literal=False)
        if not isinstance(host, str) and private:
            return await self._first([host], port, private, literal=True)
        proxy = host_proxy.find(self._environment, host, port)
        if proxy is not None:
            return await self._through(proxy, host, port, private)
        if isinstance(host, str):
            return await self._first(await self._looked_up(host), port, private, literal=False)
        return await self._first([host], port, private, literal=True)

    async def _looked_up(self, name: str) -> list[Address]:
        async with self._lookups:
            try:
                found = await self._resolve(name)
            except OSError as error:
                raise Unreachable(f"cannot be looked up: {error.strerror or error}") from None
        if not found:
            raise Unreachable("has no address")
        return found[:_MAX_ADDRESSES]

    async def _first(self, addresses: list[Address], port: int, private: bool, *, literal: bool) -> Upstream:
        """The first of the addresses that may be connected to and answers."""
        why = {address: refusal(address, private=private, literal=literal) for address in addresses}
        good = [address for address in addresses if not why[address]]
        if not good:
            raise Refused(next(iter(why.values())))
        failed = ""
        for address in good:
            try:
                return Upstream(await _dial(address, port), str(address))
            except OSError as error:
                failed = error.strerror or str(error)
        raise Unreachable(failed)

    async def _through(self, proxy: host_proxy.HostProxy, host: HostName, port: int, private: bool) -> Upstream:
        if isinstance(host, str):
            if host_proxy.looks_private(host) and not private:
                raise Refused("a name of a private network")
        elif why := refusal(host, private=private, literal=True):
            raise Refused(why)
        loop = asyncio.get_running_loop()
        try:
            sock = await _dial_any(await self._resolve(proxy.host), proxy.port)
        except OSError as error:
            raise Unreachable(f"the host's own proxy: {error.strerror or error}") from None
        try:
            await loop.sock_sendall(sock, proxy.connect_head(host, port))
            answer = b""
            while (end := answer.find(b"\r\n\r\n")) < 0:
                more = await loop.sock_recv(sock, _MAX_ANSWER_BYTES)
                answer += more
                if not more or len(answer) > _MAX_ANSWER_BYTES:
                    raise Unreachable("the host's own proxy gave no answer")
            status = answer[:64].split(b"\r\n")[0]
            if not status.startswith((b"HTTP/1.0 2", b"HTTP/1.1 2")):
                raise Unreachable(f"the host's own proxy refused: {status!r}")
        except OSError as error:
            sock.close()
            raise Unreachable(f"the host's own proxy: {error.strerror or error}") from None
        except BaseException:
            sock.close()
            raise
        return Upstream(sock, f"proxy {proxy.host}:{proxy.port}", answer[end + 4 :])


async def look_up(name: str) -> list[Address]:
    """The addresses of a name, by the host's own resolver. Raises OSError."""
    try:
        literal = ip_address(name)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            _threads(), lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )
        texts = dict.fromkeys(str(entry[4][0]) for entry in found)
        # A scope means a link-local address: without it, the check refuses the address.
        return [unmapped(ip_address(text.partition("%")[0])) for text in texts]
    return [literal]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "dutyfree-egress")


async def _dial_any(addresses: list[Address], port: int) -> socket.socket:
    failure = OSError("it has no address")
    for address in addresses:
        try:
            return await _dial(address, port)
        except OSError as error:
            failure = error
    raise failure


async def _dial(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    where = (str(address), port)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(where)
        if code == errno.EINPROGRESS:
            code = sock.connect_ex(where)  # on this machine it is connected by now, and the loop need not wait
        if code == errno.EALREADY:
            await asyncio.get_running_loop().sock_connect(sock, where)
        elif code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock
