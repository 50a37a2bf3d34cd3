"""A client against a node that does not keep the rules: typed errors, nothing that hangs, nothing that is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import dutyfree
from dutyfree.codec import ERROR
from dutyfree.errors import (
    DeadlineExceeded,
    GuestMisbehaved,
    InfraFailed,
    InvalidRequest,
    LinkFailed,
    SubstrateUnavailable,
    Unauthenticated,
)
from dutyfree.model import SandboxSpec
from dutyfree.protocol.frames import FROM_CLIENT, HELLO_ONLY, NodeFrame, decode_document, encode_document, encode_plain
from dutyfree.remote.address import Address
from dutyfree.remote.connection import NodeConnection
from dutyfree.substrates.registry import load
from dutyfree.wire.frames import HEADER, Frame, FrameDecoder, FrameKind, encode_frame
from support.nodes import served_node

WELCOME = {"version": 1, "caller": "c", "received": 0, "resume_s": 30.0, "owner": "ann"}
Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The node's side of one connection, after the upgrade and HELLO."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(FROM_CLIENT)
        self._frames: list[Frame] = []

    def welcome(self, **changes: Any) -> None:
        self.writer.write(encode_plain(NodeFrame.WELCOME, {**WELCOME, **changes}))

    async def frame(self) -> Frame:
        while not self._frames:
            data = await self.reader.read(65536)
            if not data:
                raise EOFError
            self._frames = [each for each in self._decoder.feed(data) if each.kind != NodeFrame.ACK]
        return self._frames.pop(0)

    def reply(self, call_id: int, document: Any) -> None:
        self.writer.write(encode_document(NodeFrame.REPLY, call_id, document))


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[NodeConnection]:
    """A connection, not open yet, to a server that does what the script says on each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            head = await reader.readexactly(HEADER.size)
            assert FrameDecoder(HELLO_ONLY).feed(head + await reader.readexactly(HEADER.unpack(head)[0]))
            await script(Peer(reader, writer))
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = NodeConnection(Address.parse(f"http://127.0.0.1:{port}"), "token", None)
    try:
        yield connection
    finally:
        await connection.close()
        server.close()
        await asyncio.sleep(0.01)  # the scripts end


async def test_calls_and_their_time_limits() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        call = await peer.frame()
        assert decode_document(call) == ({"op": "one", "a": 1}, b"")
        peer.reply(call.id, {"b": 2})
        late = await peer.frame()
        cancel = await peer.frame()
        assert (cancel.kind, cancel.id) == (NodeFrame.CANCEL, late.id)
        peer.reply(late.id, {"late": True})
        peer.reply((await peer.frame()).id, {"c": 3})
        await peer.frame()

    undone: list[Any] = []
    async with scripted(script) as connection:
        await connection.open()
        assert connection.owner == "ann"
        assert (await connection.call("one", a=1))[0].content == {"b": 2}
        with pytest.raises(DeadlineExceeded, match=r"did not answer 'two' within 0\.1 s"):
            await connection.call("two", limit_s=0.1, undo=undone.append)
        assert (await connection.call("three"))[0].content == {"c": 3}
    assert undone == [{"late": True}]


