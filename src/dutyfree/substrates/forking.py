"""Making many sandboxes at once: all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest


async def multiply(create: Callable[[], Awaitable[Sandbox]], count: int, *, at_once: int) -> list[Sandbox]:
    """`count` sandboxes from `create`, at most `at_once` at a time.

    If one cannot be made, or this is cancelled, the others are destroyed. Raises what `create` raises.
    """
    places = asyncio.Semaphore(at_once)

    async def one() -> Sandbox:
        async with places:
            return await create()

    work = [asyncio.create_task(one()) for _ in range(count)]
    try:
        return list(await asyncio.gather(*work))
    except BaseException:
        for task in work:
            task.cancel()
        made = await asyncio.gather(*work, return_exceptions=True)
        ends = (each.destroy() for each in made if isinstance(each, Sandbox))
        await asyncio.shield(asyncio.gather(*ends, return_exceptions=True))  # also if this is cancelled again
        raise


def check_count(count: int, most: int) -> None:
    """Raise InvalidRequest for a number of forks that cannot be made."""
    if not 1 <= count <= most:
        raise InvalidRequest(f"fork({count}): between 1 and {most} sandboxes can be made")
