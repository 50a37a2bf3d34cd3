"""Connections to and from programs in a sandbox: byte streams, listeners and datagrams, as exchanges of its guest."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import deque
from functools import lru_cache
from ipaddress import ip_address
from typing import ClassVar, Final, Self

from dutyfree.checked import data_bytes, text, whole
from dutyfree.contract import DEFAULT_CONNECTION_READ_BYTES, MAX_DATAGRAM_BYTES, Connection, Datagrams, Listener
from dutyfree.errors import GuestMisbehaved, InvalidRequest, PortFailed
from dutyfree.guest.exchanges import WINDOW_BYTES, ActionExchange, port_failure
from dutyfree.guest.runner import Runner, milliseconds
from dutyfree.model.action import check_timeout
from dutyfree.model.port import check_port
from dutyfree.wire.messages import SOCKET_WINDOW_BYTES, Mode, Run, Started

_START_TIMEOUT_S: Final = 10.0
_ACCEPTS_AHEAD: Final = 16
_LEAST_ACCEPTS: Final = _ACCEPTS_AHEAD // 2
"""With so few left, new ones are sent: several at a time, since each message wakes the guest."""
_SMALL_BYTES: Final = 4096
_DATAGRAMS_WINDOW_BYTES: Final = 256 * 1024
_PORT: Final = struct.Struct("<H")
Address = tuple[str, int]


class Socket(ActionExchange):
    """What the exchanges of all sockets share: they are up with a STARTED, which has their addresses."""

    expects_started = True
    wanted_addresses: ClassVar[int] = 1

    def __init__(self, runner: Runner, output_credit_bytes: int) -> None:
        super().__init__(output_credit_bytes, runner.known_limits)
        self.addresses: list[Address] = []

    def started(self, message: Started) -> None:
        if len(message.addresses) != self.wanted_addresses:
            raise GuestMisbehaved(f"connection {self.id} came up with {len(message.addresses)} addresses")
        self.addresses = [(_literal(address), port) for address, port in message.addresses]
        self.wake()

    def output(self, stream: int, data: bytes) -> None:
        """Never called without credit for output."""

    async def open(self, runner: Runner, mode: Mode, address: str, port: int, timeout_s: float) -> None:
        """Send the request, and wait until the guest has the socket."""
        args = (_checked(address).encode(), str(port).encode())
        request = Run(id=0, mode=mode, args=args, timeout_ms=milliseconds(timeout_s), credit=self.output_credit_bytes)
        runner.begin(self, request, timeout_s)
        await self.opened()
        if not self.up:
            raise port_failure("connect", errno.ECONNABORTED)

    async def closed(self) -> None:
        """Close it, and wait until the guest has done so."""
        self.abandon()
        await self.settled()


class Stream(Socket):
    """A connection. At most `WINDOW_BYTES` are held for a reader that stops."""

    input_window_bytes = SOCKET_WINDOW_BYTES
    wanted_addresses = 2

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, WINDOW_BYTES)
        self._chunks: deque[bytes | bytearray] = deque()
        self._taken_bytes = 0  # of the first chunk
        self._owed_bytes = 0
        self._at_end = False
        self._input_turn = asyncio.Lock()
        self._input_closed = False

    def output(self, stream: int, data: bytes) -> None:
        if self._at_end or not self.up:
            raise GuestMisbehaved(f"connection {self.id} sent output out of its turn")
        if self.abandoned:
            return
        last = self._chunks[-1] if self._chunks else None
        if len(data) >= _SMALL_BYTES:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < _SMALL_BYTES:
            last += data  # a guest that sends single bytes must not cost an object for each
        else:
            self._chunks.append(bytearray(data))
        self.wake()

    def output_ended(self) -> None:
        self._at_end = True
        self.wake()

    async def take(self, limit_bytes: int) -> bytes:
        """Up to so many bytes; empty at the end."""
        while not self._chunks:
            self.check()
            if self.abandoned or self._at_end or self.finished:
                self._check_end()
                return b""
            await self.changed()
        chunk = self._chunks[0]
        start, left = self._taken_bytes, len(chunk) - self._taken_bytes
        if left <= limit_bytes:
            self._chunks.popleft()
            self._taken_bytes = 0
            taken = bytes(chunk) if start == 0 else bytes(memoryview(chunk)[start:])
        else:
            self._taken_bytes += limit_bytes
            taken = bytes(memoryview(chunk)[start : start + limit_bytes])
        self._owed_bytes += len(taken)
        if self._owed_bytes >= WINDOW_BYTES // 4 and not self.finished:
            self.grant(self._owed_bytes)
            self._owed_bytes = 0
        return taken

    async def give(self, data: bytes) -> None:
        """Send all of it; returns when the guest has room for it."""
        if self._input_closed or self.abandoned:
            raise InvalidRequest("this side of the connection was closed")
        async with self._input_turn:
            self._check_open()
            self.offer_input(data)
            while self.input_waits and not self.finished:
                await self.changed()
            self._check_open()

    def give_now(self, data: bytes, *, last: bool) -> bool:
        """Send all of it if the guest has room, and with `last` the end of the input; False if nothing was sent."""
        if self._input_closed or self.abandoned or self.finished or self._input_turn.locked():
            return False
        if not self.has_input_room(len(data)):
            return False
        self._input_closed = last
        self.offer_input(data, last=last)
        return True

    async def end_input(self) -> None:
        """Close this side, after all that was given. Idempotent."""
        if self._input_closed:
            return
        self._input_closed = True
        async with self._input_turn:
            if not self.finished and not self.abandoned:
                self.offer_input(b"", last=True)

    def abandon(self) -> None:
        super().abandon()
        self._chunks.clear()

    def _check_open(self) -> None:
        self.check()
        if self.abandoned:
            raise InvalidRequest("this connection was closed")
        if self.finished:
            self._check_end()
            raise _broken(errno.EPIPE)

    def _check_end(self) -> None:
        if self.end is not None and self.end.exit_code and not self.abandoned:
            raise _broken(self.end.exit_code)


class GuestConnection(Connection):
    """A byte stream to or from a program."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._peer, self._local = stream.addresses

    @classmethod
    async def dial(cls, runner: Runner, address: str, port: int, timeout_s: float) -> Self:
        """Connect to a port of the sandbox."""
        check_port(port)
        check_timeout(timeout_s)
        stream = Stream(runner)
        await stream.open(runner, Mode.DIAL, address, port, timeout_s)
        return cls(stream)

    @property
    def peer(self) -> Address:
        return self._peer

    @property
    def local(self) -> Address:
        return self._local

    async def read(self, limit_bytes: int = DEFAULT_CONNECTION_READ_BYTES) -> bytes:
        return await self._stream.take(whole("limit_bytes", limit_bytes, least=1))

    async def write(self, data: bytes | str) -> None:
        await self._stream.give(data_bytes("data", data))

    def write_now(self, data: bytes | str, *, last: bool = False) -> bool:
        return self._stream.give_now(data_bytes("data", data), last=last)

    async def end_input(self) -> None:
        await self._stream.end_input()

    async def close(self) -> None:
        await self._stream.closed()


