"""What stands before a sandbox and everything opened in it, whoever keeps it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from dutyfree.errors import DutyfreeError


class Gate(Protocol):
    """Entered around each call: it may refuse the call, and it is shown how the call ended."""

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""

    async def end_after(self, error: DutyfreeError) -> None:
        """Do what has to be done because of `error`, which stays the one that the caller sees."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
