"""A node's ports against strangers: what is not a greeting ends the connection, and holds nothing."""

from __future__ import annotations

import asyncio
import random

import pytest

from dutyfree.errors import GuestMisbehaved, InvalidRequest, Unauthenticated
from dutyfree.protocol.frames import NodeFrame, decode_plain
from dutyfree.server.node import listener as listeners
from dutyfree.wire.frames import HEADER, Frame, encode_frame
from support.nodes import ServedNode
from support.raw_client import UPGRADE, RawClient, failure


async def settle(served: ServedNode, connections: int = 0) -> None:
    for _ in range(200):
        if len(served.listener.connections) == connections:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(served.listener.connections)} connections are left")


async def answered(served: ServedNode, data: bytes) -> bytes:
    client = await RawClient.open(served.url)
    client.send(data)
    answer = await client.closed()
    client.close()
    return answer


async def test_health_needs_no_token(served: ServedNode) -> None:
    assert (await answered(served, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"\r\n\r\nok\n")
    await settle(served)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"426"),
        (b"POST /dutyfree/native HTTP/1.1\r\nUpgrade: dutyfree\r\n\r\n", b"426"),
        (b"GET /dutyfree/native HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"426"),
        (b"GET /dutyfree/native HTTP/1.1\r\n\r\n", b"426"),
        (b"GET /dutyfree/native HTTP/1.0\r\nUpgrade: dutyfree\r\n\r\n", b"426"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"426"),  # TLS to a port without it
        (UPGRADE + b"early", b"400"),
        (b"GET /dutyfree/native HTTP/1.1\r\nX: " + b"x" * 9000, b"431"),
        (bytes(range(128, 256)) * 125, b"431"),
    ],
)
async def test_other_requests_get_a_status_and_no_more(served: ServedNode, request_bytes: bytes, status: bytes) -> None:
    answer = await answered(served, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status)
    await settle(served)


async def test_a_header_may_come_a_byte_at_a_time(served: ServedNode) -> None:
    client = await RawClient.open(served.url)
    for at in range(len(UPGRADE)):
        client.send(UPGRADE[at : at + 1])
        if at % 40 == 0:
            await asyncio.sleep(0)
    assert b" 101 " in await client.reader.readuntil(b"\r\n\r\n")
    client.close()


@pytest.mark.parametrize("stage", ["nothing", "half a request", "upgraded", "half a hello"])
async def test_who_is_slow_to_greet_is_dropped(served: ServedNode, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "GREETING_S", 0.2)
    client = await RawClient.open(served.url)
    if stage == "half a request":
        client.send(UPGRADE[:20])
    elif stage != "nothing":
        await client.upgrade()
        if stage == "half a hello":
            client.send(HEADER.pack(500, NodeFrame.HELLO, 0, 0, 0) + b"{")
    assert await client.is_dropped()
    await settle(served)
    client.close()


async def refused(served: ServedNode, token: str, **hello: object) -> Frame:
    client = await RawClient.open(served.url)
    await client.upgrade()
    client.hello(token, **hello)
    frame = await client.greeting()
    assert await client.closed() == b""
    client.close()
    return frame


async def test_a_wrong_token_is_refused_in_the_same_words(served: ServedNode) -> None:
    served.state.create_token("gone", "ann")
    served.state.revoke_token("gone")
    words = set()
    for token in ("", "df_wrong", served.token + "x", served.token[:-1]):
        error = failure(await refused(served, token))
        assert isinstance(error, Unauthenticated)
        words.add(str(error))
    assert len(words) == 1
    await settle(served)
    assert served.node.status()["clients"] == 0


async def test_another_version_is_named(served: ServedNode) -> None:
    error = failure(await refused(served, served.token, version=99))
    assert isinstance(error, InvalidRequest)
    assert "version 1" in error.message


@pytest.mark.parametrize(
    "hello", [{"version": "1"}, {"version": -1}, {"token": 5}, {"token": None}, {"caller": 5}, {"caller": []}]
)
async def test_a_greeting_of_a_wrong_form_is_refused(served: ServedNode, hello: dict[str, object]) -> None:
    token = hello.pop("token", served.token)
    assert isinstance(failure(await refused(served, token, **hello)), InvalidRequest)  # type: ignore[arg-type]


async def test_frames_before_the_welcome_are_misbehaviour(served: ServedNode) -> None:
    for data in (
        encode_frame(NodeFrame.CALL, 1, b"xxxx"),
        encode_frame(NodeFrame.HELLO, 0, b"[]"),
        encode_frame(NodeFrame.HELLO, 0, b"{}") * 2,
        HEADER.pack(2**31, NodeFrame.HELLO, 0, 0, 0),
        random.Random(1).randbytes(4096),
    ):
        client = await RawClient.open(served.url)
        await client.upgrade()
        client.send(data)
        error = failure(await client.greeting())
        assert isinstance(error, GuestMisbehaved | InvalidRequest)
        client.close()
    await settle(served)
    assert served.node.status()["clients"] == 0


async def test_a_count_that_cannot_be_ends_the_client(served: ServedNode) -> None:
    client = await RawClient.open(served.url)
    await client.upgrade()
    client.hello(served.token)
    caller = decode_plain(await client.greeting())["caller"]
    another = await RawClient.open(served.url)
    await another.upgrade()
    another.hello(served.token, caller=caller, received=1 << 40)
    assert (await another.greeting()).kind == NodeFrame.WELCOME
    assert isinstance(failure(await another.frame()), GuestMisbehaved)
    client.close()
    another.close()
    await settle(served)
    assert served.node.status()["clients"] == 0


async def test_a_client_of_another_token_cannot_be_taken_over(served: ServedNode) -> None:
    client = await RawClient.open(served.url)
    await client.upgrade()
    client.hello(served.token)
    caller = decode_plain(await client.greeting())["caller"]
    thief = await RawClient.open(served.url)
    await thief.upgrade()
    thief.hello(served.token_of("mallory"), caller=caller, received=0)
    welcome = decode_plain(await thief.greeting())
    assert welcome["caller"] != caller
    assert welcome["owner"] == "mallory"
    assert (await client.call("host"))["substrate"] == "process"
    client.close()
    thief.close()


async def test_the_second_connection_of_a_client_replaces_the_first(served: ServedNode) -> None:
    client = await RawClient.open(served.url)
    await client.upgrade()
    client.hello(served.token)
    caller = decode_plain(await client.greeting())["caller"]
    second = await RawClient.welcomed(served.url, served.token, caller=caller, received=0)
    assert await client.closed() == b""
    assert (await second.call("host"))["substrate"] == "process"
    assert served.node.status()["clients"] == 1
    second.close()
    client.close()


async def test_a_client_that_says_nothing_is_given_up(served: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(listeners, "SILENT_S", 0.2)
    client = await RawClient.welcomed(served.url, served.token)
    await settle(served, 1)
    await settle(served, 0)
    for _ in range(100):
        if served.node.status()["clients"] == 0:
            break
        await asyncio.sleep(0.02)
    assert served.node.status()["clients"] == 0
    client.close()


async def test_there_is_a_most_of_connections(served: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "MAX_CONNECTIONS", 2)
    clients = [await RawClient.open(served.url) for _ in range(2)]
    await settle(served, 2)
    third = await RawClient.open(served.url)
    assert await third.is_dropped()
    for client in (*clients, third):
        client.close()
    await settle(served)
