"""Connections against a scripted guest: what a real guest would be too well behaved to show."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from dutyfree.contract import Connection
from dutyfree.errors import CapacityError, GuestMisbehaved, InvalidRequest, LinkFailed, PortFailed, Unsupported
from dutyfree.guest import GuestSandbox
from dutyfree.model import Action
from dutyfree.wire.channel import Channel
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import (
    SOCKET_WINDOW_BYTES,
    Exit,
    GuestMessage,
    Input,
    InputCredit,
    InputEnd,
    Mode,
    Output,
    OutputCredit,
    OutputEnd,
    Refused,
    Run,
    Signal,
    Started,
)
from support.scripted_guest import ScriptedGuest

ENDS = ((b"127.0.0.1", 8000), (b"127.0.0.1", 40000))
MIB = 1024 * 1024


class Pair:
    """A sandbox with ports, and its scripted guest."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.guest = ScriptedGuest(theirs)
        self.sandbox = GuestSandbox("box", Channel.over_socket(ours), destroy=self._nothing, env={}, ports=True)

    async def _nothing(self) -> None:
        pass

    async def dialled(self) -> tuple[Connection, int]:
        dialling = asyncio.create_task(self.sandbox.dial(8000))
        run = await self.guest.hear(Run)
        await self.guest.say(Started(run.id, ENDS))
        return await dialling, run.id


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.guest.greet()
    yield pair
    await pair.sandbox.destroy()
    pair.guest.hang_up()


async def test_a_dial_says_where_to_and_learns_both_addresses(pair: Pair) -> None:
    dialling = asyncio.create_task(pair.sandbox.dial(8000, address="::1", timeout_s=1.5))
    run = await pair.guest.hear(Run)
    assert (run.mode, run.args, run.env, run.timeout_ms) == (Mode.DIAL, (b"::1", b"8000"), (), 1500)
    await pair.guest.say(Started(run.id, ((b"0:0::1", 8000), (b"::1", 2))))
    connection = await dialling
    assert (connection.peer, connection.local) == (("::1", 8000), ("::1", 2))


async def test_bytes_are_read_in_pieces_and_to_the_end(pair: Pair) -> None:
    connection, number = await pair.dialled()
    await pair.guest.say(Output(number, STDOUT, b"abc"), Output(number, STDOUT, b"d" * 5000), OutputEnd(number))
    assert [await connection.read(2), await connection.read(2), await connection.read(9999)] == [
        b"ab",
        b"c",
        b"d" * 5000,
    ]
    assert await connection.read() == b""
    await connection.write(b"still open")
    assert (await pair.guest.hear(Input)).data == b"still open"
    await connection.end_input()
    await pair.guest.hear(InputEnd)
    with pytest.raises(InvalidRequest):
        await connection.write(b"x")
    await pair.guest.say(Exit(number, 0, None))
    await connection.close()


async def test_a_reader_that_takes_gives_credit_and_one_that_does_not_gives_none(pair: Pair) -> None:
    connection, number = await pair.dialled()
    await pair.guest.say(*(Output(number, STDOUT, b"x" * 65536) for _ in range(4)))
    for _ in range(4):
        await connection.read()
    assert (await pair.guest.hear(OutputCredit)).size_bytes == 4 * 65536


async def test_a_writer_waits_for_the_window(pair: Pair) -> None:
    connection, number = await pair.dialled()
    writing = asyncio.create_task(connection.write(bytes(SOCKET_WINDOW_BYTES + 1)))
    got = 0
    while got < SOCKET_WINDOW_BYTES:
        got += len((await pair.guest.hear(Input)).data)
    await asyncio.sleep(0)
    assert not writing.done()
    await pair.guest.say(InputCredit(number, 1))
    assert len((await pair.guest.hear(Input)).data) == 1
    await writing


async def test_writing_now_sends_all_or_nothing(pair: Pair) -> None:
    connection, number = await pair.dialled()
    assert not connection.write_now(bytes(SOCKET_WINDOW_BYTES + 1))
    assert connection.write_now(b"first")
    assert not connection.write_now(bytes(SOCKET_WINDOW_BYTES - 4))
    assert (await pair.guest.hear(Input)).data == b"first"
    writing = asyncio.create_task(connection.write(bytes(SOCKET_WINDOW_BYTES)))
    await asyncio.sleep(0)
    assert not connection.write_now(b"overtakes")
    assert not connection.write_now(b"", last=True)
    await pair.guest.say(InputCredit(number, 5))
    await writing
    got = 0
    while got < SOCKET_WINDOW_BYTES:
        got += len((await pair.guest.hear(Input)).data)
    # The message after the credit shows that the credit was read.
    await pair.guest.say(InputCredit(number, SOCKET_WINDOW_BYTES), Output(number, STDOUT, b"x"))
    assert await connection.read() == b"x"
    assert connection.write_now(b"end", last=True)
    assert (await pair.guest.hear(Input)).data == b"end"
    await pair.guest.hear(InputEnd)
    assert not connection.write_now(b"late")
    with pytest.raises(InvalidRequest):
        await connection.write(b"late")


