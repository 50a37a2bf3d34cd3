"""A client of a node that says what a test wants, also what no client should."""

from __future__ import annotations

import asyncio
from typing import Any, Self
from urllib.parse import urlsplit

from dutyfree.codec import ERROR
from dutyfree.errors import DutyfreeError
from dutyfree.protocol.frames import (
    FROM_NODE,
    UPGRADE_PATH,
    VERSION,
    WELCOME_ONLY,
    NodeFrame,
    decode_document,
    decode_plain,
    encode_document,
    encode_plain,
)
from dutyfree.wire.fields import number_field
from dutyfree.wire.frames import HEADER, Frame, FrameDecoder, encode_frame
from dutyfree.wire.messages import BOX_TAG, Run

UPGRADE = f"GET {UPGRADE_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: dutyfree\r\n\r\n".encode()
PATIENCE_S = 10.0


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(FROM_NODE)
        self._frames: list[Frame] = []
        self.received = 0
        self.last_id = 0

    @classmethod
    async def open(cls, url: str) -> Self:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    @classmethod
    async def welcomed(cls, url: str, token: str, **hello: Any) -> Self:
        """A client that has a caller."""
        client = await cls.open(url)
        await client.upgrade()
        client.hello(token, **hello)
        welcome = await client.greeting()
        assert welcome.kind == NodeFrame.WELCOME, decode_plain(welcome)
        return client

    async def upgrade(self) -> None:
        self.send(UPGRADE)
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert b" 101 " in head

    def hello(self, token: str, **changes: Any) -> None:
        document = {"version": VERSION, "token": token, "caller": None, "received": 0, **changes}
        self.send(encode_plain(NodeFrame.HELLO, document))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def greeting(self) -> Frame:
        """The answer to HELLO, and nothing after it. From then on frames of a welcome client come."""
        head = await asyncio.wait_for(self.reader.readexactly(HEADER.size), PATIENCE_S)
        rest = await self.reader.readexactly(HEADER.unpack(head)[0])
        (frame,) = FrameDecoder(WELCOME_ONLY).feed(head + rest)
        return frame

    async def frame(self) -> Frame:
        """The next frame that is no acknowledgement. Raises EOFError when the node closes the connection."""
        while True:
            while not self._frames:
                data = await asyncio.wait_for(self.reader.read(65536), PATIENCE_S)
                if not data:
                    raise EOFError
                self._frames = self._decoder.feed(data)
            frame = self._frames.pop(0)
            if frame.kind != NodeFrame.ACK:
                return frame

    async def is_dropped(self) -> bool:
        """Whether the node drops the connection without a word."""
        try:
            return await self.closed() == b""
        except ConnectionResetError:
            return True

    async def closed(self) -> bytes:
        """All that still comes until the node closes the connection."""
        data = b""
        while piece := await asyncio.wait_for(self.reader.read(65536), PATIENCE_S):
            data += piece
        return data

    def start_call(self, op: str, body: bytes = b"", **arguments: Any) -> int:
        self.last_id += 1
        self.send(encode_document(NodeFrame.CALL, self.last_id, {"op": op, **arguments}, body))
        return self.last_id

    async def call(self, op: str, body: bytes = b"", **arguments: Any) -> Any:
        """A call's answer. Raises the error that it fails with."""
        self.start_call(op, body, **arguments)
        return outcome(await self.frame())

    def run(self, box: int, request: Run, action_id: int | None = None) -> int:
        self.last_id += 1
        action_id = self.last_id if action_id is None else action_id
        self.send(encode_frame(2, action_id, request.payload() + number_field(BOX_TAG, box)))
        return action_id

    def close(self) -> None:
        self.writer.transport.abort()


def outcome(frame: Frame) -> Any:
    if frame.kind == NodeFrame.FAILED:
        raise failure(frame)
    assert frame.kind == NodeFrame.REPLY, frame
    return decode_document(frame)[0]


def failure(frame: Frame) -> DutyfreeError:
    assert frame.kind in (NodeFrame.FAILED, NodeFrame.ENDED), frame
    return ERROR.decode_inner(decode_plain(frame))