GARBAGE: dict[str, bytes] = {
    "no frame": b"\xff" * 40,
    "a frame of clients": encode_frame(NodeFrame.CALL, 1, b"xxxx"),
    "a document longer than its frame": encode_frame(NodeFrame.REPLY, 1, b"\xff\xff\x00\x00{}"),
    "no JSON": encode_frame(NodeFrame.REPLY, 1, b"\x01\x00\x00\x00{"),
    "an acknowledgement of what was not sent": encode_frame(NodeFrame.ACK, 0, b"\xff" * 8),
    "a huge frame": HEADER.pack(2**31, NodeFrame.REPLY, 0, 0, 1),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_the_connection(name: str) -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        await peer.frame()
        peer.writer.write(GARBAGE[name])
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        with pytest.raises(LinkFailed, match="the server broke the protocol"):
            await connection.call("host", limit_s=10)
        with pytest.raises(LinkFailed):
            await connection.call("host", limit_s=10)


async def test_an_answer_that_is_no_table() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        peer.reply((await peer.frame()).id, [1, 2])
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        with pytest.raises(LinkFailed, match="not a table"):
            await connection.call("host", limit_s=10)


async def test_an_error_that_cannot_be_read() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        call = await peer.frame()
        peer.writer.write(encode_frame(NodeFrame.FAILED, call.id, b'{"kind":"os.system"}'))
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        with pytest.raises(LinkFailed, match="an error that cannot be read"):
            await connection.call("host", limit_s=10)


@pytest.mark.parametrize(
    "changes", [{"caller": 5}, {"received": -1}, {"received": "x"}, {"resume_s": None}, {"owner": 1}]
)
async def test_a_wrong_welcome(changes: dict[str, Any]) -> None:
    async def script(peer: Peer) -> None:
        peer.welcome(**changes)
        await peer.frame()

    async with scripted(script) as connection:
        with pytest.raises((LinkFailed, InvalidRequest)):
            await connection.open()


async def test_a_welcome_that_has_received_too_much() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome(received=10)
        await peer.frame()

    async with scripted(script) as connection:
        with pytest.raises(LinkFailed, match="broke the protocol"):
            await connection.open()


async def test_the_node_ends_a_client() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        await peer.frame()
        peer.writer.write(encode_plain(NodeFrame.ENDED, ERROR.write(GuestMisbehaved("too much input"))))
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        with pytest.raises(LinkFailed, match="the server ended this client: too much input"):
            await connection.call("host", limit_s=10)


async def test_a_call_is_sent_again_over_the_next_connection() -> None:
    """The first connection takes nothing; the second gets the same call once."""
    seen: list[int] = []

    async def script(peer: Peer) -> None:
        peer.welcome()
        seen.append((await peer.frame()).id)
        if len(seen) == 1:
            return
        peer.reply(seen[-1], {"ok": True})
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        answer, _ = await connection.call("host", limit_s=10)
        assert answer.content == {"ok": True}
    assert seen[0] == seen[1]


async def test_frames_of_unknown_actions_are_dropped() -> None:
    async def script(peer: Peer) -> None:
        peer.welcome()
        call = await peer.frame()
        peer.writer.write(encode_frame(FrameKind.OUTPUT, 77, b"x", 1))
        peer.writer.write(encode_frame(NodeFrame.FAILED, 78, b"{}"))
        peer.reply(9999, {})
        peer.reply(call.id, {})
        await peer.frame()

    async with scripted(script) as connection:
        await connection.open()
        await connection.call("host", limit_s=10)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone


async def test_nothing_is_left_of_clients(tmp_path: Path) -> None:
    async with served_node(tmp_path, "process") as served:
        before, tasks = descriptors(), len(asyncio.all_tasks())
        for _ in range(20):
            async with served.host() as host, host.lease() as box:
                assert (await box.run("true")).ok
            with pytest.raises(Unauthenticated):
                await dutyfree.connect(served.url, token="wrong").__aenter__()
        for _ in range(100):
            if served.node.status()["clients"] == 0 and descriptors() <= before:
                break
            await asyncio.sleep(0.02)
        assert served.node.status() == {"clients": 0, "leases": 0, "owners": 0}
        assert (descriptors(), len(asyncio.all_tasks())) == (before, tasks)


async def test_calls_on_a_closed_host(tmp_path: Path) -> None:
    async with served_node(tmp_path, "process") as served:
        host = served.host()
        with pytest.raises(InvalidRequest, match="not open"):
            await host.acquire()
        async with host:
            box = await host.acquire()
            running = asyncio.ensure_future(box.run("sleep 60"))
            await asyncio.sleep(0.1)
            with pytest.raises(InvalidRequest, match="open already"):
                await host.__aenter__()
        with pytest.raises(dutyfree.DutyfreeError):
            await running
        with pytest.raises(dutyfree.DutyfreeError):
            await box.run("true")
        async with host, host.lease() as box:  # it can be opened again
            assert (await box.run("true")).ok


async def test_the_substrate_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUTYFREE_URL", raising=False)
    with pytest.raises(SubstrateUnavailable, match="no server was named"):
        await load("server").open()
    with pytest.raises(InvalidRequest, match="no address of a server"):
        load("server", url="nonsense")
    with pytest.raises(SubstrateUnavailable, match="cannot reach the server"):
        await load("server", url=f"unix:{tmp_path}/nothing.sock").open()
    async with served_node(tmp_path, "process") as served:
        with pytest.raises(SubstrateUnavailable, match="token is not valid"):
            await load("server", url=served.url, token="wrong").open()
        monkeypatch.setenv("DUTYFREE_URL", served.url)
        monkeypatch.setenv("DUTYFREE_TOKEN", served.token)
        async with dutyfree.local("server") as host, host.lease() as box:
            assert (await box.run("echo $A", env={"A": "1"})).text == "1\n"
            assert host.substrate == "server"
        async with load("server") as substrate:
            for spec in (
                SandboxSpec(hostname="other"),
                SandboxSpec(image=dutyfree.Image(layers=("sha256:" + "0" * 64,))),
            ):
                with pytest.raises(dutyfree.Unsupported):
                    await substrate.create(spec)
    assert issubclass(SubstrateUnavailable, InfraFailed)
