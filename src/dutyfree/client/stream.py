"""An action whose output is read while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dutyfree.contract import ActionStream
from dutyfree.model import Chunk, Observation


class Stream:
    """An action under way: iterate over its chunks, then ask `wait` for the observation.

    Two ways to use it. `async for chunk in box.stream(...)` gives the command an empty input and runs it as long as the
    loop does. `async with box.stream(...) as stream` also lets you write input and send signals; the command waits for
    its input until `end_input`. Either way, leaving early ends the command's whole process tree, and a reader that
    stops reading makes the command wait.
    """

    def __init__(self, inner: ActionStream) -> None:
        self._inner = inner
        self._entered = False
        self._seen: Observation | None = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks as they come; ends when the action has ended. Raises as `Box.run` does."""
        if self._entered:
            async for chunk in self._inner:
                yield chunk
            return
        async with self:
            await self._inner.end_input()
            async for chunk in self._inner:
                yield chunk
            self._seen = await self._inner.wait()

    async def write(self, data: bytes) -> None:
        """Give the command input; returns when there is room for it. Raises InvalidRequest after `end_input`."""
        await self._inner.write(data)

    async def end_input(self) -> None:
        """Close the command's standard input. Idempotent."""
        await self._inner.end_input()

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing once it has ended."""
        await self._inner.signal(number)

    async def kill(self) -> None:
        """Kill the whole process tree, also what left its process group. Does nothing once it has ended."""
        await self._inner.kill()

    async def wait(self) -> Observation:
        """The observation, when the action has ended. Output that was not read is dropped. Raises as `Box.run` does."""
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
