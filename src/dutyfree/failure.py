"""Blocks that undo something if they fail. A cancellation counts as a failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import ParamSpec

P = ParamSpec("P")


@contextlib.contextmanager
def on_failure(undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
    """Call `undo` if the block raises, which raises what the block has raised."""
    try:
        yield
    except BaseException:
        undo(*args, **kwargs)
        raise


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
