"""Byte streams and datagrams between the host and programs in a sandbox."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

DEFAULT_DIAL_TIMEOUT_S = 10.0
DEFAULT_CONNECTION_READ_BYTES = 64 * 1024
MAX_DATAGRAM_BYTES = 4096


class Connection(ABC):
    """A byte stream between the host and a program inside the sandbox.

    A side that does not read makes the other wait; it costs no more memory than a window. Its calls raise PortFailed
    when the program broke the connection off (ECONNRESET), and otherwise as `Sandbox.run` does. Two tasks may use it
    at a time: one that reads and one that writes.
    """

    @property
    @abstractmethod
    def peer(self) -> tuple[str, int]:
        """Address and port of the program's end."""

    @property
    @abstractmethod
    def local(self) -> tuple[str, int]:
        """Address and port of the guest's end, both inside the sandbox."""

    @abstractmethod
    async def read(self, limit_bytes: int = DEFAULT_CONNECTION_READ_BYTES) -> bytes:
        """The next bytes, as soon as there are some; empty once the program has closed its side and all was read."""

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Send all of `data`, text as UTF-8; waits for room. Raises InvalidRequest after `end_input`."""

    def write_now(self, data: bytes | str, *, last: bool = False) -> bool:
        """Send all of `data`, and with `last` the end of this side, if there is room for it at once.

        False: nothing was sent, and `write` waits for room or says what is wrong. For callbacks of the event loop,
        which cannot wait. Raises InvalidRequest for what is neither bytes nor text.
        """
        return False

    @abstractmethod
    async def end_input(self) -> None:
        """Close this side: the program reads the end, and may still write. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Close both directions at once, and drop what is on its way. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Listener(ABC):
    """The guest listens on an address inside the sandbox, on behalf of the host."""

    @property
    @abstractmethod
    def local(self) -> tuple[str, int]:
        """Address and port, inside the sandbox."""

    @abstractmethod
    async def accept(self) -> Connection:
        """The next connection that a program makes. A cancelled call loses none. Raises as `Sandbox.listen` does."""

    @abstractmethod
    async def close(self) -> None:
        """Listen no more; connections that were accepted go on. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Datagrams(ABC):
    """A UDP socket inside the sandbox, on behalf of the host. Datagrams past 4,096 bytes are lost."""

    @property
    @abstractmethod
    def local(self) -> tuple[str, int]:
        """Address and port, inside the sandbox."""

    @abstractmethod
    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        """The next datagram, and its sender. What comes faster than it is taken is lost."""

    @abstractmethod
    async def send(self, data: bytes, to: tuple[str, int]) -> None:
        """Send one datagram, which is lost where there is no room for it. Raises InvalidRequest past 4,096 bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the socket. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