class GuestListener(Listener):
    """A few ACCEPTs are always under way, so that a connection needs no round trip; the guest serves them in order."""

    def __init__(self, runner: Runner, exchange: Socket) -> None:
        self._runner = runner
        self._socket = exchange
        self._accepts: deque[Stream] = deque()
        self._turn = asyncio.Lock()
        self._ask()

    @classmethod
    async def open(cls, runner: Runner, address: str, port: int) -> Self:
        """Listen on a port of the sandbox."""
        check_port(port, least=0)
        exchange = Socket(runner, 0)
        await exchange.open(runner, Mode.LISTEN, address, port, _START_TIMEOUT_S)
        return cls(runner, exchange)

    @property
    def local(self) -> Address:
        return self._socket.addresses[0]

    @property
    def alive(self) -> bool:
        """Whether it still listens."""
        return not self._socket.finished and not self._socket.abandoned

    async def accept(self) -> Connection:
        async with self._turn:
            if self._socket.abandoned:
                raise InvalidRequest("this listener was closed")
            self._socket.check()
            stream = self._accepts[0]
            while not stream.up and not stream.finished:
                await stream.changed()
            self._accepts.popleft()
            if self.alive and len(self._accepts) <= _LEAST_ACCEPTS:
                self._ask()
            stream.check()
            if not stream.up:
                raise InvalidRequest("this listener was closed")
            return GuestConnection(stream)

    async def close(self) -> None:
        self._socket.abandon()
        for stream in self._accepts:
            stream.abandon()
        await self._socket.settled()

    def _ask(self) -> None:
        streams = [Stream(self._runner) for _ in range(_ACCEPTS_AHEAD - len(self._accepts))]
        request = Run(id=0, mode=Mode.ACCEPT, credit=WINDOW_BYTES, session=self._socket.id)
        self._socket.channel.start_all(streams, request)
        self._accepts += streams


