"""Files of a sandbox behind a gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dutyfree.checked import FilePath, path_text
from dutyfree.contract import Files, Watch
from dutyfree.model import User
from dutyfree.substrates.forwarding import ForwardingFiles
from dutyfree.substrates.guarded.gate import Gate
from dutyfree.substrates.guarded.parts import GuardedWatch

Result = TypeVar("Result")


class GuardedFiles(ForwardingFiles):
    """`inner`, behind `gate`."""

    def __init__(self, inner: Files, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def as_user(self, user: User) -> Files:
        return GuardedFiles(self._inner.as_user(user), self._gate)

    def watch(self, path: FilePath, *, recursive: bool = False) -> Watch:
        return GuardedWatch(self._inner.watch(path_text("path", path), recursive=recursive), self._gate)

    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        async with self._gate:
            return await operation(self._inner)
