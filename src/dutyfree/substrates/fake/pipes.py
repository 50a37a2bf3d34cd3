"""What a fake command reads from and writes to."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal, Protocol

from dutyfree.model import Chunk
from dutyfree.substrates.fake.tree import Device, Regular, Tree

PIPE_BYTES = 65536


class Reader(Protocol):
    """A source of bytes; empty means the end."""

    async def read(self) -> bytes: ...


class Writer(Protocol):
    """A sink for bytes. Raises BrokenPipeError when nobody will read them."""

    async def write(self, data: bytes) -> None: ...


class BytesReader:
    """Bytes that are there already."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = memoryview(data)

    async def read(self) -> bytes:
        piece, self._data = self._data[:PIPE_BYTES], self._data[PIPE_BYTES:]
        return bytes(piece)


class ZeroReader:
    """Zeros, without end."""

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return bytes(PIPE_BYTES)


class NullWriter:
    """Takes everything."""

    async def write(self, data: bytes) -> None:
        pass


class FileWriter:
    """Adds to a file's end."""

    def __init__(self, file: Regular) -> None:
        self._file = file

    async def write(self, data: bytes) -> None:
        self._file.data.extend(data)


class Pipe:
    """A bounded pipe: a writer waits for room, a reader for data, and either end can be closed."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._written = False
        self._unread = False
        self._changed = asyncio.Condition()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIPE_BYTES):
            piece = data[start : start + PIPE_BYTES]
            async with self._changed:
                await self._changed.wait_for(lambda: self._held_bytes < PIPE_BYTES or self._unread)
                if self._unread:
                    raise BrokenPipeError
                self._pieces.append(piece)
                self._held_bytes += len(piece)
                self._changed.notify_all()

    async def read(self) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self._pieces or self._written)
            if not self._pieces:
                return b""
            piece = self._pieces.popleft()
            self._held_bytes -= len(piece)
            self._changed.notify_all()
            return piece

    async def end_writing(self) -> None:
        """No more data will come. Idempotent."""
        async with self._changed:
            self._written = True
            self._changed.notify_all()

    async def end_reading(self) -> None:
        """Nobody reads any more. Idempotent."""
        async with self._changed:
            self._unread = True
            self._changed.notify_all()


def open_reader(tree: Tree, path: str) -> Reader:
    """A reader of the file at `path`. Raises OSError."""
    node = tree.find(path)
    if isinstance(node, Device):
        return ZeroReader() if node.endless else BytesReader()
    return BytesReader(bytes(tree.regular(path).data))


def open_writer(tree: Tree, path: str, *, append: bool) -> Writer:
    """A writer to the file at `path`, which is made, or emptied unless `append`. Raises OSError."""
    if isinstance(tree.locate_or_none(path), Device):
        return NullWriter()
    file = tree.create(path)
    if not append:
        file.data.clear()
    return FileWriter(file)


class Output:
    """What one action wrote: counted in full, and passed on up to a limit, to a buffer or to a reader who may stall."""

    def __init__(self, limit_bytes: int, chunks: asyncio.Queue[Chunk] | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._passed_bytes = 0
        self._chunks = chunks
        self._dropping = False
        self._closed = False
        self.kept = {"stdout": bytearray(), "stderr": bytearray()}
        self.produced_bytes = {"stdout": 0, "stderr": 0}

    @property
    def truncated(self) -> bool:
        """Whether there was more than the limit."""
        return sum(self.produced_bytes.values()) > self._limit_bytes

    def close(self) -> None:
        """Drop, uncounted, what is written from now on: the action has ended."""
        self._closed = True

    def drop(self) -> None:
        """Nobody reads the chunks any more: count on, and wait for nobody."""
        self._dropping = True
        while self._chunks is not None and not self._chunks.empty():
            self._chunks.get_nowait()

    async def take(self, chunk: Chunk) -> None:
        """Account for `chunk` and pass it on."""
        if self._closed:
            return
        self.produced_bytes[chunk.stream] += len(chunk.data)
        passed = chunk.data[: self._limit_bytes - self._passed_bytes]
        self._passed_bytes += len(passed)
        if not passed or self._dropping:
            return
        if self._chunks is None:
            self.kept[chunk.stream].extend(passed)
        else:
            await self._chunks.put(Chunk(chunk.stream, passed))


class OutputWriter:
    """One of an action's two output streams."""

    def __init__(self, output: Output, stream: Literal["stdout", "stderr"]) -> None:
        self._output = output
        self._stream = stream

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIPE_BYTES):
            await self._output.take(Chunk(self._stream, bytes(data[start : start + PIPE_BYTES])))
