"""A stream of frames that survives its connection: both sides keep what the other may not have received. Pure.

Each side counts the bytes of all frames that it has taken, and says so now and then. After a reconnection each side
says it once more, and the other sends the rest again. So every frame is taken once, in order, or the stream is over.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from dutyfree.errors import GuestMisbehaved
from dutyfree.protocol.frames import NodeFrame
from dutyfree.wire.frames import HEADER, Frame, FrameDecoder, Rule, encode_frame

ACK_EVERY_BYTES: Final = 64 * 1024
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""The most that is kept for a peer that does not acknowledge: more ends the stream."""
_COUNT: Final = struct.Struct("<Q")


class ResumableStream:
    """One side of the stream. Without a connection, frames are kept for the next one."""

    def __init__(self, rules: Mapping[int, Rule], on_overflow: Callable[[], None]) -> None:
        """`rules` are those of the frames that the peer may send. `on_overflow`: more is kept than may be."""
        self._rules = rules
        self._on_overflow = on_overflow
        self._decoder = FrameDecoder(rules)
        self._write: Callable[[bytes], None] | None = None
        self._kept: deque[bytes] = deque()
        self._first = 0
        """The offset of the first kept frame."""
        self._end = 0
        self.received = 0
        self._acknowledged = 0
        """How much of `received` was acknowledged to the peer."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._write is not None

    @property
    def kept_bytes(self) -> int:
        """What was sent, or waits to be sent, and is not acknowledged."""
        return self._end - self._first

    def connect(self, write: Callable[[bytes], None], peer_received: int) -> None:
        """Go on over a new connection. Raises GuestMisbehaved if the peer has received what was never sent."""
        self._forget_until(peer_received)
        if self._first < peer_received:  # several frames that were sent together: the peer has some of them
            self._kept[0] = self._kept[0][peer_received - self._first :]
            self._first = peer_received
        self._decoder = FrameDecoder(self._rules)
        self._acknowledged = self.received
        self._write = write
        if self._kept:
            write(b"".join(self._kept))

    def disconnect(self) -> None:
        """The connection is lost; half a frame that it had brought is sent again."""
        self._write = None

    def send(self, frame: bytes) -> None:
        """Send whole frames, now or over the next connection."""
        self._kept.append(frame)
        self._end += len(frame)
        if self._write is not None:
            self._write(frame)
        if self._end - self._first > MAX_KEPT_BYTES:
            self._on_overflow()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in the order in which they are to be taken. Raises GuestMisbehaved."""
        frames = []
        for frame in self._decoder.feed(data):
            if frame.kind == NodeFrame.ACK:
                self._forget_until(*_COUNT.unpack(frame.payload))
            else:
                self.received += HEADER.size + len(frame.payload)
                frames.append(frame)
        if self.received - self._acknowledged >= ACK_EVERY_BYTES:
            self.acknowledge()
        return frames

    def acknowledge(self) -> None:
        """Tell the peer what was received: it forgets that, and knows that this side lives."""
        if self._write is not None:
            self._acknowledged = self.received
            self._write(encode_frame(NodeFrame.ACK, 0, _COUNT.pack(self.received)))

    @property
    def owes(self) -> bool:
        """Whether the peer does not know of all that was received."""
        return self.received != self._acknowledged

    def _forget_until(self, offset: int) -> None:
        if not self._first <= offset <= self._end:
            raise GuestMisbehaved(f"the peer received {offset} bytes of {self._first} to {self._end}")
        while self._kept and self._first + len(self._kept[0]) <= offset:
            self._first += len(self._kept.popleft())
