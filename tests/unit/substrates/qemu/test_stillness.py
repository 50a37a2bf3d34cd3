"""A stopped machine receives and sends nothing; what it still sent to its former host is discarded."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from dutyfree.errors import InvalidRequest, LinkFailed, SubstrateFailed
from dutyfree.model import SandboxSpec
from dutyfree.substrates.qemu import saved
from dutyfree.substrates.qemu.body import MicroVMBody, RunningVM
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.saved import Ports
from dutyfree.substrates.qemu.substrate import MicroVMSubstrate
from dutyfree.wire.channel import Channel
from dutyfree.wire.messages import VERSION, GuestHello, HostHello, Quit
from support.scripted_guest import ScriptedGuest

A_WHILE_S = 0.05


async def connect() -> tuple[Channel, ScriptedGuest, socket.socket]:
    ours, theirs = socket.socketpair()
    channel, guest = Channel.over_socket(ours), ScriptedGuest(theirs)
    await guest.hear(HostHello)
    return channel, guest, theirs


async def test_nothing_goes_through_a_channel_that_is_paused() -> None:
    channel, guest, _ = await connect()
    channel.pause()
    channel.pause()
    channel.send(Quit())
    await guest.say(GuestHello(VERSION, 42))
    hearing, greeting = asyncio.create_task(guest.hear(Quit)), asyncio.create_task(channel.handshake())
    done, _ = await asyncio.wait([hearing, greeting], timeout=A_WHILE_S)
    assert not done
    channel.resume()
    channel.resume()
    await asyncio.wait_for(asyncio.gather(hearing, greeting), 5)
    channel.close()
    channel.resume()
    guest.hang_up()


async def test_a_backlog_waits_and_then_goes_on_where_it_was() -> None:
    channel, guest, theirs = await connect()
    for _ in range(100_000):
        channel.send(Quit())
    channel.pause()
    theirs.setblocking(False)
    assert channel.untaken_bytes > 0
    for _ in range(100_000):
        await guest.hear(Quit)
        if channel.untaken_bytes == 0:
            break
    await asyncio.sleep(A_WHILE_S)
    assert channel.untaken_bytes == 0, "something was sent meanwhile"
    channel.resume()
    await asyncio.wait_for(guest.hear(Quit), 5)
    channel.close()
    assert channel.untaken_bytes == 0
    guest.hang_up()


async def test_the_end_of_the_stream_is_noticed_after_a_pause() -> None:
    channel, guest, _ = await connect()
    channel.pause()
    guest.hang_up()
    await asyncio.sleep(A_WHILE_S)
    assert channel.alive
    channel.resume()
    with pytest.raises(LinkFailed):
        await asyncio.wait_for(channel.handshake(), 5)


class Obedient:
    """Takes one block of what was sent with every third command."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.commands: list[str] = []

    async def command(self, name: str) -> None:
        self.commands.append(name)
        if len(self.commands) % 3 == 0 and self.blocks > 2:
            self.blocks -= 1


async def test_a_machine_is_still_when_it_takes_nothing_more() -> None:
    slow = Obedient(5)
    await saved.stop(cast("Machine", slow), lambda: slow.blocks)
    assert slow.commands[0] == "stop"
    assert slow.blocks == 2
    quick = Obedient(0)
    await saved.stop(cast("Machine", quick))
    assert quick.commands == ["stop"]


class Loud:
    """The machine's side of both ports: it still says much of what its former host had asked for."""

    stderr_tail = ""
    pid = 1

    def __init__(self, *, ends: bool = False) -> None:
        stream, self.stream = socket.socketpair()
        control, self.control = socket.socketpair()
        for each in (stream, control, self.stream, self.control):
            each.setblocking(False)
        self.ports = Ports(stream, control)
        self.ends = ends

    async def end(self) -> None:
        self.stream.close()
        self.control.close()

    async def speak(self) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(self.control, 1) == b"A"
        await loop.sock_sendall(self.stream, bytes(3_000_000))  # more than any buffer has room for
        if self.ends:
            self.stream.close()
        await loop.sock_sendall(self.control, b"R")


@pytest.mark.parametrize("ends", [False, True])
async def test_a_guest_is_greeted_after_the_last_of_what_was_still_under_way(ends: bool) -> None:
    loud = Loud(ends=ends)
    speaking = asyncio.create_task(loud.speak())
    vm = RunningVM(cast("Machine", loud), loud.ports, None, None, -1, shared=False)  # type: ignore[arg-type]
    spec = SandboxSpec()
    greeting = asyncio.create_task(MicroVMBody.start_guest(cast("MicroVMSubstrate", None), vm, spec, spec.image))
    await asyncio.wait_for(speaking, 5)
    if ends:
        with pytest.raises(SubstrateFailed):
            await greeting
        return
    guest = ScriptedGuest(loud.stream)
    await guest.hear(HostHello)
    await guest.say(GuestHello(VERSION, 42))
    body = await greeting
    assert body.channel.alive
    body.channel.close()
    await body.end()


@pytest.mark.parametrize("name", ["bücher", "ééé", "", "-", "a.b", "²", "a" * 64])
def test_a_hostname_is_a_label_of_plain_letters(name: str) -> None:
    with pytest.raises(InvalidRequest, match="hostname"):
        SandboxSpec(hostname=name)
