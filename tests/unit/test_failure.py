"""Blocks that undo something if they fail."""

import asyncio

import pytest

from dutyfree.failure import await_on_failure, on_failure


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_block_that_raises_is_undone_once(error: BaseException) -> None:
    undone: list[str] = []
    with pytest.raises(type(error)) as caught, on_failure(undone.append, "block"):
        raise error
    assert (caught.value, undone) == (error, ["block"])


def test_a_block_that_ends_well_is_not_undone() -> None:
    undone: list[str] = []
    with on_failure(undone.append, "block"):
        pass
    assert undone == []


async def test_an_undoing_under_way_goes_on_when_it_is_cancelled() -> None:
    begun, finished = asyncio.Event(), asyncio.Event()

    async def undo(seconds: float) -> None:
        begun.set()
        await asyncio.sleep(seconds)
        finished.set()

    async def fail() -> None:
        async with await_on_failure(undo, 0.01):
            raise ValueError("no")

    failing = asyncio.create_task(fail())
    await begun.wait()
    failing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await failing
    await asyncio.wait_for(finished.wait(), 5)
