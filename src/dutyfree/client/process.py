"""Background processes, as their user holds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from dutyfree.background.process import BackgroundProcess
from dutyfree.checked import data_bytes, seconds, whole, wrong
from dutyfree.leases.fence import Fence
from dutyfree.model import DEFAULT_CHUNK_BYTES, Command, Observation, OutputChunk, ProcessInfo

UNLIMITED_BYTES: Final = 2**62
"""The output limit of background processes: their ring is bounded, the output that goes through it is not."""


class Process:
    """A command that runs in the background of a box until it ends, or until the lease does.

    Nothing that becomes of this object, of its box or of the task that started it ends the process. The end of its
    output is kept; `output` and `read` give it from any offset, to any number of readers. Every method raises LeaseLost
    once the lease has ended. If the process was ended by a reset of the sandbox, `wait` and readers that have read all
    of its output raise SandboxReset; if the infrastructure failed, a subclass of InfraFailed.
    """

    def __init__(self, inner: BackgroundProcess, fence: Fence) -> None:
        self._inner = inner
        self._fence = fence

    @property
    def id(self) -> str:
        """Its name, unique in the lease: `Box.process` finds it by that."""
        return self._inner.id

    @property
    def command(self) -> Command:
        """The command that was started."""
        return self._inner.command

    @property
    def info(self) -> ProcessInfo:
        """Its state at this moment."""
        self._fence.check()
        return self._inner.info()

    async def output(self, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """The output from `offset` on: first what is kept, then what comes, until the process has ended.

        If the beginning of what is asked for is no longer kept, the first chunk says by `lost_bytes` how much that is;
        so does a later chunk, if the process writes faster than this reader reads. Leaving the loop ends nothing.
        Raises InvalidRequest for an offset that is not reached yet.
        """
        offset = whole("offset", offset, least=0)
        while True:
            async with self._fence:
                chunk = await self._inner.read(offset, DEFAULT_CHUNK_BYTES)
            if chunk is None:
                return
            offset = chunk.end
            yield chunk

    async def read(
        self, offset: int, *, limit_bytes: int = DEFAULT_CHUNK_BYTES, timeout_s: float | None = None
    ) -> OutputChunk | None:
        """The next output from `offset` on; None if the process has ended and there is no more. Raises as `output`.

        Raises TimeoutError if there is none within `timeout_s`.
        """
        offset, limit_bytes = whole("offset", offset, least=0), whole("limit_bytes", limit_bytes, least=1)
        async with self._fence, asyncio.timeout(_limit(timeout_s)):
            return await self._inner.read(offset, limit_bytes)

    async def write(self, data: bytes | str) -> None:
        """Write to the process's input; waits while its buffer is full, and does nothing once the process has ended.

        Raises InvalidRequest after `end_input`, and if the process was started without `stdin=True`.
        """
        async with self._fence:
            await self._inner.write(data_bytes("data", data))

    async def end_input(self) -> None:
        """Close the process's standard input. Idempotent."""
        async with self._fence:
            await self._inner.end_input()

    async def signal(self, number: int) -> None:
        """Send a signal to its process group. Does nothing once it has ended."""
        async with self._fence:
            await self._inner.signal(number)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal's window. Raises InvalidRequest for a process without a terminal."""
        async with self._fence:
            await self._inner.resize(rows, cols)

    async def kill(self) -> None:
        """Kill the whole process tree, also processes outside the process group. Does nothing once it has ended."""
        async with self._fence:
            await self._inner.kill()

    async def wait(self, timeout_s: float | None = None) -> Observation:
        """Wait for the end and return the observation, whose `stdout` and `stderr` are empty: `output` has them.

        Raises TimeoutError if the process still runs after `timeout_s`; it goes on then.
        """
        async with self._fence, asyncio.timeout(_limit(timeout_s)):
            return await self._inner.wait()


def _limit(timeout_s: float | None) -> float | None:
    """0 only looks whether it is there already."""
    return timeout_s if timeout_s is None or timeout_s == 0 else seconds("timeout_s", timeout_s)


def terminal_size(size: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a terminal. Raises InvalidRequest."""
    try:
        rows, cols = size
    except (TypeError, ValueError):
        raise wrong("terminal", size, "a pair of rows and columns", hint="terminal=(24, 80)") from None
    return whole("rows", rows, least=1, most=65535), whole("cols", cols, least=1, most=65535)