@pytest.mark.parametrize("finish", ["close", "destroy"])
async def test_nothing_is_written_now_to_what_has_ended(pair: Pair, finish: str) -> None:
    connection, number = await pair.dialled()
    if finish == "destroy":
        await pair.sandbox.destroy()
    else:
        closing = asyncio.create_task(connection.close())
        await pair.guest.hear(Signal)
        await pair.guest.say(Exit(number, 0, None))
        await closing
    assert not connection.write_now(b"late")
    assert not connection.write_now(b"", last=True)


async def test_writing_does_not_wake_a_reader(pair: Pair) -> None:
    connection, number = await pair.dialled()
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    (waiter,) = connection._stream._waiters  # type: ignore[attr-defined]
    await connection.write(b"x")
    assert connection.write_now(b"y")
    assert not waiter.done()
    await pair.guest.say(Output(number, STDOUT, b"z"))
    assert await reading == b"z"


async def test_single_bytes_do_not_cost_an_object_each(pair: Pair) -> None:
    connection, number = await pair.dialled()
    await pair.guest.say(b"".join(Output(number, STDOUT, b"x").encode() for _ in range(1000)))
    await pair.guest.say(OutputEnd(number))
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
        await asyncio.sleep(0.01)
    assert b"".join(pieces) == b"x" * 1000
    assert len(pieces) < 10


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ECONNREFUSED, errno.ECONNREFUSED), (0, errno.EIO), (2**64 - 1, errno.EIO)]
)
async def test_a_refusal_has_the_errno_or_one_that_exists(pair: Pair, number: int, expected: int) -> None:
    dialling = asyncio.create_task(pair.sandbox.dial(8000))
    run = await pair.guest.hear(Run)
    await pair.guest.say(Refused(run.id, number, b"\x1b[31mlies", 8))
    with pytest.raises(PortFailed) as caught:
        await dialling
    assert caught.value.errno == expected
    assert "lies" not in str(caught.value)


async def test_a_reset_comes_after_what_was_sent_before_it(pair: Pair) -> None:
    connection, number = await pair.dialled()
    await pair.guest.say(Output(number, STDOUT, b"last"), Exit(number, errno.ECONNRESET, None))
    assert await connection.read() == b"last"
    for use in (connection.read(), connection.write(b"x")):
        with pytest.raises(PortFailed) as caught:
            await use
        assert caught.value.errno == errno.ECONNRESET


async def test_a_cancelled_dial_is_ended_in_the_guest(pair: Pair) -> None:
    dialling = asyncio.create_task(pair.sandbox.dial(8000))
    run = await pair.guest.hear(Run)
    dialling.cancel()
    signal = await pair.guest.hear(Signal)
    assert (signal.id, signal.signal) == (run.id, 9)
    await pair.guest.say(Exit(run.id, 0, None))


BAD_STARTS = [
    (),
    ENDS[:1],
    ((b"localhost", 1), ENDS[1]),
    ((b"127.0.0.1", 65536), ENDS[1]),
    ((b"\xff", 1), ENDS[1]),
    ((b"", 1), ENDS[1]),
]


@pytest.mark.parametrize("addresses", BAD_STARTS)
async def test_a_started_without_proper_addresses_ends_the_guest(
    pair: Pair, addresses: tuple[tuple[bytes, int], ...]
) -> None:
    dialling = asyncio.create_task(pair.sandbox.dial(8000))
    run = await pair.guest.hear(Run)
    await pair.guest.say(Started(run.id, addresses))
    with pytest.raises(GuestMisbehaved):
        await dialling


def _after_the_end(number: int) -> list[GuestMessage]:
    return [OutputEnd(number), Output(number, STDOUT, b"x")]


def _past_the_window(number: int) -> list[GuestMessage]:
    return [InputCredit(number, 1)]


def _up_twice(number: int) -> list[GuestMessage]:
    return [Started(number, ENDS)]


