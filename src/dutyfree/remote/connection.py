"""The client's one connection to a node: calls and actions, multiplexed; it comes back by itself when it is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from dutyfree.codec import ERROR
from dutyfree.codec.values import natural, number, text
from dutyfree.errors import (
    DeadlineExceeded,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    LinkFailed,
    SubstrateFailed,
)
from dutyfree.protocol.frames import (
    FROM_NODE,
    VERSION,
    WELCOME_ONLY,
    NodeFrame,
    decode_document,
    decode_plain,
    encode_document,
    encode_plain,
)
from dutyfree.protocol.resumable import ResumableStream
from dutyfree.remote.address import CONNECT_S, Address
from dutyfree.remote.pipe import Pipe
from dutyfree.tables import Table
from dutyfree.wire.frames import HEADER, MAX_ID, Frame, FrameDecoder, FrameKind, encode_frame

if TYPE_CHECKING:
    import ssl

CALL_S: Final = 60.0
"""The time limit of a call that has none of its own."""
GRACE_S: Final = 15.0
"""How much longer than the node's own limit a call may take."""
CANCEL_S: Final = 10.0
"""How long a call that was cancelled may take to end."""
ACK_AFTER_S: Final = 0.2
KEEP_ALIVE_S: Final = 10.0
SILENT_S: Final = 45.0
CONGESTED_BYTES: Final = 8 * 1024 * 1024
_FIRST_RETRY_S: Final = 0.02
_LONGEST_RETRY_S: Final = 1.0


class Channel(Protocol):
    """What takes the frames of actions: `remote.channel.RemoteChannel`."""

    standing_still: bool
    refuses: bool

    def take(self, frame: Frame) -> None:
        """A frame of one of its actions."""

    def take_failure(self, action_id: int, error: DutyfreeError) -> None:
        """One of its actions has failed."""

    def fail(self, error: DutyfreeError) -> None:
        """The node is lost, with all that was under way."""

    def room(self) -> None:
        """There is room for frames again."""


