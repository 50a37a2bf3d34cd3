"""The exchanges that carry actions: one collects the output, the other hands it over while the action runs."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from typing import Final

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    InvalidRequest,
    PortFailed,
    SessionEnded,
    Unsupported,
)
from dutyfree.guest.backlog import Backlog
from dutyfree.guest.limits import LimitCounters
from dutyfree.wire.exchange import Exchange
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import Exit, Reason, Refused

BACKSTOP_GRACE_S: Final = 5.0
WINDOW_BYTES: Final = 1024 * 1024
SIGKILL: Final = 9
MAX_SIZE_BYTES: Final = 2**62
"""The largest limit that is sent to a guest."""
USERS_HINT: Final = "cells made by root, containers and microVMs have users (Capability.USERS)"
_LATE_S: Final = 0.5
_QUOTED_CHARACTERS: Final = 200


class ActionExchange(Exchange):
    """An exchange with an end that can be awaited, and a deadline in case the guest does not enforce the timeout."""

    def __init__(self, output_credit_bytes: int, known_limits: LimitCounters) -> None:
        super().__init__(output_credit_bytes)
        self.start_ns = time.monotonic_ns()
        self.end_ns = 0
        self.known_limits = known_limits
        self.end: Exit | None = None
        self.abandoned = False
        self._error: DutyfreeError | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    def arm(self, seconds: float) -> None:
        """End the channel if the action has not ended after `seconds`."""
        self.deadline_s = self._loop.time() + seconds
        self.channel.watch(self.deadline_s)

    def extend(self, seconds: float) -> None:
        self.deadline_s = max(self.deadline_s + seconds, self._loop.time() + BACKSTOP_GRACE_S)

    def disarm(self) -> None:
        """Wait for the end without a deadline."""
        self.deadline_s = math.inf

    def abandon(self) -> None:
        """Kill the action's process tree and ignore its further output. Idempotent."""
        if self.finished or self.abandoned:
            return
        self.abandoned = True
        self.signal(SIGKILL, tree=True)
        self.withdraw_input()
        self.arm(BACKSTOP_GRACE_S)
        self.wake()

    async def result(self) -> Exit:
        """The end of the action. Raises the refusal of the action, or the error that ended the channel."""
        while not self.finished:
            await self.changed()
        self.check()
        assert self.end is not None
        return self.end

    async def opened(self) -> None:
        """Return when the action is up, or over already; from then on it has no deadline. Raises as `result` does."""
        try:
            while not self.up and not self.finished:
                await self.changed()
            self.check()
        except BaseException:
            self.abandon()
            raise
        self.disarm()

    async def settled(self) -> None:
        """Return when the action is over, however it ended."""
        while not self.finished:
            await self.changed()

    def check(self) -> None:
        """Raise the refusal of the action, or the error that ended the channel."""
        if self._error is not None:
            raise self._error

    async def changed(self) -> None:
        """Return after the next `wake`."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def wake(self) -> None:
        """Wake all waiters; each checks its condition again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def ended(self, end: Exit | Refused) -> None:
        self.end_ns = time.monotonic_ns()
        if isinstance(end, Exit):
            self.end = end
        else:
            self._error = _refusal(end)
        self._finish()

    def failed(self, error: DutyfreeError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.disarm()
        self.withdraw_input()
        self.wake()

    def overdue(self) -> None:
        if self.channel.standing_still or self._loop.time() - self.deadline_s > _LATE_S:
            # The guest was paused, or this loop was late: the end of the action may be waiting to be read.
            self.arm(BACKSTOP_GRACE_S)
        else:
            self.channel.fail(DeadlineExceeded("the guest did not end an action in time"))


class Collected(ActionExchange):
    """Keeps the output up to a limit.

    The first credit covers the whole limit: the output is held in memory anyway, and no further credit is needed.
    """

    def __init__(self, limit_bytes: int, known_limits: LimitCounters) -> None:
        # Without credit, the guest stops reading the pipes; past the output limit it must read on, and drop the rest.
        super().__init__(min(limit_bytes, MAX_SIZE_BYTES) + WINDOW_BYTES, known_limits)
        self._room_bytes = limit_bytes
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.truncated = False

    def output(self, stream: int, data: bytes) -> None:
        if self.abandoned:
            return
        if len(data) > self._room_bytes:
            self.truncated = True
            data = data[: self._room_bytes]
        self._room_bytes -= len(data)
        kept = self.stdout if stream == STDOUT else self.stderr
        kept += data


class Streamed(ActionExchange):
    """Hands its output over as it arrives; for a reader that stops, at most `WINDOW_BYTES` are held in memory."""

    def __init__(self, known_limits: LimitCounters, limit_bytes: int | None = None) -> None:
        super().__init__(WINDOW_BYTES, known_limits)
        self._backlog = Backlog()
        self._room_bytes = limit_bytes
        self._owed_bytes = 0
        self._discards = False
        self._input_turn = asyncio.Lock()
        self._input_closed = False
        self.truncated = False

    def output(self, stream: int, data: bytes) -> None:
        if self.abandoned or self._discards:
            self._owe(len(data))
            return
        kept = data if self._room_bytes is None else data[: self._room_bytes]
        if len(kept) < len(data):
            self.truncated = True
            self._owe(len(data) - len(kept))
        if self._room_bytes is not None:
            self._room_bytes -= len(kept)
        if kept:
            self._backlog.put(stream, kept)
            self.wake()

    async def take(self) -> tuple[int, bytes] | None:
        """The next (stream, data); None when the action has ended and all was taken. Raises as `result` does."""
        while not self._backlog:
            self.check()
            if self.finished or self.abandoned:
                return None
            await self.changed()
        stream, data = self._backlog.take()
        self._owe(len(data))
        return stream, data

    def discard(self) -> None:
        """Drop all output, what has arrived and what will arrive."""
        self._discards = True
        self._owed_bytes += len(self._backlog)
        self._backlog.clear()
        self._pay()

    def abandon(self) -> None:
        super().abandon()
        self.discard()

    async def give(self, data: bytes) -> None:
        """Send input; returns when the guest has room for it, or when the action has ended."""
        if self._input_closed:
            raise InvalidRequest("the input of this action was ended")
        async with self._input_turn:
            self.check()
            if not self.finished and not self.abandoned:
                self.offer_input(data)
            while self.input_waits:
                await self.changed()
            self.check()

    def give_last(self, data: bytes) -> None:
        """Send the last of the input, without waiting until the guest has room."""
        self._input_closed = True
        self.offer_input(data, last=True)

    async def end_input(self) -> None:
        """Close the action's input after all that was given. Idempotent."""
        if self._input_closed:
            return
        self._input_closed = True
        async with self._input_turn:
            if not self.finished and not self.abandoned:
                self.offer_input(b"", last=True)

    def _owe(self, size_bytes: int) -> None:
        """Credit is returned in large pieces: a guest that sends single bytes must not cause one frame for each."""
        self._owed_bytes += size_bytes
        if self._owed_bytes >= WINDOW_BYTES // 4:
            self._pay()

    def _pay(self) -> None:
        if self._owed_bytes and not self.finished:
            self.grant(self._owed_bytes)
        self._owed_bytes = 0

    def overdue(self) -> None:
        if self._backlog:
            # The guest cannot end the action before its output was taken: the reader is late, not the guest.
            self.arm(BACKSTOP_GRACE_S)
        else:
            super().overdue()


class Opened(ActionExchange):
    """A session's shell: no output of its own, and a STARTED to wait for."""

    expects_started = True

    def __init__(self, known_limits: LimitCounters) -> None:
        super().__init__(0, known_limits)

    def output(self, stream: int, data: bytes) -> None:
        """Never called: the guest has no credit for output."""


class OnTerminal(Streamed):
    """A command on a pseudo-terminal, with a STARTED to wait for."""

    expects_started = True


def _refusal(refused: Refused) -> DutyfreeError:
    if refused.reason in (Reason.CONNECT, Reason.LISTEN):
        return port_failure("listen" if refused.reason == Reason.LISTEN else "connect", refused.errno)
    text = refused.text.decode("utf-8", "replace")[:_QUOTED_CHARACTERS]
    if refused.reason == Reason.CAPACITY:
        return CapacityError(f"the sandbox has no room for another action: {text!r}")
    if refused.reason == Reason.CWD:
        return InvalidRequest(f"the working directory cannot be entered: {text!r}")
    if refused.reason == Reason.NO_SUCH_SESSION:
        return SessionEnded("the session's shell has exited", hint="open another session")
    if refused.reason == Reason.NO_SHELL:
        return Unsupported(f"the sandbox has no shell: {text!r}")
    if refused.reason == Reason.NO_SUCH_USER:
        hint = "name a user of the sandbox's own /etc/passwd, or give a uid, which needs no entry there"
        return InvalidRequest(f"the action cannot run as this user: {text!r}", hint=hint)
    if refused.reason == Reason.IDS:
        unmapped = "the sandbox has no such id: a cell has those from 0 to 65535"
        hint = unmapped if refused.errno == errno.EINVAL else USERS_HINT
        return Unsupported(f"the sandbox cannot change ids: {text!r}", hint=hint)
    return InvalidRequest(f"the guest refused the action: {text!r}")


def port_failure(operation: str, number: int) -> PortFailed:
    """The error for an errno of the sandbox's kernel, which is as hostile as all that a guest sends."""
    if number not in errno.errorcode:
        number = errno.EIO
    hint = None
    if number == errno.ECONNREFUSED:
        hint = "no program listens on this port; wait until one does (wait_for_port)"
    return PortFailed(f"cannot {operation} in the sandbox: {os.strerror(number)}", errno=number, hint=hint)
