"""Blocks that undo something if they fail. A cancellation counts as a failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Generic, ParamSpec

P = ParamSpec("P")


class on_failure(Generic[P]):
    """Calls `undo` if the block raises, which raises what the block has raised.

    A class and not a generator: each creation of a sandbox passes several, and this takes half of the time.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        self._undo = partial(undo, *args, **kwargs)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._undo()


@contextlib.asynccontextmanager
async def await_on_failure(
    undo: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs
) -> AsyncIterator[None]:
    """The same with an awaitable, which runs to its end even if this is cancelled meanwhile."""
    try:
        yield
    except BaseException:
        await asyncio.shield(undo(*args, **kwargs))
        raise
