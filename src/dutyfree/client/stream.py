"""Streams: actions whose output is read while they run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dutyfree.checked import data_bytes
from dutyfree.contract import ActionStream
from dutyfree.model import Chunk, Observation


class Stream:
    """A running action: iterate over its chunks, then call `wait` for the observation.

    There are two ways to use it. `async for chunk in box.stream(...)` runs the command with an empty input until the
    loop ends. `async with box.stream(...) as stream` also lets you write input and send signals; the command's input
    stays open until `end_input`. In both cases, leaving the block or loop early kills the command's whole process tree,
    and the command has to wait while its output is not read.
    """

    def __init__(self, inner: ActionStream) -> None:
        self._inner = inner
        self._entered = False
        self._seen: Observation | None = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks in the order in which they arrive, until the action has ended. Raises as `Box.run` does."""
        if self._entered:
            async for chunk in self._inner:
                yield chunk
            return
        async with self:
            await self._inner.end_input()
            async for chunk in self._inner:
                yield chunk
            self._seen = await self._inner.wait()

    async def write(self, data: bytes | str) -> None:
        """Write to the command's input; waits while its buffer is full. Raises InvalidRequest after `end_input`."""
        await self._inner.write(data_bytes("data", data))

    async def end_input(self) -> None:
        """Close the command's standard input. Idempotent."""
        await self._inner.end_input()

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing once it has ended."""
        await self._inner.signal(number)

    async def kill(self) -> None:
        """Kill the whole process tree, also processes outside the process group. Does nothing once it has ended."""
        await self._inner.kill()

    async def wait(self) -> Observation:
        """Wait for the end and return the observation. Unread output is dropped. Raises as `Box.run` does."""
        if self._seen is None:
            self._seen = await self._inner.wait()
        return self._seen

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)
