"""One persistent stream to a guest, with any number of actions multiplexed on it.

The guest is hostile: a frame that breaks the rules ends the channel, and every call under way raises the reason.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterable
from typing import Final

from dutyfree.errors import (
    DeadlineExceeded,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    LinkFailed,
    SubstrateFailed,
)
from dutyfree.wire.exchange import Exchange
from dutyfree.wire.frames import FROM_GUEST, MAX_ID, MAX_PAYLOAD_BYTES, FrameDecoder, FrameKind, encode_frame
from dutyfree.wire.link import Link
from dutyfree.wire.messages import (
    VERSION,
    Exit,
    Fault,
    GuestHello,
    GuestMessage,
    HostHello,
    HostMessage,
    InputCredit,
    Output,
    OutputEnd,
    Pong,
    Quit,
    Refused,
    Run,
    Started,
    StoodStill,
    decode_guest,
)

HANDSHAKE_TIMEOUT_S: Final = 10.0
_QUOTED_CHARACTERS: Final = 200


class Channel:
    """Sends HELLO in its constructor; actions may follow at once, without waiting for the guest's answer.

    It belongs to the event loop that was running when it was created.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        unwrap: Callable[[bytes], bytes] | None = None,
        hello: HostHello | None = None,
    ) -> None:
        """Take ownership of the descriptors, which may be the same one twice, and send `hello` to the guest.

        `unwrap` removes an engine's own framing around the guest's bytes; it may raise GuestMisbehaved.
        """
        self._unwrap = unwrap
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(FROM_GUEST)
        self._exchanges: dict[int, Exchange] = {}
        self._last_id = 0
        self._error: DutyfreeError | None = None
        self._death_listeners: list[Callable[[], None]] = []
        self._greeting: GuestHello | None = None
        self._greeted = asyncio.Event()
        """Set by the guest's greeting, or by the end of the channel."""
        self._drained: asyncio.Future[None] | None = None
        self.standing_still = False
        """True while the guest is paused: its deadlines are extended."""
        self.refuses = False
        """True while the guest's owner has paused it: new actions are refused."""
        self._handshake_timeout_s = handshake_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        """For all deadlines of the channel: nearly all actions end before theirs, and a timer for each takes time."""
        self._rings_s = math.inf
        """When `_timer` rings: at the first deadline, or earlier."""
        self._greeting_due_s = self._loop.time() + handshake_timeout_s
        self.watch(self._greeting_due_s)
        self._link = Link(
            read_fd, write_fd, on_bytes=self._receive, on_end=self._link_ended, on_drained=self._link_drained
        )
        self.send(hello or HostHello(VERSION))

    @classmethod
    def over_socket(
        cls,
        sock: socket.socket,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        hello: HostHello | None = None,
    ) -> Channel:
        """A channel over a connected stream socket, which it takes over."""
        fd = sock.detach()
        return cls(fd, fd, handshake_timeout_s=handshake_timeout_s, hello=hello)

    @property
    def alive(self) -> bool:
        """Whether actions can be sent."""
        return self._error is None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._exchanges

    @property
    def congested(self) -> bool:
        """Whether so much is waiting to be sent that the caller should wait (see `drained`)."""
        return self._link.congested

    async def handshake(self) -> GuestHello:
        """The guest's greeting. Raises DeadlineExceeded, LinkFailed, GuestMisbehaved or SubstrateFailed."""
        await self._greeted.wait()
        self.check()
        assert self._greeting is not None
        return self._greeting

    async def drained(self) -> None:
        """Return once the channel is not congested. Raises the error that ended the channel, if that happens first."""
        while self._link.congested and self._error is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        self.check()

    def check(self) -> None:
        """Raise the error that ended the channel, if it has ended."""
        if self._error is not None:
            raise self._copy_of_error()

    def start(self, exchange: Exchange, request: Run) -> None:
        """Give the exchange an id and send the request under it. Raises InvalidRequest if it cannot be sent."""
        self._link.write(self._begin(exchange, request))

    def start_all(self, exchanges: Iterable[Exchange], request: Run) -> None:
        """As `start` of the same request for each exchange, in one message."""
        frames = bytearray()
        try:
            for exchange in exchanges:
                frames += self._begin(exchange, request)
        finally:
            self._link.write(bytes(frames))

    def _begin(self, exchange: Exchange, request: Run) -> bytes:
        self.check()
        if self._last_id == MAX_ID:
            raise SubstrateFailed("the stream has used up its action ids", hint="create a new sandbox")
        action_id = self._last_id + 1
        payload = request.payload()
        if (size_bytes := len(payload)) > MAX_PAYLOAD_BYTES:
            del payload  # there may be secrets in it, and reports of errors show locals
            raise InvalidRequest(
                f"command and environment take {size_bytes} bytes; at most {MAX_PAYLOAD_BYTES} can be sent",
                hint="write long scripts to a file, or send them as stdin",
            )
        self._last_id = action_id
        exchange.id, exchange.channel = action_id, self
        self._exchanges[action_id] = exchange
        return encode_frame(FrameKind.RUN, action_id, payload)

    def send(self, message: HostMessage) -> None:
        """Send anything but a RUN; a dead channel drops it."""
        self._link.write(message.encode())

    def send_data(self, header: bytes, data: memoryview) -> None:
        """Send an INPUT frame, its payload without a copy where it can be written at once."""
        self._link.write_parts(header, data)

    @property
    def untaken_bytes(self) -> int:
        """Bytes that were sent and that the guest has not read, as the kernel counts them (whole blocks)."""
        return self._link.untaken_bytes

    def pause(self) -> None:
        """Neither read nor write until `resume`; messages sent meanwhile wait. Idempotent."""
        self._link.pause()

    def resume(self) -> None:
        """Read and write again. Idempotent, also on a channel that has ended."""
        self._link.resume()

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

    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the channel ends, for any reason."""
        self._death_listeners.append(listener)

    def close(self) -> None:
        """Send QUIT, so that the guest kills everything and exits, and close. Calls under way raise SubstrateFailed."""
        self.send(Quit())
        self.fail(SubstrateFailed("the sandbox was destroyed while this was under way"))

    def fail(self, error: DutyfreeError) -> None:
        """End the channel: nothing more is sent or read, and every call under way raises the error. Idempotent."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._link.close()
        self._greeted.set()
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

    def _look(self) -> None:
        self._timer, self._rings_s = None, math.inf
        now_s = self._loop.time()
        if self._greeting_due_s <= now_s:
            self.fail(DeadlineExceeded(f"the guest sent no HELLO within {self._handshake_timeout_s:g} s"))
        for exchange in list(self._exchanges.values()):
            if exchange.deadline_s <= now_s:
                exchange.overdue()
        self.watch(min(self._greeting_due_s, *(each.deadline_s for each in self._exchanges.values()), math.inf))

    def _link_ended(self, reason: str) -> None:
        self.fail(LinkFailed(reason))

    def _link_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        for exchange in list(self._exchanges.values()):
            exchange.pump()

    def _receive(self, data: bytes) -> None:
        try:
            if self._unwrap is not None:
                data = self._unwrap(data)
            for frame in self._decoder.feed(data):
                self._take(decode_guest(frame))
                if self._error is not None:
                    return
        except GuestMisbehaved as error:
            self.fail(error)

    def _take(self, message: GuestMessage) -> None:
        if isinstance(message, GuestHello):
            self._greet(message)
        elif isinstance(message, Fault):
            text = message.text.decode("utf-8", "replace")[:_QUOTED_CHARACTERS]
            self.fail(SubstrateFailed(f"the guest reported a fault: {text!r}"))
        elif isinstance(message, Pong):
            raise GuestMisbehaved("a PONG without a PING")
        elif self._greeting is None:
            raise GuestMisbehaved("the guest sent a frame before its HELLO")
        else:
            self._take_for_action(message)

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

    def _greet(self, greeting: GuestHello) -> None:
        if self._greeting is not None:
            raise GuestMisbehaved("the guest sent HELLO twice")
        if not 1 <= greeting.version <= VERSION:
            raise GuestMisbehaved(f"the guest answered with protocol version {greeting.version}")
        self._greeting, self._greeting_due_s = greeting, math.inf
        self._greeted.set()
