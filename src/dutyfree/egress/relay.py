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
    """One connection, while it is carried. The caller closes both ends.

    The calling task sends. What the server sends is passed on in the loop's callback for its socket, as long as the
    client has room for it: an answer that is not large needs no task.
    """

    def __init__(
        self, client: Connection, upstream: socket.socket, entry: Entry, budget: Budget, idle_s: float
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._fd = upstream.fileno()  # the loop handles numbers much faster than sockets
        self._entry = entry
        self._budget = budget
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._active_s = self._loop.time()
        self._interrupt = asyncio.timeout(None)
        """Ends the sending direction: when the other one has failed, or when both are idle."""
        self._timer: asyncio.TimerHandle | None = None
        self._received: asyncio.Future[None] = self._loop.create_future()
        """The end of the receiving direction."""
        self._down: Filter = Everything()
        self._early = b""
        self._waiting: asyncio.Task[None] | None = None
        """Waits for room at the client; no callback reads from the server meanwhile."""

    async def carry(
        self, up: Filter, down: Filter, *, head: bytes = b"", first: bytes = b"", early: bytes = b""
    ) -> str:
        """Carry until both sides have ended, and return how it ended. Raises Refused if a filter does.

        `head` is sent to the server as it is; `first` has been read from the client, `early` from the server. If `up`
        lets a limited part pass (the body of a request), the connection ends with the server's answer.
        """
        self._down, self._early = down, early
        self._loop.call_soon(self._receive)  # the first bytes go out before
        try:
            return await self._both(self._up(up, head, first))
        except OSError as error:
            return f"failed: {error.strerror or error}"
        except DutyfreeError:
            return "closed by the sandbox"
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if not self._received.done():
                self._loop.remove_reader(self._fd)
                self._received.cancel()
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait((self._waiting,))

    async def _both(self, sending: Coroutine[Any, Any, None]) -> str:
        try:
            async with self._interrupt:
                await sending
                await self._received
        except TimeoutError:
            if not self._interrupt.expired():
                raise  # of a socket
            if self._received.done():
                self._received.result()
            return "idle"
        return "closed"

    def _look_at_time(self) -> None:
        """At least every `LINGER_S`, so that no other timer is needed when one side ends."""
        now_s = self._loop.time()
        idle_at_s = self._active_s + self._idle_s
        if now_s >= idle_at_s:
            self._interrupt.reschedule(now_s)
        else:
            self._timer = self._loop.call_at(min(idle_at_s, now_s + LINGER_S), self._look_at_time)

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
                if not self._received.done():  # else the socket is closed now
                    upstream.shutdown(socket.SHUT_WR)
                return

    def _receive(self) -> None:
        if self._received.done():
            return  # the connection has ended
        self._loop.add_reader(self._fd, self._readable)
        self._look_at_time()
        if self._early:
            self._readable()

    def _readable(self) -> None:
        try:
            passed, last = self._take()
            if self._client.write_now(passed, last=last):
                self._passed_down(passed, last)
            else:
                self._loop.remove_reader(self._fd)
                self._waiting = self._loop.create_task(self._wait_for_room(passed, last))
        except BlockingIOError:
            pass
        except Exception as error:  # the task that carries raises it
            self._stop_receiving(error)

    async def _wait_for_room(self, passed: bytes, last: bool) -> None:
        """Receive in this task as long as the server is faster than the client."""
        try:
            while True:
                if passed:
                    await self._client.write(passed)
                if last:
                    await self._client.end_input()
                self._passed_down(passed, last)
                if last:
                    return
                await asyncio.sleep(0)  # a fast server must not keep the loop from all else
                passed, last = self._take()
        except BlockingIOError:
            self._waiting = None
            self._loop.add_reader(self._fd, self._readable)
        except Exception as error:
            self._stop_receiving(error)

    def _take(self) -> tuple[bytes, bool]:
        """What may pass of the server's next bytes, and whether its end has come. Raises OSError and Refused."""
        data = self._early or self._upstream.recv(CHUNK_BYTES)
        self._early = b""
        passed = self._down.feed(data) if data else b""
        self._budget.take(len(passed))
        return passed, not data

    def _passed_down(self, passed: bytes, last: bool) -> None:
        self._entry.received_bytes += len(passed)
        self._active_s = self._loop.time()
        if last:
            self._stop_receiving(None)

    def _stop_receiving(self, error: Exception | None) -> None:
        self._loop.remove_reader(self._fd)
        if self._received.done():
            return
        if error is None:
            self._received.set_result(None)
            self._idle_s = min(self._idle_s, LINGER_S)
            return
        self._received.set_exception(error)
        self._received.exception()  # nobody may be left to ask for it
        if not self._interrupt.expired():
            self._interrupt.reschedule(self._loop.time())
