"""What runs in a sandbox and is spoken to meanwhile: an action under way, a shell, a terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Chunk, Observation


class ActionStream(ABC):
    """An action under way: an async iterator of chunks, with the observation at its end.

    Leaving the `async with` block, or cancelling, ends the action's whole process tree. A reader that stops reading
    makes the command wait (its pipe fills up); it costs no memory on the host.
    """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks as they come; ends when the action has ended."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give the command input; returns when the guest has room for it. Raises InvalidRequest after `end_input`."""

    @abstractmethod
    async def end_input(self) -> None:
        """Close the command's standard input. Idempotent."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing once it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the whole process tree, also what left its process group. Does nothing once it has ended."""

    @abstractmethod
    async def wait(self) -> Observation:
        """The observation (output that was not read is dropped; `stdout` and `stderr` are empty). Raises as `run`."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Session(ABC):
    """A persistent shell: cwd, variables, functions and background jobs survive from action to action."""

    @abstractmethod
    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        """Run a line (or a script) in the shell; one at a time, later calls wait their turn.

        A timeout interrupts the line; the session survives if the shell does. Raises SessionEnded after the shell has
        exited (the line that made it exit still gives its observation), otherwise as `Sandbox.run` does.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Stop the running line as Ctrl-C would; the session goes on. Does nothing between lines."""

    @abstractmethod
    async def close(self) -> None:
        """End the shell and its jobs. Idempotent."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether another line can be run."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Terminal(ABC):
    """A command on a pseudo-terminal: raw bytes in and out."""

    @abstractmethod
    async def read(self) -> bytes:
        """The next output; empty once the command has ended and all was read. Raises as `Sandbox.run` does."""

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Send input, as if it was typed; text becomes UTF-8."""

    @abstractmethod
    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal's window; the command gets SIGWINCH."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing once it has ended."""

    @abstractmethod
    async def wait(self) -> Observation:
        """The observation, when the command has ended (its output is what `read` gave)."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up: kill the command's process tree. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
