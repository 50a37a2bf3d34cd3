"""Programs that carry a guest's bytes: none is left to a loop that no longer runs."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings

from dutyfree import native
from dutyfree.substrates.engine.programs import channel_through, wait_for_programs


async def test_a_program_is_reaped_before_the_wait_for_it_ends() -> None:
    lasting = await channel_through([str(native.guest_path()), "--stdio"])
    ended = await channel_through([str(native.guest_path()), "--stdio"])
    ended.close()
    await asyncio.wait_for(wait_for_programs(), 5)
    assert not ended.alive
    assert lasting.alive, "whoever has not ended is not waited for"
    lasting.close()
    await asyncio.wait_for(wait_for_programs(), 5)


def test_a_loop_that_closes_at_once_leaves_nothing_unclosed() -> None:
    async def briefly() -> None:
        channel = await channel_through([str(native.guest_path()), "--stdio"])
        channel.close()
        await wait_for_programs()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(10):
            asyncio.run(briefly())
        time.sleep(0.1)
        gc.collect()
    assert [str(each.message) for each in seen] == []
