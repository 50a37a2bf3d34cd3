"""One background process: its action, the task that drains it into a ring, and those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from dutyfree.background.ring import Ring
from dutyfree.background.terminal import TerminalStream
from dutyfree.background.watching import WatchStream
from dutyfree.contract import ActionStream
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateFailed
from dutyfree.model import Command, Observation, OutputChunk, ProcessInfo


class BackgroundProcess:
    """It runs until its command or its sandbox ends; a reader that stops or is slow does not hold it up.

    With `reader_wait_s` it does: what would drop output that a reader has not had yet waits for the reader, until that
    long after its last read.
    """

    def __init__(
        self,
        number: int,
        command: Command,
        stream: ActionStream,
        ring: Ring,
        *,
        takes_input: bool,
        on_end: Callable[[BackgroundProcess], None],
        reader_wait_s: float = 0.0,
    ) -> None:
        """`on_end` is called once, when it has ended by itself."""
        self.number = number
        self.id = f"p{number}"
        self.command = command
        self._stream = stream
        self._terminal = stream if isinstance(stream, TerminalStream) else None
        self._watches = isinstance(stream, WatchStream)
        self._ring = ring
        self._takes_input = takes_input
        self._on_end = on_end
        self._reader_wait_s = reader_wait_s
        self._read_to = 0
        self._last_read_s = time.monotonic()
        self._was_read = asyncio.Event()
        self._started_at = time.time()
        self._observation: Observation | None = None
        self._error: DutyfreeError | None = None
        self._is_forgotten = False
        self._waiters: list[asyncio.Future[None]] = []
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._observation is None and self._error is None

    def info(self) -> ProcessInfo:
        """What is known of it now."""
        seen = self._observation
        return ProcessInfo(
            id=self.id,
            command=self.command,
            started_at=self._started_at,
            running=self.running,
            exit_code=None if seen is None else seen.exit_code,
            signal=None if seen is None else seen.signal,
            error=self._error,
            output_bytes=self._ring.end,
            lost_bytes=self._ring.start,
            terminal=self._terminal is not None,
            watch=self._watches,
        )

    async def read(self, offset: int, limit_bytes: int) -> OutputChunk | None:
        """The next output from `offset` on; None once it has ended and all was read. Raises the error that ended it."""
        if not 0 <= offset <= self._ring.end:
            raise InvalidRequest(f"offset {offset} is not in the output of process {self.id}: 0 to {self._ring.end}")
        if self._is_forgotten:
            raise InvalidRequest(f"process {self.id} ended long ago, and its output is no longer kept")
        if limit_bytes < 1:
            raise InvalidRequest(f"limit_bytes is {limit_bytes}; it must be positive")
        if self._reader_wait_s:
            self._read_to, self._last_read_s = offset, time.monotonic()
            self._was_read.set()
        while (chunk := self._ring.read(offset, limit_bytes)) is None:
            if not self.running:
                self._check()
                return None
            await self._changed()
        return chunk

    def _pieces(self, data: bytes) -> Sequence[bytes]:
        """One piece, unless it must fit into the ring beside what the reader has not had yet."""
        most_bytes = max(1, self._ring.capacity_bytes // 2)
        if not self._reader_wait_s or len(data) <= most_bytes:
            return (data,)
        return [data[start : start + most_bytes] for start in range(0, len(data), most_bytes)]

    async def _room(self, size_bytes: int) -> None:
        """Return when the ring can take so much without dropping what the reader has not had, or the reader is gone."""
        while self.running and self._ring.end + size_bytes - self._read_to > self._ring.capacity_bytes:
            left_s = self._last_read_s + self._reader_wait_s - time.monotonic()
            if left_s <= 0:
                return
            self._was_read.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._was_read.wait()

    async def wait(self) -> Observation:
        """The observation, when it has ended. Raises the error that ended it."""
        while self._observation is None:
            self._check()
            await self._changed()
        return self._observation

    async def write(self, data: bytes) -> None:
        """Give it input; returns when there is room for it, or when it has ended."""
        if not self._takes_input:
            raise InvalidRequest(f"process {self.id} was started without input", hint="start it with stdin=True")
        if self.running:
            await self._stream.write(data)

    async def end_input(self) -> None:
        """Close its standard input. Idempotent."""
        if self._takes_input and self.running:
            await self._stream.end_input()

    async def signal(self, number: int) -> None:
        """Send a signal to its process group. Does nothing once it has ended."""
        if self.running:
            await self._stream.signal(number)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal. Raises InvalidRequest if it has none."""
        if self._terminal is None:
            raise InvalidRequest(f"process {self.id} has no terminal", hint="start it with terminal=(rows, cols)")
        if self.running:
            await self._terminal.resize(rows, cols)

    async def kill(self) -> None:
        """Kill its whole process tree. Does nothing once it has ended."""
        if self.running:
            await self._stream.kill()

    def end(self, error: DutyfreeError) -> asyncio.Task[None]:
        """Count it as ended with `error`, unless it has ended. Returns the task that ends when nothing of it is left.

        It is not killed here: its sandbox is about to be reset or destroyed, which ends all processes in one step.
        """
        if self.running:
            self._error = error
        self.forget_output()
        self._was_read.set()
        self._wake()
        return self._draining

    def forget_output(self) -> None:
        """Give back the memory of its output; reading it raises InvalidRequest from now on."""
        self._is_forgotten = True
        self._ring.clear()

    async def _drain(self) -> None:
        stream, ring = self._stream, self._ring
        observation: Observation | None = None
        error: DutyfreeError | None = None
        try:
            await stream.__aenter__()
            async for chunk in stream:
                for data in self._pieces(chunk.data):
                    if self._reader_wait_s:
                        await self._room(len(data))
                    if self.running:
                        ring.put(chunk.stream, data)
                        self._wake()
            observation = await stream.wait()
        except DutyfreeError as failure:
            error = failure
        except Exception as failure:
            error = SubstrateFailed(f"process {self.id} was lost: {failure!r}")
        finally:
            await stream.__aexit__(None, None, None)
        if self.running:
            self._observation, self._error = observation, error
            self._wake()
            self._on_end(self)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    async def _changed(self) -> None:
        """Return after the next `_wake`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        """Wake all waiters; each checks its condition again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():  # otherwise its task was cancelled
                waiter.set_result(None)
