"""What belongs to a lease, put into its forks, and again into a sandbox that was reset; and the end of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dutyfree.contract import Sandbox
from dutyfree.leases.binding import Binding, bind
from dutyfree.pool.grants import Grant


class Destroyable(Protocol):
    """A sandbox, or the box of one."""

    async def destroy(self) -> None:
        """End it."""


async def bind_forks(forks: list[Sandbox], binding: Binding, grant: Grant, parent: Sandbox) -> None:
    """Write the secret files into forks, which are in memory and not copied; and serve the forks' egress.

    `binding` is that of `parent`. If this raises, the forks are destroyed.
    """
    own, egress = binding.of_forks(), grant.egress
    if not own.secret_files and egress is None:
        return
    try:
        await asyncio.gather(*(bind(fork, own, grant.capabilities) for fork in forks))
        if egress is not None:
            await asyncio.gather(*(egress.bind(fork, parent) for fork in forks))
    except BaseException:
        await asyncio.gather(*(fork.destroy() for fork in forks), return_exceptions=True)
        raise


async def bind_again(
    sandbox: Sandbox, binding: Binding, grant: Grant, restore: Callable[[Sandbox], Awaitable[None]] | None
) -> None:
    """Bring a sandbox that was reset to the state at the beginning of the lease. If this raises, it is destroyed."""
    try:
        if restore is not None:
            await restore(sandbox)
        await bind(sandbox, binding, grant.capabilities)
        if grant.egress is not None:
            await grant.egress.bind(sandbox)
    except BaseException:  # a sandbox without some of its stages or files must not be used
        await sandbox.destroy()
        raise


async def destroy_all(sandbox: Sandbox, forks: Sequence[Destroyable], grant: Grant) -> BaseException | None:
    """Destroy a sandbox and forks of it, all of them, and end its egress. Returns the first error."""
    ends = [sandbox.destroy(), *(fork.destroy() for fork in forks)]
    outcomes = await asyncio.gather(*ends, return_exceptions=True)
    if grant.egress is not None:
        await grant.egress.end(sandbox)
    return next((each for each in outcomes if each is not None), None)
