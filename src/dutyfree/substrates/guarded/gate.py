"""The interface of a gate: what every call of a sandbox passes, and of everything opened in it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from dutyfree.errors import DutyfreeError


class Gate(Protocol):
    """Entered around each call: it may refuse the call, and it sees the error that the call ends with."""

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""

    async def end_after(self, error: DutyfreeError) -> None:
        """React to `error`, which is still the one that the caller gets."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