@pytest.mark.parametrize("lie", [_after_the_end, _past_the_window, _up_twice])
async def test_a_guest_that_breaks_the_rules_of_connections_is_not_used(pair: Pair, lie: object) -> None:
    connection, number = await pair.dialled()
    assert callable(lie)
    await pair.guest.say(*lie(number))
    with pytest.raises(GuestMisbehaved):
        await _read_on(connection)


async def _read_on(connection: Connection) -> None:
    while True:
        await connection.read()
        await asyncio.sleep(0.01)


async def test_an_action_has_neither_addresses_nor_an_end_of_its_output(pair: Pair) -> None:
    running = asyncio.create_task(pair.sandbox.run(Action("x")))
    run = await pair.guest.hear(Run)
    await pair.guest.say(OutputEnd(run.id))
    with pytest.raises(GuestMisbehaved):
        await running


async def test_a_listener_keeps_accepts_under_way_and_serves_them_in_order(pair: Pair) -> None:
    opening = asyncio.create_task(pair.sandbox.listen(80))
    run = await pair.guest.hear(Run)
    assert run.mode == Mode.LISTEN
    await pair.guest.say(Started(run.id, ((b"127.0.0.1", 80),)))
    listener = await opening
    first = await pair.guest.hear(Run)
    second = await pair.guest.hear(Run)
    assert (first.mode, first.session, second.mode) == (Mode.ACCEPT, run.id, Mode.ACCEPT)
    await pair.guest.say(Started(first.id, ENDS), Started(second.id, (ENDS[1], ENDS[0])))
    accepting = asyncio.create_task(listener.accept())
    await asyncio.sleep(0)
    assert (await accepting).peer == ("127.0.0.1", 8000)
    lost = asyncio.create_task(listener.accept())
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    assert (await listener.accept()).peer == ("127.0.0.1", 40000)


async def test_a_lack_of_room_is_no_end_of_a_listener(pair: Pair) -> None:
    opening = asyncio.create_task(pair.sandbox.listen(80))
    run = await pair.guest.hear(Run)
    await pair.guest.say(Started(run.id, ((b"127.0.0.1", 80),)))
    listener = await opening
    first, second = await pair.guest.hear(Run), await pair.guest.hear(Run)
    await pair.guest.say(Refused(first.id, errno.EMFILE, b"", 2), Started(second.id, ENDS))
    with pytest.raises(CapacityError):
        await listener.accept()
    assert (await listener.accept()).peer == ("127.0.0.1", 8000)


async def test_datagrams_carry_their_other_end(pair: Pair) -> None:
    opening = asyncio.create_task(pair.sandbox.datagrams(53))
    run = await pair.guest.hear(Run)
    await pair.guest.say(Started(run.id, ((b"127.0.0.1", 53),)))
    packets = await opening
    await pair.guest.say(Output(run.id, STDOUT, b"\x04\x7f\0\0\x01\x39\x30question"))
    assert await packets.receive() == (b"question", ("127.0.0.1", 12345))
    await packets.send(b"answer", ("::1", 2))
    assert (await pair.guest.hear(Input)).data == b"\x06" + bytes(15) + b"\x01\x02\0answer"
    with pytest.raises(InvalidRequest):
        await packets.send(bytes(4097), ("::1", 2))


@pytest.mark.parametrize("frame", [b"\x04", b"\x04\x7f\0\0\x01\x39", b"\x05" + bytes(20), b"\x06" + bytes(17)])
async def test_a_datagram_without_its_sender_ends_the_guest(pair: Pair, frame: bytes) -> None:
    opening = asyncio.create_task(pair.sandbox.datagrams(53))
    run = await pair.guest.hear(Run)
    await pair.guest.say(Started(run.id, ((b"127.0.0.1", 53),)))
    packets = await opening
    await pair.guest.say(Output(run.id, STDOUT, frame))
    with pytest.raises(GuestMisbehaved):
        await packets.receive()


async def test_a_dead_link_ends_what_waits(pair: Pair) -> None:
    connection, _ = await pair.dialled()
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    pair.guest.hang_up()
    with pytest.raises(LinkFailed):
        await reading


async def test_a_sandbox_on_the_network_of_its_host_has_no_ports() -> None:
    ours, theirs = socket.socketpair()
    guest = ScriptedGuest(theirs)
    pair = Pair()
    sandbox = GuestSandbox("box", Channel.over_socket(ours), destroy=pair._nothing, env={})
    for call in (sandbox.dial(80), sandbox.listen(80), sandbox.datagrams(80), sandbox.listening_ports()):
        with pytest.raises(Unsupported, match="host's"):
            await call
    await sandbox.destroy()
    await pair.sandbox.destroy()
    guest.hang_up()
    pair.guest.hang_up()
