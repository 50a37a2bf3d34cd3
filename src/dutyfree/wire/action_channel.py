"""Actions multiplexed on one stream, whatever carries the frames.

The guest is hostile: a frame that breaks the rules raises GuestMisbehaved, which ends the channel.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from dutyfree.errors import DutyfreeError, GuestMisbehaved, InvalidRequest
from dutyfree.wire.exchange import Exchange
from dutyfree.wire.frames import MAX_PAYLOAD_BYTES, FrameKind, encode_frame
from dutyfree.wire.messages import (
    Exit,
    HostMessage,
    InputCredit,
    Output,
    OutputEnd,
    Refused,
    Request,
    Started,
    StoodStill,
)


class ActionChannel(ABC):
    """Any number of actions on one stream: ids, credits and ends, whatever carries the frames.

    `Channel` speaks to a guest itself. Another kind reaches the guest through a server.
    """

    _write: Callable[[bytes], None]
    """Sends whole frames; a dead channel drops them. An attribute, since every action needs it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchanges: dict[int, Exchange] = {}
        self._error: DutyfreeError | None = None
        self._death_listeners: list[Callable[[], None]] = []
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """For all deadlines of the channel: nearly all actions end before theirs, and a timer for each takes time."""
        self._rings_s = math.inf
        """When `_timer` rings: at the first deadline, or earlier."""
        self.standing_still = False
        """True while the guest is paused, or cannot be reached for a moment: its deadlines are extended."""
        self.refuses = False
        """True while the guest's owner has paused it: new actions are refused."""

    @property
    def alive(self) -> bool:
        """Whether actions can be sent."""
        return self._error is None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._exchanges

    @property
    @abstractmethod
    def congested(self) -> bool:
        """Whether so much is waiting to be sent that the caller should wait (see `drained`)."""

    @abstractmethod
    def send_data(self, header: bytes, data: memoryview) -> None:
        """Send an INPUT frame, its payload without a copy where it can be written at once."""

    @abstractmethod
    def _next_id(self) -> int:
        """An id that no action on this stream has had. Raises SubstrateFailed when there are no more."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Send and receive nothing more: the channel has failed."""

    @abstractmethod
    def close(self) -> None:
        """End the channel because its sandbox ends. Calls under way raise SubstrateFailed."""

    async def drained(self) -> None:
        """Return once the channel is not congested. Raises the error that ended the channel, if that happens first."""
        while self.congested and self._error is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        self.check()

    def check(self) -> None:
        """Raise the error that ended the channel, if it has ended."""
        if self._error is not None:
            raise self._copy_of_error()

    def start(self, exchange: Exchange, request: Request) -> None:
        """Give the exchange an id and send the request under it. Raises InvalidRequest if it cannot be sent."""
        self._write(self._begin(exchange, request))

    def start_all(self, exchanges: Iterable[Exchange], request: Request) -> None:
        """As `start` of the same request for each exchange, in one message."""
        frames = bytearray()
        try:
            for exchange in exchanges:
                frames += self._begin(exchange, request)
        finally:
            self._write(bytes(frames))

    def _begin(self, exchange: Exchange, request: Request) -> bytes:
        self.check()
        payload = self._payload(request)
        if (size_bytes := len(payload)) > MAX_PAYLOAD_BYTES:
            del payload  # there may be secrets in it, and reports of errors show locals
            raise InvalidRequest(
                f"command and environment take {size_bytes} bytes; at most {MAX_PAYLOAD_BYTES} can be sent",
                hint="write long scripts to a file, or send them as stdin",
            )
        action_id = self._next_id()
        exchange.id, exchange.channel = action_id, self
        self._exchanges[action_id] = exchange
        return encode_frame(FrameKind.RUN, action_id, payload)

    def _payload(self, request: Request) -> bytes:
        return request.payload()

    def send(self, message: HostMessage) -> None:
        """Send anything but a RUN; a dead channel drops it."""
        self._write(message.encode())

    def stood_still(self, seconds: float, *, clock_went_on: bool) -> None:
        """The guest stood still for that long: the deadlines of all actions under way move.

        `clock_went_on`: the guest's own clock did not stand still, so that its deadlines move, too.
        """
        for exchange in self._exchanges.values():
            exchange.extend(seconds)
        if clock_went_on:
            self.send(StoodStill(math.ceil(seconds * 1000)))

    def watch(self, deadline_s: float) -> None:
        """Look at that time whether an action is overdue; actions have their deadlines in `Exchange.deadline_s`."""
        if deadline_s < self._rings_s and self._error is None:
            if self._timer is not None:
                self._timer.cancel()
            self._rings_s = deadline_s
            self._timer = self._loop.call_at(deadline_s, self._look)

    def _look(self) -> None:
        self._timer, self._rings_s = None, math.inf
        now_s = self._loop.time()
        for exchange in list(self._exchanges.values()):
            if exchange.deadline_s <= now_s:
                exchange.overdue()
        self.watch(min((each.deadline_s for each in self._exchanges.values()), default=math.inf))

    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the channel ends, for any reason."""
        self._death_listeners.append(listener)

    def fail(self, error: DutyfreeError) -> None:
        """End the channel: nothing more is sent or read, and every call under way raises the error. Idempotent."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._disconnect()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.finished = True
            exchange.failed(self._copy_of_error())
        for listener in self._death_listeners:
            listener()

    def _copy_of_error(self) -> DutyfreeError:
        # One instance raised in many tasks would collect all their tracebacks.
        assert self._error is not None
        return type(self._error)(self._error.message, hint=self._error.hint)

    def _link_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        for exchange in list(self._exchanges.values()):
            exchange.pump()

    def _take_for_action(self, message: Output | OutputEnd | Exit | Refused | Started | InputCredit) -> None:
        exchange = self._exchanges.get(message.id)
        if exchange is None:
            raise GuestMisbehaved(f"{type(message).__name__} for action {message.id}, which is not under way")
        if isinstance(message, Output):
            exchange.output_credit_bytes -= len(message.data)
            if exchange.output_credit_bytes < 0:
                raise GuestMisbehaved(f"action {message.id} sent more output than it was allowed")
            exchange.output(message.stream, message.data)
        elif isinstance(message, Exit | Refused):
            del self._exchanges[message.id]
            exchange.finished = True
            exchange.ended(message)
        elif isinstance(message, InputCredit):
            exchange.input_room(message.size_bytes)
        elif isinstance(message, OutputEnd):
            exchange.output_ended()
        elif exchange.expects_started:
            exchange.expects_started = False
            exchange.up = True
            exchange.started(message)
        else:
            raise GuestMisbehaved(f"action {message.id} sent a STARTED that was not expected")