class Packets(Socket):
    """The exchange of a UDP socket: a datagram in each frame, behind the address of its other end."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, _DATAGRAMS_WINDOW_BYTES)
        self.received: deque[tuple[bytes, Address]] = deque()
        self._owed_bytes = 0

    def output(self, stream: int, data: bytes) -> None:
        size_bytes = 4 if data[0] == 4 else 16
        if data[0] not in (4, 6) or len(data) < size_bytes + 3:
            raise GuestMisbehaved(f"socket {self.id} sent a datagram without its sender")
        (port,) = _PORT.unpack_from(data, 1 + size_bytes)
        self.received.append((data[3 + size_bytes :], (str(ip_address(data[1 : 1 + size_bytes])), port)))
        self.wake()

    async def take(self) -> tuple[bytes, Address]:
        """The next datagram."""
        while not self.received:
            self.check()
            if self.finished or self.abandoned:
                raise InvalidRequest("this socket was closed")
            await self.changed()
        data, sender = self.received.popleft()
        self._owed_bytes += len(data) + 3 + len(ip_address(sender[0]).packed)
        if self._owed_bytes >= _DATAGRAMS_WINDOW_BYTES // 4 and not self.finished:
            self.grant(self._owed_bytes)
            self._owed_bytes = 0
        return data, sender


class GuestDatagrams(Datagrams):
    """A UDP socket of the guest."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets

    @classmethod
    async def open(cls, runner: Runner, address: str, port: int) -> Self:
        """Bind the socket."""
        check_port(port, least=0)
        packets = Packets(runner)
        await packets.open(runner, Mode.DATAGRAMS, address, port, _START_TIMEOUT_S)
        return cls(packets)

    @property
    def local(self) -> Address:
        return self._packets.addresses[0]

    async def receive(self) -> tuple[bytes, Address]:
        return await self._packets.take()

    async def send(self, data: bytes, to: Address) -> None:
        if len(data) > MAX_DATAGRAM_BYTES:
            raise InvalidRequest(f"a datagram of {len(data)} bytes; at most {MAX_DATAGRAM_BYTES} can be sent")
        check_port(to[1])
        place = ip_address(_checked(to[0]))
        self._packets.check()
        if self._packets.finished or self._packets.abandoned:
            raise InvalidRequest("this socket was closed")
        self._packets.send_whole(bytes((place.version,)) + place.packed + _PORT.pack(to[1]) + data)

    async def close(self) -> None:
        await self._packets.closed()


def _broken(number: int) -> PortFailed:
    return port_failure("go on with the connection", number)


def _checked(address: str) -> str:
    try:
        return str(ip_address(text("address", address)))
    except ValueError:
        raise InvalidRequest(f"{address!r} is no address", hint="give an IPv4 or IPv6 address: 127.0.0.1") from None


@lru_cache(256)
def _literal(text: bytes) -> str:
    family = socket.AF_INET6 if b":" in text else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text.decode("ascii")))
    except (OSError, ValueError):
        raise GuestMisbehaved("a STARTED with an address that is none") from None
