"""Files of a sandbox behind a gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dutyfree.contract import Files
from dutyfree.substrates.forwarding import ForwardingFiles
from dutyfree.substrates.guarded.gate import Gate

Result = TypeVar("Result")


class GuardedFiles(ForwardingFiles):
    """`inner`, behind `gate`."""

    def __init__(self, inner: Files, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        async with self._gate:
            return await operation(self._inner)
