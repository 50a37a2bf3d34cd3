"""Calls for which callers wait a bounded time, and the timer that they share."""

from __future__ import annotations

import asyncio

from dutyfree.substrates.guarded.bounded import BoundedCall, Deadlines


async def forever() -> str:
    await asyncio.sleep(3600)
    return "late"


async def stubborn() -> str:
    """Ignores its cancellation."""
    for _ in range(2):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "late"


async def soon() -> str:
    await asyncio.sleep(0)
    return "made"


async def test_a_result_wakes_all_callers() -> None:
    call = BoundedCall(soon, Deadlines(60))
    await asyncio.gather(*(call.settled() for _ in range(3)))
    assert (call.results, call.error, call.late) == (["made"], None, False)


async def test_a_caller_that_is_cancelled_does_not_stop_it() -> None:
    call = BoundedCall(soon, Deadlines(60))
    caller = asyncio.create_task(call.settled())
    caller.cancel()
    await asyncio.wait({caller})
    await call.settled()
    assert call.results == ["made"]


async def test_callers_do_not_wait_past_the_deadline_even_if_it_is_ignored() -> None:
    call = BoundedCall(stubborn, Deadlines(0.01))
    await asyncio.wait_for(call.settled(), 10)
    assert call.late
    assert not call.task.done()
    await asyncio.wait({call.task}, timeout=10)
    assert call.results == ["late"]


async def test_a_call_that_is_cancelled_before_its_first_step_wakes_its_callers() -> None:
    call = BoundedCall(forever, Deadlines(60))
    call.cancel()
    await asyncio.wait_for(call.settled(), 10)
    await asyncio.wait({call.task}, timeout=10)
    assert call.task.cancelled()
    assert call.results == []


async def test_each_call_has_its_own_deadline_although_they_share_a_timer() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines(0.2)
    first = BoundedCall(soon, deadlines)
    await asyncio.sleep(0.1)
    begun_s = loop.time()
    second = BoundedCall(forever, deadlines)
    await asyncio.wait_for(second.settled(), 10)
    assert loop.time() - begun_s >= 0.19  # not when the timer rings, which was set for the first
    assert (first.late, second.late) == (False, True)
    await asyncio.wait({second.task}, timeout=10)


async def test_a_closed_list_of_deadlines_has_no_timer() -> None:
    deadlines = Deadlines(0.01)
    call = BoundedCall(forever, deadlines)
    deadlines.close()
    await asyncio.sleep(0.05)
    assert not call.late
    call.cancel()
    await asyncio.wait({call.task}, timeout=10)
