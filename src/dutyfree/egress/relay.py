"""Carries bytes between a program in the sandbox and the outside, both ways, with limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from dutyfree.egress.journal import Entry
from dutyfree.egress.refusal import Refused
from dutyfree.errors import DutyfreeError

if TYPE_CHECKING:
    from dutyfree.contract import Connection

CHUNK_BYTES: Final = 256 * 1024
_LARGE_BYTES: Final = 32 * 1024
LINGER_S: Final = 30.0
"""How long one side may be quiet once the other side has ended."""


class Filter(Protocol):
    """What may pass in one direction."""

    @property
    def done(self) -> bool:
        """Whether nothing more may pass."""

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on now. Raises Refused."""


class Everything:
    """Lets all bytes pass."""

    done: Final = False

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        return data


class Budget:
    """The bytes that all connections of a sandbox may carry together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes. Raises Refused past the limit."""
        self.used_bytes += size_bytes
        self.check()

    def check(self) -> None:
        """Raise Refused if nothing is left."""
        if self.used_bytes > self.limit_bytes:
            raise Refused(f"the limit of {self.limit_bytes} bytes is reached", 503)


class Relay:
    """One connection, while it is carried. The caller closes both ends."""

    def __init__(
        self, client: Connection, upstream: socket.socket, entry: Entry, budget: Budget, idle_s: float
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._entry = entry
        self._budget = budget
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._active_s = self._loop.time()
        self._interrupt = asyncio.timeout(None)
        """Ends the sending direction: when the other one has failed, or when both are idle."""
        self._timer: asyncio.TimerHandle | None = None

    async def carry(
        self, up: Filter, down: Filter, *, head: bytes = b"", first: bytes = b"", early: bytes = b""
    ) -> str:
        """Carry until both sides have ended, and return how it ended. Raises Refused if a filter does.

        `head` is sent to the server as it is; `first` has been read from the client, `early` from the server. If `up`
        lets a limited part pass (the body of a request), the connection ends with the server's answer.
        """
        # This task sends, a new one receives: the first bytes go out without a task switch.
        receiving = asyncio.create_task(self._down(down, early))
        receiving.add_done_callback(self._received)
        self._timer = self._loop.call_later(self._idle_s, self._look_at_time)
        try:
            return await self._both(self._up(up, head, first), receiving)
        except OSError as error:
            return f"failed: {error.strerror or error}"
        except DutyfreeError:
            return "closed by the sandbox"
        finally:
            self._timer.cancel()
            self._timer = None
            if not receiving.done():
                receiving.cancel()
                await asyncio.wait((receiving,))

    async def _both(self, sending: Coroutine[Any, Any, None], receiving: asyncio.Task[None]) -> str:
        try:
            async with self._interrupt:
                await sending
                await receiving
        except TimeoutError:
            if not self._interrupt.expired():
                raise  # of a socket
            if receiving.done():
                receiving.result()
            return "idle"
        return "closed"

    def _received(self, receiving: asyncio.Task[None]) -> None:
        if self._timer is None or receiving.cancelled():
            return
        if receiving.exception() is not None:
            self._interrupt.reschedule(self._loop.time())
        elif self._idle_s > LINGER_S:
            self._idle_s = LINGER_S
            self._timer.cancel()
            self._look_at_time()

    def _look_at_time(self) -> None:
        now_s = self._loop.time()
        idle_at_s = self._active_s + self._idle_s
        if now_s >= idle_at_s:
            self._interrupt.reschedule(now_s)
        else:
            self._timer = self._loop.call_at(idle_at_s, self._look_at_time)

    async def _up(self, up: Filter, head: bytes, data: bytes) -> None:
        client, upstream, entry, send = self._client, self._upstream, self._entry, self._loop.sock_sendall
        while True:
            passed = head + up.feed(data) if data or head else b""
            head = b""
            if passed:
                self._budget.take(len(passed))
                await send(upstream, passed)
                entry.sent_bytes += len(passed)
                self._active_s = self._loop.time()
            if up.done:
                return
            data = await client.read(CHUNK_BYTES)
            if not data:
                upstream.shutdown(socket.SHUT_WR)
                return

    async def _down(self, down: Filter, data: bytes) -> None:
        client, upstream, entry, receive = self._client, self._upstream, self._entry, self._loop.sock_recv
        while True:
            if data and (passed := down.feed(data)):
                self._budget.take(len(passed))
                await client.write(passed)
                entry.received_bytes += len(passed)
                self._active_s = self._loop.time()
                if len(passed) >= _LARGE_BYTES:
                    await asyncio.sleep(0)  # a fast server must not keep the loop from all else
            if down.done:
                return
            data = await receive(upstream, CHUNK_BYTES)
            if not data:
                await client.end_input()
                return
