"""Many tasks share the lock, or one holds it alone."""

import asyncio

import pytest

from dutyfree.substrates.engine.shared_lock import SharedLock


async def test_many_share_it_at_once() -> None:
    lock = SharedLock()
    async with lock.shared(), lock.shared():
        pass


async def test_an_exclusive_holder_waits_for_the_sharers_and_keeps_others_out() -> None:
    lock, events = SharedLock(), []

    async def hold() -> None:
        async with lock.exclusive():
            events.append("held")
            await asyncio.sleep(0.01)
            events.append("free")

    async def late() -> None:
        async with lock.shared():
            events.append("late")

    async with lock.shared():
        tasks = [asyncio.create_task(hold())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0.01)
        assert events == []
    await asyncio.gather(*tasks)
    assert events == ["held", "free", "late"]


async def test_a_cancelled_wait_for_it_lets_others_share_it() -> None:
    lock = SharedLock()
    async with lock.shared():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), lock.exclusive():
                pass
        async with asyncio.timeout(1), lock.shared():
            pass


@pytest.mark.parametrize("steps", range(6))
async def test_it_can_be_held_whenever_a_sharer_is_cancelled(steps: int) -> None:
    lock = SharedLock()

    inside: set[int] = set()

    async def passing(number: int) -> None:
        async with lock.shared():
            inside.add(number)
            try:
                await asyncio.sleep(0)
            finally:
                inside.remove(number)

    async with asyncio.timeout(5):
        async with lock.exclusive():
            tasks = [asyncio.create_task(passing(number)) for number in range(5)]
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        for each in tasks[::2]:
            each.cancel()
        async with lock.exclusive():
            assert inside == set()
        await asyncio.gather(*tasks, return_exceptions=True)