class NodeConnection:
    """`open` connects; `close` ends it. Everything between waits for a connection that is lost for a moment."""

    def __init__(self, address: Address, token: str, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._stream = ResumableStream(FROM_NODE, self._overflow)
        self._caller: str | None = None
        self._resume_s = 30.0
        self._last_id = 0
        self._calls: dict[int, asyncio.Future[tuple[Any, bytes]]] = {}
        self._late: dict[int, Callable[[Any], None]] = {}
        """What is to be done with the answers to calls that were given up, by their ids."""
        self._channels: dict[int, Channel] = {}
        """By the ids of actions that are under way."""
        self._boxes: dict[int, Channel] = {}
        """Every channel, by the number of its box."""
        self._pipe: Pipe | None = None
        self._returning: asyncio.Task[None] | None = None
        """What connects again."""
        self._ack: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._failed = asyncio.Event()
        self._error: DutyfreeError | None = None
        self._unreachable: DutyfreeError | None = None
        """Why nothing can be sent now, though it is still tried to connect again."""
        self._was_congested = False
        self._room: asyncio.Future[None] | None = None
        self.life = 0
        """Grows when a node is lost: numbers of boxes mean nothing to the next one, or something else."""
        self.owner = ""
        """What the token says: whose leases these are."""

    # Life.

    async def open(self) -> None:
        """Connect, and go on until `close`. Raises LinkFailed, Unauthenticated, InvalidRequest."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect()
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            hint = "is `dutyfree serve` running there?"
            raise LinkFailed(f"cannot reach the server at {self._address}: {reason}", hint=hint) from None

    async def close(self) -> None:
        """End the connection, and fail what is under way. Idempotent."""
        pipe = self._pipe
        if self._stream.connected:
            self.tell("leave")  # if it is lost, the node waits for a while
        self._fail(InvalidRequest("the host was closed while this was under way"))
        if self._returning is not None:
            await asyncio.wait({self._returning})
        if pipe is not None:
            await pipe.end()

    async def wait_lost(self) -> None:
        """Return when the connection has failed for good."""
        await self._failed.wait()

    def _receive(self, data: bytes) -> None:
        """Take what the node sends."""
        self._heard_s = self._loop.time()
        try:
            for frame in self._stream.feed(data):
                self._take(frame)
        except GuestMisbehaved as error:
            self._fail(LinkFailed(f"the server broke the protocol: {error.message}"))
            return
        if self._stream.owes and self._ack is None:
            self._ack = self._loop.call_later(ACK_AFTER_S, self._acknowledge)
        if self._was_congested and not self.congested:
            self._tell_of_room()

    def _lost(self) -> None:
        """The connection is lost: the deadlines of guests do not run until it is back."""
        self._drop()
        if self._error is None:
            for channel in self._boxes.values():
                channel.standing_still = True
            self._returning = self._loop.create_task(self._return())

    def _drop(self) -> None:
        self._stream.disconnect()
        for timer in (self._ack, self._alive):
            if timer is not None:
                timer.cancel()
        self._ack = None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.transport.abort()

    async def _return(self) -> None:
        try:
            await self._reconnect()
        except DutyfreeError as error:
            self._fail(error)

    async def _reconnect(self) -> None:
        """Connect again. Raises what the node refuses with.

        After `resume_s` the node has given this client up, so that all that is under way fails. It is still tried, for
        a node that is started again: what is asked for then works again.
        """
        deadline_s = self._loop.time() + self._resume_s
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._connect()
                    return
            except (OSError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
            if self._unreachable is None and self._loop.time() > deadline_s:
                for_s = f"for {self._resume_s:g} s: {reason}"
                self._unreachable = LinkFailed(f"the server at {self._address} could not be reached {for_s}")
                self._lose(self._unreachable.message, LinkFailed)
                self._stream = ResumableStream(FROM_NODE, self._overflow)
                self._caller = None
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S)

    async def _connect(self) -> None:
        pipe = await self._address.open(self._tls)
        try:
            hello = {"version": VERSION, "token": self._token, "caller": self._caller}
            pipe.transport.write(encode_plain(NodeFrame.HELLO, {**hello, "received": self._stream.received}))
            welcome = await _welcome(pipe)
            caller = welcome.required("caller", text)
            received = welcome.required("received", natural)
            self._resume_s = welcome.required("resume_s", number)
            self.owner = welcome.required("owner", text)
        except BaseException:
            await pipe.end()
            raise
        if self._caller is not None and caller != self._caller:
            # The node was restarted, or has waited too long: it knows nothing of what was under way.
            self._lose("the server was restarted, or did not wait any longer: the lease is lost")
            self._stream = ResumableStream(FROM_NODE, self._overflow)
        self._caller = caller
        self._pipe = pipe
        self._unreachable = None
        self._heard_s = self._loop.time()
        try:
            self._stream.connect(pipe.transport.write, received)
        except GuestMisbehaved as error:
            self._pipe = None
            await pipe.end()
            raise LinkFailed(f"the server broke the protocol: {error.message}") from None
        for channel in self._boxes.values():
            channel.standing_still = channel.refuses  # of a paused sandbox, deadlines still do not run
        self._alive = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)
        pipe.hand_over(self._receive, self._lost)

    def _keep_alive(self) -> None:
        if self._loop.time() - self._heard_s > SILENT_S and self._pipe is not None:
            self._pipe.transport.abort()  # which is told as a loss
            return
        self._stream.acknowledge()
        self._alive = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def _acknowledge(self) -> None:
        self._ack = None
        if self._stream.owes:
            self._stream.acknowledge()

    def _overflow(self) -> None:
        self._loop.call_soon(self._fail, LinkFailed("the server does not take what it is sent"))

    def _fail(self, error: DutyfreeError) -> None:
        """Nothing more goes over this connection."""
        if self._error is None:
            self._error = error
            self._failed.set()
            self._drop()
            if self._returning is not None:
                self._returning.cancel()
            self._lose(error.message, type(error))

    def _lose(self, message: str, kind: type[DutyfreeError] = SubstrateFailed) -> None:
        """All that is under way fails, and so do all boxes."""
        self.life += 1
        calls, self._calls = self._calls, {}
        self._late.clear()
        for call in calls.values():
            if not call.done():
                call.set_exception(kind(message))
        self._wake()
        self._channels.clear()
        boxes, self._boxes = self._boxes, {}
        for channel in boxes.values():
            channel.fail(kind(message))

    # Frames.

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that callers should wait."""
        congested = self._stream.kept_bytes > CONGESTED_BYTES
        self._was_congested |= congested
        return congested

    def _tell_of_room(self) -> None:
        self._was_congested = False
        self._wake()
        for channel in tuple(self._boxes.values()):
            channel.room()

    def send(self, frames: bytes) -> None:
        """Send whole frames, now or when the connection is back."""
        if self._error is None:
            self._stream.send(frames)

    def next_id(self) -> int:
        """A new id for a call or an action. Raises LinkFailed when they are used up."""
        self.check()
        if self._last_id == MAX_ID:
            raise LinkFailed("the connection has used up its ids", hint="connect again")
        self._last_id += 1
        return self._last_id

    def check(self) -> None:
        """Raise the error that ended the connection, if one did."""
        error = self._error or self._unreachable
        if error is not None:
            raise type(error)(error.message, hint=error.hint)

    def expect(self, action_id: int, channel: Channel) -> None:
        """Frames of this action go to `channel`."""
        self._channels[action_id] = channel

    def add_box(self, number: int, channel: Channel) -> None:
        """A box is attached."""
        self._boxes[number] = channel

    def remove_box(self, number: int) -> None:
        """A box is not needed any more. Idempotent."""
        if (channel := self._boxes.pop(number, None)) is not None:
            self._channels = {key: each for key, each in self._channels.items() if each is not channel}

    def _take(self, frame: Frame) -> None:
        if frame.kind == NodeFrame.ENDED:
            self._fail(LinkFailed(f"the server ended this client: {_failure(frame).message}"))
            return
        if frame.kind == NodeFrame.REPLY or frame.id in self._calls or frame.id in self._late:
            answer = decode_document(frame) if frame.kind == NodeFrame.REPLY else _failure(frame)
            call, late = self._calls.pop(frame.id, None), self._late.pop(frame.id, None)
            if isinstance(answer, DutyfreeError):
                if call is not None and not call.done():
                    call.set_exception(answer)
            elif call is not None and not call.done():
                call.set_result(answer)
            elif late is not None:
                late(answer[0])
            return
        channel = self._channels.get(frame.id)
        if channel is None:
            return  # the action was given up on this side
        if frame.kind == NodeFrame.FAILED:
            del self._channels[frame.id]
            channel.take_failure(frame.id, _failure(frame))
            return
        if frame.kind in (FrameKind.EXIT, FrameKind.REFUSED):
            del self._channels[frame.id]
        channel.take(frame)

    # Calls.

    def tell(self, op: str, **arguments: Any) -> None:
        """Make a call whose answer nobody waits for, if there still is a connection."""
        if self._error is None and self._unreachable is None:
            self.send(encode_document(NodeFrame.CALL, self.next_id(), {"op": op, **arguments}))

    async def call(
        self,
        op: str,
        *,
        body: bytes = b"",
        limit_s: float | None = None,
        undo: Callable[[Any], None] | None = None,
        settle: Callable[[DutyfreeError], None] | None = None,
        **arguments: Any,
    ) -> tuple[Table, bytes]:
        """Make a call. Raises what the node answers with, and DeadlineExceeded past `limit_s` (by default a minute).

        A call that is cancelled or late is cancelled at the node. If the node has carried it out nevertheless, `undo`
        gets its answer. With `settle` a cancelled call waits, some seconds at most, until the node has ended it, and
        `settle` gets the error that it ended with.
        """
        limit_s = CALL_S if limit_s is None else limit_s
        call_id = self.next_id()
        frame = encode_document(NodeFrame.CALL, call_id, {"op": op, **arguments}, body)
        answer: asyncio.Future[tuple[Any, bytes]] = self._loop.create_future()
        try:
            async with asyncio.timeout(limit_s):
                if body:
                    await self._drained()
                self._calls[call_id] = answer
                self.send(frame)
                document, data = await asyncio.shield(answer)
        except BaseException as error:
            if settle is not None and isinstance(error, asyncio.CancelledError):
                await self._settle(call_id, answer, settle)
            self._give_up(call_id, answer, undo)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"the server did not answer {op!r} within {limit_s:g} s") from None
            raise
        if not isinstance(document, dict):
            raise LinkFailed(f"the server answered {op!r} with something that is not a table")
        return Table(document, f"the answer to {op}"), data

    async def _settle(
        self, call_id: int, answer: asyncio.Future[tuple[Any, bytes]], settle: Callable[[DutyfreeError], None]
    ) -> None:
        """Cancel a call, and wait for its end."""
        if call_id in self._calls:
            self.send(encode_frame(NodeFrame.CANCEL, call_id))
        try:
            async with asyncio.timeout(CANCEL_S):
                await asyncio.shield(answer)
        except TimeoutError:
            settle(DeadlineExceeded(f"the server did not cancel a call within {CANCEL_S:g} s"))
        except DutyfreeError as error:
            settle(error)

    def _give_up(
        self, call_id: int, answer: asyncio.Future[tuple[Any, bytes]], undo: Callable[[Any], None] | None
    ) -> None:
        """Nobody waits for a call any more."""
        if self._calls.pop(call_id, None) is not None:
            if undo is not None:
                self._late[call_id] = undo
            self.send(encode_frame(NodeFrame.CANCEL, call_id))
        elif undo is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            undo(answer.result()[0])  # it came at the same moment

    async def _drained(self) -> None:
        """Return when the connection has room. Raises the error that ended it."""
        while self.congested:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)
            self.check()

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)


async def _welcome(pipe: Pipe) -> Table:
    """The node's answer to HELLO. Raises the error that it refuses with, and LinkFailed if it is none."""
    decoder = FrameDecoder(WELCOME_ONLY)
    try:
        head = await pipe.read_exactly(HEADER.size)
        frames = decoder.feed(head) or decoder.feed(await pipe.read_exactly(HEADER.unpack(head)[0]))
        document = decode_plain(frames[0])
    except GuestMisbehaved as error:
        raise LinkFailed(f"the server broke the protocol: {error.message}") from None
    if frames[0].kind == NodeFrame.FAILED:
        raise ERROR.decode_inner(document)
    return Table(document, "WELCOME")


def _failure(frame: Frame) -> DutyfreeError:
    try:
        return ERROR.decode_inner(decode_plain(frame))
    except (InvalidRequest, GuestMisbehaved):
        return LinkFailed("the server answered with an error that cannot be read")
