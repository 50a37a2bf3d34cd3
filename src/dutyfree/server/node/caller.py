"""One client of the node: its stream, its calls, its actions and the boxes that it has attached to.

It outlives its connections: a client that comes back within `RESUME_S` goes on where it was. After that its actions are
killed, and the leases end that it has asked to end with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from dutyfree.client.box import Box
from dutyfree.codec import ERROR
from dutyfree.errors import (
    CapacityError,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    LeaseLost,
    SandboxGone,
    SubstrateFailed,
)
from dutyfree.protocol.frames import FROM_CLIENT, NodeFrame, decode_document, encode_document, encode_plain
from dutyfree.protocol.resumable import ResumableStream
from dutyfree.server.node.attached import AttachedBox
from dutyfree.server.node.client_run import ClientRun
from dutyfree.server.node.identity import Identity
from dutyfree.server.node.relay import Relay
from dutyfree.wire.frames import Frame, FrameKind
from dutyfree.wire.messages import InputEnd, OutputCredit, Resize, Signal, decode_host

if TYPE_CHECKING:
    from dutyfree.server.node.calls import Calls
    from dutyfree.server.node.node import Node

RESUME_S: Final = 30.0
"""How long a client without a connection is waited for."""
MAX_UNDER_WAY: Final = 8192
"""The most calls, and the most actions, of one client at a time."""
MAX_BOXES: Final = 16_384
MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""The most that the calls of one client may hold while they are under way."""
_WINDOWS: Final = ((64, 256 * 1024), (1024, 8 * 1024), (MAX_UNDER_WAY, 2 * 1024))
"""How much output of one action may be on its way to a client, by how many are under way. If the client stops reading,
all of them together hold less than `resumable.MAX_KEPT_BYTES`: a slow client must not lose its actions."""
_LARGE_BYTES: Final = 64 * 1024
CONGESTED_BYTES: Final = 4 * 1024 * 1024


class Connection(Protocol):
    """A connection of a client: `listener.ClientConnection`."""

    def abort(self) -> None:
        """Drop it."""


