"""One persistent stream to a guest, with any number of actions multiplexed on it.

The guest is hostile: a frame that breaks the rules ends the channel, and every call under way raises the reason.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Final

from dutyfree.errors import DeadlineExceeded, GuestMisbehaved, LinkFailed, SubstrateFailed
from dutyfree.wire.action_channel import ActionChannel
from dutyfree.wire.frames import FROM_GUEST, MAX_ID, FrameDecoder
from dutyfree.wire.link import Link
from dutyfree.wire.messages import VERSION, Fault, GuestHello, GuestMessage, HostHello, Pong, Quit, decode_guest

HANDSHAKE_TIMEOUT_S: Final = 10.0
_QUOTED_CHARACTERS: Final = 200


class Channel(ActionChannel):
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
        super().__init__()
        self._unwrap = unwrap
        self._decoder = FrameDecoder(FROM_GUEST)
        self._last_id = 0
        self._greeting: GuestHello | None = None
        self._greeted = asyncio.Event()
        """Set by the guest's greeting, or by the end of the channel."""
        self._handshake_timeout_s = handshake_timeout_s
        self._greeting_due_s = self._loop.time() + handshake_timeout_s
        self.watch(self._greeting_due_s)
        self._link = Link(
            read_fd, write_fd, on_bytes=self._receive, on_end=self._link_ended, on_drained=self._link_drained
        )
        self._write = self._link.write
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
    def congested(self) -> bool:
        return self._link.congested

    async def handshake(self) -> GuestHello:
        """The guest's greeting. Raises DeadlineExceeded, LinkFailed, GuestMisbehaved or SubstrateFailed."""
        await self._greeted.wait()
        self.check()
        assert self._greeting is not None
        return self._greeting

    def send_data(self, header: bytes, data: memoryview) -> None:
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

    def close(self) -> None:
        """Send QUIT, so that the guest kills everything and exits, and close. Calls under way raise SubstrateFailed."""
        self.send(Quit())
        self.fail(SubstrateFailed("the sandbox was destroyed while this was under way"))

    def _next_id(self) -> int:
        if self._last_id == MAX_ID:
            raise SubstrateFailed("the stream has used up its action ids", hint="create a new sandbox")
        self._last_id += 1
        return self._last_id

    def _disconnect(self) -> None:
        self._link.close()
        self._greeted.set()

    def _look(self) -> None:
        if self._greeting_due_s <= self._loop.time():
            self.fail(DeadlineExceeded(f"the guest sent no HELLO within {self._handshake_timeout_s:g} s"))
        super()._look()
        self.watch(self._greeting_due_s)

    def _link_ended(self, reason: str) -> None:
        self.fail(LinkFailed(reason))

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

    def _greet(self, greeting: GuestHello) -> None:
        if self._greeting is not None:
            raise GuestMisbehaved("the guest sent HELLO twice")
        if not 1 <= greeting.version <= VERSION:
            raise GuestMisbehaved(f"the guest answered with protocol version {greeting.version}")
        self._greeting, self._greeting_due_s = greeting, math.inf
        self._greeted.set()
