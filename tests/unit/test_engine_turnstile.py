"""Many pass, or one holds it shut."""

import asyncio

import pytest

from dutyfree.substrates.engine.turnstile import Turnstile


async def test_many_pass_at_once() -> None:
    turnstile = Turnstile()
    async with turnstile.passing(), turnstile.passing():
        pass


async def test_whoever_shuts_it_waits_for_those_inside_and_keeps_others_out() -> None:
    turnstile, told = Turnstile(), []

    async def shut() -> None:
        async with turnstile.shut():
            told.append("shut")
            await asyncio.sleep(0.01)
            told.append("open")

    async def late() -> None:
        async with turnstile.passing():
            told.append("late")

    async with turnstile.passing():
        tasks = [asyncio.create_task(shut())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0.01)
        assert told == []
    await asyncio.gather(*tasks)
    assert told == ["shut", "open", "late"]


async def test_giving_up_on_shutting_it_lets_others_pass() -> None:
    turnstile = Turnstile()
    async with turnstile.passing():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), turnstile.shut():
                pass
        async with asyncio.timeout(1), turnstile.passing():
            pass


@pytest.mark.parametrize("steps", range(6))
async def test_whenever_those_who_pass_are_cancelled_it_can_be_shut(steps: int) -> None:
    turnstile = Turnstile()

    inside: set[int] = set()

    async def passing(number: int) -> None:
        async with turnstile.passing():
            inside.add(number)
            try:
                await asyncio.sleep(0)
            finally:
                inside.remove(number)

    async with asyncio.timeout(5):
        async with turnstile.shut():
            tasks = [asyncio.create_task(passing(number)) for number in range(5)]
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        for each in tasks[::2]:
            each.cancel()
        async with turnstile.shut():
            assert inside == set()
        await asyncio.gather(*tasks, return_exceptions=True)
