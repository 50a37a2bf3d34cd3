"""The log of a box: each action with its exit code, its time and its output, for people to read.

A command cannot imitate an entry: each line of its output begins with `  1| ` (stdout) or `  2| ` (stderr).
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from dutyfree.contract import Session
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import plain
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Command, Observation
from dutyfree.threads import in_thread

if TYPE_CHECKING:
    from dutyfree.client.box import Box

MAX_BYTES: Final = 64 * 1024**2
"""Of one log; then it ends with a line that says so."""
_COMMAND_CHARACTERS: Final = 4096
_HEAD_BYTES, _TAIL_BYTES = 16 * 1024, 48 * 1024
"""The parts of each stream that are kept."""
_RESULT_CHARACTERS: Final = 400
Task = TypeVar("Task")
Value = TypeVar("Value")


class ActionLog:
    """A text file, to which entries are appended. One that cannot be written any more ends with a warning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left_bytes = MAX_BYTES
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, path: str, title: str) -> ActionLog:
        """A log that begins with a title. Raises InvalidRequest if the file cannot be written."""
        log = cls(Path(path))
        try:
            await in_thread(log._append, f"# {_now()} {title}\n".encode())
        except OSError as error:
            raise InvalidRequest(f"cannot write the log {path!r}: {error.strerror}") from None
        return log

    async def observed(self, command: Command, running: Awaitable[Observation]) -> Observation:
        """What `running` gives or raises, after it was logged."""
        began = _now()
        try:
            seen = await running
        except BaseException as error:
            await self._add(f"{began} {_prompt(command)}  = {_shown(error)}")
            raise
        await self._add(f"{began} {_prompt(command)}{''.join(_output(seen))}  = {_ending(seen)}")
        return seen

    def session(self, inner: Session) -> LoggedSession:
        """A session whose lines are logged here."""
        return LoggedSession(inner, self)

    async def started(self, command: Command, how: str) -> None:
        """An action whose end and output are not logged."""
        await self._add(f"{_now()} {_prompt(command)}  = {how}")

    async def remark(self, text: str) -> None:
        """A line of the user's own."""
        await self._add(f"# {_now()} {_cut(text)}")

    async def _add(self, text: str) -> None:
        if not self._left_bytes:
            return
        data = (text + "\n").encode("utf-8", "replace")
        if len(data) > self._left_bytes:
            data, self._left_bytes = b"# the log is full\n", 0
        else:
            self._left_bytes -= len(data)
        try:
            async with self._turn:
                await in_thread(self._append, data)
        except OSError as error:  # a full disk must not fail a rollout
            self._left_bytes = 0
            warnings.warn(f"the log {str(self._path)!r} ends here: {error.strerror}", RuntimeWarning, stacklevel=2)

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(data)


class LoggedSession(Session):
    """A session whose lines are logged."""

    def __init__(self, inner: Session, log: ActionLog) -> None:
        self._inner = inner
        self._log = log

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        running = self._inner.run(line, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)
        return await self._log.observed(line, running)

    async def interrupt(self) -> None:
        await self._inner.interrupt()

    async def close(self) -> None:
        await self._inner.close()


def logged_work(work: Callable[[Box, Task], Awaitable[Value]], path: Path) -> Callable[[Box, Task], Awaitable[Value]]:
    """The work of a rollout whose boxes write their log to `path`: one for each try, and how it ended."""

    async def call(box: Box, task: Task) -> Value:
        await box.log_to(path)
        try:
            value = await work(box, task)
        except BaseException as error:
            await box.log(f"the work raised {_shown(error)}")
            raise
        await box.log(f"the work returned {value!r:.400}")
        return value

    return call


def _prompt(command: Command) -> str:
    words = command if isinstance(command, str) else repr(list(command))
    return "$ " + "\n  > ".join(plain(words[:_COMMAND_CHARACTERS]).splitlines() or [""]) + "\n"


def _output(seen: Observation) -> Iterator[str]:
    for number, data in ((1, seen.stdout), (2, seen.stderr)):
        if len(data) > _HEAD_BYTES + _TAIL_BYTES:
            left_out = len(data) - _HEAD_BYTES - _TAIL_BYTES
            yield from _lines(number, data[:_HEAD_BYTES])
            yield f"  # {left_out} bytes are left out here\n"
            yield from _lines(number, data[-_TAIL_BYTES:])
        else:
            yield from _lines(number, data)


def _lines(number: int, data: bytes) -> Iterator[str]:
    lines = plain(data.decode("utf-8", "replace")).split("\n")
    for line in lines if lines[-1] else lines[:-1]:
        yield f"  {number}| {line}\n"


def _ending(seen: Observation) -> str:
    flags = ("timed_out", "truncated", "oom_killed", "pids_limited", "disk_full")
    how = f"exit {seen.exit_code}" if seen.exit_code is not None else f"signal {seen.signal}"
    words = [how, *(flag.replace("_", " ") for flag in flags if getattr(seen, flag)), f"{seen.execute_ms / 1e3:.3f} s"]
    return ", ".join(words)


def _shown(error: BaseException) -> str:
    return _cut(f"{type(error).__name__}: {error}")


def _cut(text: str) -> str:
    return " ".join(plain(text[:_RESULT_CHARACTERS]).split())


def _now() -> str:
    now_s = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s * 1000) % 1000:03d}Z"
