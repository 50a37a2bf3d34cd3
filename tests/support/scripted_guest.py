"""A guest that sends what a test scripts, correct or not, over a socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from dutyfree.wire.frames import FROM_HOST, HEADER, STDOUT, FrameDecoder, FrameKind
from dutyfree.wire.messages import (
    VERSION,
    Exit,
    GuestHello,
    GuestMessage,
    HostHello,
    HostMessage,
    InputCredit,
    Output,
    Pong,
    Run,
    decode_host,
)

M = TypeVar("M", bound=HostMessage)


class ScriptedGuest:
    """The guest's end of a stream, one step at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._decoder = FrameDecoder(FROM_HOST)
        self._heard: list[HostMessage] = []

    async def say(self, *what: GuestMessage | bytes) -> None:
        """Send messages, or raw bytes, in one go."""
        data = b"".join(each if isinstance(each, bytes) else each.encode() for each in what)
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def hear(self, kind: type[M]) -> M:
        """The next message of that kind; those before it are dropped. Raises EOFError at the end of the stream."""
        while True:
            while self._heard:
                message = self._heard.pop(0)
                if isinstance(message, kind):
                    return message
            data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
            if not data:
                raise EOFError
            self._heard += map(decode_host, self._decoder.feed(data))

    async def greet(self) -> None:
        """Answer the host's HELLO as a guest should."""
        await self.hear(HostHello)
        await self.say(GuestHello(VERSION, os.getpid()))

    async def greet_and_hear_run(self) -> Run:
        """Greet, and wait for the first action."""
        await self.greet()
        return await self.hear(Run)

    def hang_up(self) -> None:
        """Close this end."""
        self.sock.close()


async def garbage(guest: ScriptedGuest) -> None:
    await guest.hear(HostHello)
    await guest.say(b"\xde\xad\xbe\xef" * 64)


async def wrong_length(guest: ScriptedGuest) -> None:
    await guest.greet_and_hear_run()
    await guest.say(HEADER.pack(0xFFFF_FFFF, FrameKind.EXIT, 0, 0, 1))


async def unknown_kind(guest: ScriptedGuest) -> None:
    await guest.greet_and_hear_run()
    await guest.say(HEADER.pack(0, 99, 0, 0, 0))


async def unasked_reply(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(Exit(run.id + 1000, 0, None))


async def unasked_pong(guest: ScriptedGuest) -> None:
    await guest.greet_and_hear_run()
    await guest.say(Pong(b"hello"))


async def beyond_credit(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    for _ in range(run.credit // 65536 + 1):
        await guest.say(Output(run.id, STDOUT, b"x" * 65536))


async def empty_credit(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(InputCredit(run.id, 0))


async def absurd_credit(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(InputCredit(run.id, 2**64 - 1))


async def unearned_credit(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(InputCredit(run.id, 65536))


async def exit_twice(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(Exit(run.id, 0, None))
    await guest.hear(Run)
    await guest.say(Exit(run.id, 0, None))


async def exit_without_code(guest: ScriptedGuest) -> None:
    run = await guest.greet_and_hear_run()
    await guest.say(Exit(run.id, None, None))


async def hello_twice(guest: ScriptedGuest) -> None:
    await guest.greet_and_hear_run()
    await guest.say(GuestHello(VERSION, 1))


async def wrong_version(guest: ScriptedGuest) -> None:
    await guest.hear(HostHello)
    await guest.say(GuestHello(VERSION + 1, 1))


async def reply_before_hello(guest: ScriptedGuest) -> None:
    run = await guest.hear(Run)
    await guest.say(Exit(run.id, 0, None))


MISCHIEFS: Mapping[str, Callable[[ScriptedGuest], Awaitable[None]]] = {
    script.__name__: script
    for script in (
        garbage,
        wrong_length,
        unknown_kind,
        unasked_reply,
        unasked_pong,
        beyond_credit,
        empty_credit,
        absurd_credit,
        unearned_credit,
        exit_twice,
        exit_without_code,
        hello_twice,
        wrong_version,
        reply_before_hello,
    )
}
"""Scripts on which the host must raise GuestMisbehaved."""
