"""Leases that a program forgets: blocks that are awaited, blocks that are dropped, boxes that are dropped."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

from dutyfree.errors import InvalidRequest
from dutyfree.leases.fence import Fence

if TYPE_CHECKING:
    from dutyfree.client.box import Box

P = ParamSpec("P")


class LeaseBlock(AbstractAsyncContextManager["Box"]):
    """What `host.lease()` returns: a block, not a box."""

    def __init__(self, block: AbstractAsyncContextManager[Box]) -> None:
        self._block = block

    def __aenter__(self) -> Coroutine[Any, Any, Box]:
        return self._block.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        return self._block.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, None, NoReturn]:
        """Raise InvalidRequest: an easy mistake, for which Python's own error names no remedy."""
        hint = "write `async with host.lease() as box:`, or `box = await host.acquire()` and `await box.close()`"
        raise InvalidRequest("host.lease() is a block, and cannot be awaited", hint=hint)


def lease_block(generate: Callable[P, AsyncIterator[Box]]) -> Callable[P, LeaseBlock]:
    """`asynccontextmanager` for leases: what it returns explains itself when it is awaited."""
    block = asynccontextmanager(generate)

    @functools.wraps(generate)
    def begin(*args: P.args, **kwargs: P.kwargs) -> LeaseBlock:
        return LeaseBlock(block(*args, **kwargs))

    return begin


def warn_of_dropped_block() -> None:
    """A block was entered and then dropped, so that the garbage collector ends it: warn."""
    message = (
        "a block (of a lease, a session ...) ends because the object that opened it was dropped before the block was "
        "left: keep that object; a lease from `acquire()` lasts until `close()`"
    )
    warnings.warn(message, ResourceWarning, stacklevel=2)


def watch_box(box: Box, fence: Fence, lease_id: str) -> None:
    """Warn if the box is dropped while its lease still lasts."""
    # Not at the interpreter's exit, when the host ends all its leases anyway.
    weakref.finalize(box, _warn_of_dropped_box, fence, lease_id).atexit = False


def _warn_of_dropped_box(fence: Fence, lease_id: str) -> None:
    if not fence.gone:
        message = (
            f"the box of lease {lease_id} was dropped, and the lease goes on: keep the box and close it; "
            "`host.get` finds the lease again, `host.release` ends it"
        )
        warnings.warn(message, ResourceWarning, stacklevel=2)
