"""Open-loop arrivals: trajectories come when they come, whether or not those before them are done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from dutyfree.trace import now_ns

OUTSTANDING: Final = 4
"""Past this many times the concurrency, what arrives is turned away: a queue without a bound measures nothing."""
_SETTLING_NS: Final = 10_000_000


def arrivals_ns(seed: int, count: int, rate_per_s: float) -> tuple[int, ...]:
    """When each of `count` trajectories arrives, from the start, with exponential gaps.

    By Little's law, of trajectories that take `s` seconds each, `rate_per_s * s` are then under way on average.
    """
    numbers = random.Random(f"arrivals {seed}")
    times_ns: list[int] = []
    at_ns = 0.0
    for _ in range(count):
        times_ns.append(round(at_ns))
        at_ns += numbers.expovariate(rate_per_s) * 1e9
    return tuple(times_ns)


async def drive(
    times_ns: Sequence[int],
    most: int,
    arrive: Callable[[int, int], Coroutine[Any, Any, None]],
    turn_away: Callable[[int, int], None],
) -> None:
    """Call `arrive(index, intended_ns)` for each at its time, on the monotonic clock, and wait for all of them to end.

    Those that come while `most` are under way are turned away. Cancelled, or when one of the callbacks raises (which is
    then raised here), it cancels what is under way and waits for it.
    """
    start_ns = now_ns() + _SETTLING_NS
    under_way: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as tasks:
            for index, time_ns in enumerate(times_ns):
                intended_ns = start_ns + time_ns
                await asyncio.sleep(max(0, intended_ns - now_ns()) / 1e9)
                if len(under_way) >= most:
                    turn_away(index, intended_ns)
                    continue
                task = tasks.create_task(arrive(index, intended_ns))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
