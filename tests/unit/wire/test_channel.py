"""The channel against a scripted guest: the handshake, every kind of mischief, and the end of the stream."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from dutyfree.errors import DeadlineExceeded, GuestMisbehaved, InfraFailed, LinkFailed, SubstrateFailed
from dutyfree.wire.channel import Channel
from dutyfree.wire.exchange import Exchange
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import (
    VERSION,
    Exit,
    Fault,
    GuestHello,
    HostHello,
    Input,
    InputCredit,
    InputEnd,
    Mode,
    Output,
    Quit,
    Refused,
    Run,
)
from support.scripted_guest import MISCHIEFS, ScriptedGuest


class Recorded(Exchange):
    """Writes down what the channel tells it."""

    def __init__(self, credit_bytes: int = 1024) -> None:
        super().__init__(credit_bytes)
        self.received = b""
        self.over: asyncio.Future[Exit | Refused] = asyncio.get_running_loop().create_future()

    def output(self, stream: int, data: bytes) -> None:
        self.received += data

    def ended(self, end: Exit | Refused) -> None:
        self.over.set_result(end)

    def failed(self, error: InfraFailed) -> None:
        self.over.set_exception(error)

    def wake(self) -> None:
        pass


def request(credit_bytes: int = 1024) -> Run:
    return Run(0, Mode.SHELL, (b"true",), credit=credit_bytes)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, ScriptedGuest]]:
    ours, theirs = socket.socketpair()
    channel, guest = Channel.over_socket(ours), ScriptedGuest(theirs)
    yield channel, guest
    channel.close()
    guest.hang_up()


Ends = tuple[Channel, ScriptedGuest]


async def test_handshake(ends: Ends) -> None:
    channel, guest = ends
    assert (await guest.hear(HostHello)).version == VERSION
    await guest.say(GuestHello(VERSION, 42))
    assert (await channel.handshake()).pid == 42
    assert (await channel.handshake()).pid == 42


async def test_actions_may_follow_the_hello_at_once(ends: Ends) -> None:
    channel, guest = ends
    first, second = Recorded(), Recorded()
    channel.start(first, request())
    channel.start(second, request())
    assert (await guest.greet_and_hear_run()).id == first.id
    assert (await guest.hear(Run)).id == second.id != first.id
    await guest.say(Output(first.id, STDOUT, b"a"), Exit(second.id, 1, None), Exit(first.id, 0, None))
    assert (await first.over, await second.over) == (Exit(first.id, 0, None), Exit(second.id, 1, None))
    assert first.received == b"a"


async def test_several_actions_start_with_one_message(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, guest = ends
    written = []
    real = channel._write
    monkeypatch.setattr(channel, "_write", lambda data: (written.append(data), real(data))[1])
    exchanges = [Recorded() for _ in range(3)]
    channel.start_all(exchanges, request())
    assert len(written) == 1
    assert (await guest.greet_and_hear_run()).id == exchanges[0].id
    assert [(await guest.hear(Run)).id for _ in range(2)] == [each.id for each in exchanges[1:]]


@pytest.mark.parametrize("mischief", MISCHIEFS)
async def test_mischief_ends_the_channel_for_everyone(ends: Ends, mischief: str) -> None:
    channel, guest = ends
    script = asyncio.ensure_future(MISCHIEFS[mischief](guest))
    exchanges = [Recorded(), Recorded()]
    for exchange in exchanges:
        channel.start(exchange, request())
    errors = await asyncio.gather(
        *(exchange.over for exchange in exchanges[mischief == "exit_twice" :]), return_exceptions=True
    )
    assert [type(error) for error in errors] == [GuestMisbehaved] * len(errors)
    assert not channel.alive
    with pytest.raises(GuestMisbehaved):
        channel.start(Recorded(), request())
    with pytest.raises(GuestMisbehaved):
        await channel.handshake()
    script.cancel()


async def test_silence_is_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel.over_socket(ours, handshake_timeout_s=0.05)
        exchange = Recorded()
        channel.start(exchange, request())
        with pytest.raises(DeadlineExceeded):
            await channel.handshake()
        with pytest.raises(DeadlineExceeded):
            await exchange.over


class Overdue(Recorded):
    """Counts how often the channel finds it overdue; the first time, it moves its deadline."""

    times = 0

    def overdue(self) -> None:
        self.times += 1
        self.deadline_s = asyncio.get_running_loop().time() + 0.05 if self.times == 1 else float("inf")


async def test_one_timer_serves_the_deadlines_of_all_actions(ends: Ends) -> None:
    channel, guest = ends
    await guest.say(GuestHello(VERSION, 42))
    await channel.handshake()
    now_s = asyncio.get_running_loop().time()
    soon, late, never = Overdue(), Overdue(), Overdue()
    for exchange, deadline_s in ((late, now_s + 600), (soon, now_s + 0.05), (never, float("inf"))):
        channel.start(exchange, request())
        exchange.deadline_s = deadline_s
        channel.watch(deadline_s)
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if soon.times == 2:
            break
    assert (soon.times, late.times, never.times) == (2, 0, 0)
    assert channel.alive
    channel.close()
    await asyncio.gather(soon.over, late.over, never.over, return_exceptions=True)


async def test_a_deadline_before_the_greeting_is_none_of_the_handshake() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel.over_socket(ours, handshake_timeout_s=0.3)
        exchange = Overdue()
        channel.start(exchange, request())
        exchange.deadline_s = asyncio.get_running_loop().time() + 0.02
        channel.watch(exchange.deadline_s)
        await asyncio.sleep(0.1)
        assert exchange.times == 2
        assert channel.alive
        with pytest.raises(DeadlineExceeded, match="HELLO"):
            await channel.handshake()
        with pytest.raises(DeadlineExceeded):
            await exchange.over


async def test_the_end_of_the_stream_is_a_broken_link(ends: Ends) -> None:
    channel, guest = ends
    deaths: list[bool] = []
    channel.on_death(lambda: deaths.append(channel.alive))
    exchange = Recorded()
    channel.start(exchange, request())
    await guest.greet_and_hear_run()
    guest.hang_up()
    with pytest.raises(LinkFailed):
        await exchange.over
    assert deaths == [False]


async def test_a_guest_that_is_gone_before_the_request_is_a_broken_link(ends: Ends) -> None:
    channel, guest = ends
    await guest.greet()
    await channel.handshake()
    guest.hang_up()
    exchange = Recorded()
    channel.start(exchange, request())
    with pytest.raises(LinkFailed):
        await exchange.over


async def test_last_words_are_heard_before_a_broken_link(ends: Ends) -> None:
    channel, guest = ends
    await guest.greet()
    await channel.handshake()
    await guest.say(Fault(b"no room\x1b[2J"))
    guest.hang_up()
    exchange = Recorded()
    channel.start(exchange, request())
    with pytest.raises(SubstrateFailed, match=r"no room\\x1b\[2J"):
        await exchange.over


async def test_closing_ends_the_guest_and_pending_calls(ends: Ends) -> None:
    channel, guest = ends
    exchange = Recorded()
    channel.start(exchange, request())
    channel.close()
    channel.close()
    with pytest.raises(SubstrateFailed, match="destroyed"):
        await exchange.over
    await guest.hear(Quit)
    with pytest.raises(EOFError):
        await guest.hear(Quit)


async def test_input_is_sent_as_the_guest_gives_credit(ends: Ends) -> None:
    channel, guest = ends
    exchange = Recorded()
    channel.start(exchange, request())
    exchange.offer_input(os.urandom(200_000), last=True)
    await guest.greet_and_hear_run()
    assert len((await guest.hear(Input)).data) == 65536
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(guest.hear(Input), 0.05)
    await guest.say(InputCredit(exchange.id, 100))
    assert len((await guest.hear(Input)).data) == 100
    taken = 65536 + 100
    while taken < 200_000:
        await guest.say(InputCredit(exchange.id, 65536))
        taken += len((await guest.hear(Input)).data)
    assert taken == 200_000
    await guest.hear(InputEnd)


async def test_credit_without_reading_does_not_fill_the_hosts_memory(ends: Ends) -> None:
    channel, guest = ends
    exchange = Recorded()
    channel.start(exchange, request())
    await guest.greet_and_hear_run()
    data = bytes(16 * 1024 * 1024)
    exchange.offer_input(data, last=True)
    allowed = 65536
    while not channel.congested:  # the guest says that it took what it did not even read
        await guest.say(InputCredit(exchange.id, 65536))
        allowed += 65536
        await asyncio.sleep(0.001)
    assert allowed < len(data) // 2
    assert exchange.input_waits
    waiting = asyncio.ensure_future(channel.drained())
    taken = 0
    while taken < len(data):
        if taken == allowed:
            await guest.say(InputCredit(exchange.id, 65536))
            allowed += 65536
        taken += len((await guest.hear(Input)).data)
    await waiting
    await guest.hear(InputEnd)
    assert not exchange.input_waits


@pytest.mark.parametrize("sizes", [[0], [1], [2**64 - 1], [100, 101]])
async def test_credit_for_input_that_was_not_sent_ends_the_channel(ends: Ends, sizes: list[int]) -> None:
    channel, guest = ends
    exchange = Recorded()
    channel.start(exchange, request())
    exchange.offer_input(bytes(sum(sizes) - 1) if len(sizes) > 1 else b"")
    await guest.greet_and_hear_run()
    for size in sizes:
        await guest.say(InputCredit(exchange.id, size))
    with pytest.raises(GuestMisbehaved):
        await asyncio.wait_for(exchange.over, 5)


async def test_it_also_runs_over_a_pair_of_pipes() -> None:
    to_host, to_guest = os.pipe(), os.pipe()
    channel = Channel(to_host[0], to_guest[1])
    os.write(to_host[1], GuestHello(VERSION, 9).encode())
    assert (await channel.handshake()).pid == 9
    os.close(to_host[1])
    with pytest.raises(LinkFailed):
        await channel_end(channel)
    os.close(to_guest[0])


async def channel_end(channel: Channel) -> None:
    exchange = Recorded()
    channel.start(exchange, request())
    await exchange.over