class Caller:
    """`calls` carries out its calls. `on_end` is called once, when it is over."""

    def __init__(self, node: Node, identity: Identity, calls: Calls, on_end: Callable[[Caller], None]) -> None:
        self.node = node
        self.id = secrets.token_hex(16)
        self.identity = identity
        self._calls_table = calls
        self._on_end = on_end
        self.connection: Connection | None = None
        """The present connection; None while there is none."""
        self.stream = ResumableStream(FROM_CLIENT, self._overflow)
        self.boxes: dict[int, AttachedBox] = {}
        self.ends_with_it: set[str] = set()
        """Leases that last no longer than their client."""
        self.stalled: set[Relay] = set()
        """Actions whose output waits until the client reads."""
        self.is_blocked = False
        """Whether the connection has no room."""
        self._relays: dict[int, Relay] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._held_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._last_box = 0
        self._numbers: dict[str, list[int]] = {}
        """The numbers of boxes by their lease."""
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self.is_over = False

    # The connection.

    @property
    def congested(self) -> bool:
        """Whether so much waits for the client that guests get no new credit for output."""
        return self.is_blocked or self.stream.kept_bytes > CONGESTED_BYTES

    def connect(self, write: Callable[[bytes], None], received: int) -> None:
        """Go on over a new connection. Raises GuestMisbehaved for a count that cannot be."""
        self.stream.connect(write, received)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self.is_blocked = False
        self.unblock()

    def disconnect(self) -> None:
        """Wait for the client to come back."""
        self.stream.disconnect()
        if not self.is_over and self._waiting is None:
            self._waiting = self._loop.call_later(self.node.resume_s, self.end)

    def unblock(self) -> None:
        """Let output go on if there is room for it."""
        if not self.congested:
            stalled, self.stalled = self.stalled, set()
            for relay in stalled:
                relay.pay()
            room, self._room = self._room, None
            if room is not None:
                room.set_result(None)

    @property
    def window_bytes(self) -> int:
        """How much output a new action may have on its way."""
        return next((window for count, window in _WINDOWS if len(self._relays) < count), _WINDOWS[-1][1])

    def send(self, frame: bytes) -> None:
        """Send a frame to the client, now or when it is back."""
        self.stream.send(frame)

    def fail(self, call_id: int, error: DutyfreeError) -> None:
        """A call or an action of the client has failed."""
        self.send(encode_plain(NodeFrame.FAILED, ERROR.write(error), call_id))

    def end(self) -> None:
        """The client does not come back: end all that it has under way. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self.stream.disconnect()
        if self._waiting is not None:
            self._waiting.cancel()
        for call in self._calls.values():
            call.cancel()
        for relay in tuple(self._relays.values()):
            relay.abandon()
        if self.connection is not None:
            self.connection.abort()
        self._on_end(self)

    def _overflow(self) -> None:
        self._loop.call_soon(self.end)

    # Frames.

    def receive(self, data: bytes) -> None:
        """Take what the connection has brought. Raises GuestMisbehaved, after which the caller must be ended."""
        for frame in self.stream.feed(data):
            self._take(frame)
        if self.stalled or self._room is not None:
            self.unblock()

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.RUN:
            self._start(frame)
        elif frame.kind == NodeFrame.CALL:
            self._call(frame)
        elif frame.kind == NodeFrame.CANCEL:
            if (call := self._calls.get(frame.id)) is not None:
                call.cancel()
        elif (relay := self._relays.get(frame.id)) is not None:  # otherwise it has just ended
            self._steer(relay, frame)

    def _steer(self, relay: Relay, frame: Frame) -> None:
        if frame.kind == FrameKind.INPUT:
            relay.take_input(frame.payload)
            return
        match decode_host(frame):
            case OutputCredit(size_bytes=size_bytes):
                relay.take_credit(size_bytes)
            case Signal(signal=number, tree=tree):
                relay.signal(number, tree=tree)
            case InputEnd():
                relay.take_input_end()
            case Resize(rows=rows, cols=cols):
                relay.resize(rows, cols)

    def _start(self, frame: Frame) -> None:
        self._check_new(frame.id)
        request = ClientRun(frame.payload)
        try:
            if len(self._relays) >= MAX_UNDER_WAY:
                raise CapacityError(f"{MAX_UNDER_WAY} actions of this client are under way already")
            self._relays[frame.id] = self.box(request.box).start(self, frame.id, request)
        except DutyfreeError as error:
            self.fail(frame.id, error)

    def relay(self, client_id: int) -> Relay | None:
        """The action that the client knows by this id, while it runs."""
        return self._relays.get(client_id)

    def relay_ended(self, client_id: int) -> None:
        """Forget an action that has ended."""
        if (relay := self._relays.pop(client_id, None)) is not None:
            self.stalled.discard(relay)

    # Calls.

    def _call(self, frame: Frame) -> None:
        self._check_new(frame.id)
        arguments, body = decode_document(frame)
        if len(self._calls) >= MAX_UNDER_WAY:
            self.fail(frame.id, CapacityError(f"{MAX_UNDER_WAY} calls of this client are under way already"))
            return
        size_bytes = len(frame.payload)
        if self._held_bytes + size_bytes > MAX_HELD_BYTES:
            message = f"the calls of this client that are under way have {MAX_HELD_BYTES} bytes already"
            self.fail(frame.id, CapacityError(message, retry_after_s=1.0))
            return
        self._held_bytes += size_bytes
        call = self._loop.create_task(self._answer(frame.id, arguments, body))
        self._calls[frame.id] = call
        # Not at the end of the task itself: one that is cancelled before its first step never gets there.
        call.add_done_callback(lambda call: self._answered(frame.id, arguments, size_bytes, call))

    async def _answer(self, call_id: int, arguments: Any, body: bytes) -> None:
        try:
            document, data = await self._calls_table.answer(self, arguments, body)
            if len(data) > _LARGE_BYTES:
                await self._drained()
            self.send(encode_document(NodeFrame.REPLY, call_id, document, data))
        except DutyfreeError as error:
            self.fail(call_id, error)
        except Exception as error:
            self._loop.call_exception_handler({"message": "a call of a client failed", "exception": error})
            self.fail(call_id, SubstrateFailed(f"the node failed: {type(error).__name__}"))

    def _answered(self, call_id: int, arguments: Any, size_bytes: int, call: asyncio.Task[None]) -> None:
        del self._calls[call_id]
        self._held_bytes -= size_bytes
        if call.cancelled() and not self.is_over:
            self.fail(call_id, self._cancelled(arguments))

    async def _drained(self) -> None:
        """Return when there is room for large answers."""
        while self.congested:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def _cancelled(self, arguments: Any) -> DutyfreeError:
        """The answer to a call that was cancelled; it says if the call has destroyed its box."""
        attached = self.boxes.get(arguments.get("box", 0)) if isinstance(arguments, dict) else None
        if attached is not None and not attached.box.alive:
            return SandboxGone(f"sandbox {attached.box.id} is gone")
        return InvalidRequest("the call was cancelled")

    def _check_new(self, call_id: int) -> None:
        if call_id in self._relays or call_id in self._calls:
            raise GuestMisbehaved(f"the client used id {call_id} twice")

    # Boxes.

    def attach(self, box: Box) -> AttachedBox:
        """Give a box a number for this client. Raises CapacityError, and Unsupported for one without a guest."""
        if len(self.boxes) >= MAX_BOXES:
            raise CapacityError(f"this client has {MAX_BOXES} boxes already", hint="close some of them")
        self._last_box += 1
        attached = AttachedBox(self._last_box, box)
        self.boxes[self._last_box] = attached
        self._numbers.setdefault(attached.lease_id, []).append(self._last_box)
        return attached

    def box(self, number: int) -> AttachedBox:
        """The box of this number. Raises LeaseLost for one whose lease has ended, InvalidRequest for any other."""
        if (attached := self.boxes.get(number)) is None:
            if 0 < number <= self._last_box:
                raise LeaseLost("the lease of this box has ended")
            raise InvalidRequest(f"this client has no box {number}")
        return attached

    def detach(self, number: int) -> None:
        """The client does not need a box any more. Idempotent."""
        if (attached := self.boxes.pop(number, None)) is not None:
            self._numbers.get(attached.lease_id, []).remove(number)

    def forget(self, lease_id: str) -> None:
        """A lease has ended: its boxes are not needed any more."""
        self.ends_with_it.discard(lease_id)
        for number in self._numbers.pop(lease_id, ()):
            self.boxes.pop(number, None)
