"""Open-loop arrivals: trajectories arrive at planned times, whether or not earlier ones are finished."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from dutyfree.trace import now_ns

OUTSTANDING: Final = 4
"""With this many times the concurrency running, an arrival is refused: an unbounded queue would measure nothing."""
_SETTLING_NS: Final = 10_000_000


def arrivals_ns(seed: int, count: int, rate_per_s: float) -> tuple[int, ...]:
    """When each of `count` trajectories arrives, from the start, with exponential gaps.

    By Little's law, if a trajectory takes `s` seconds, `rate_per_s * s` of them run at once on average.
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
    refuse: Callable[[int, int], None],
) -> None:
    """Call `arrive(index, intended_ns)` for each at its time, on the monotonic clock, and wait for all of them to end.

    An arrival while `most` are running goes to `refuse` instead. If this is cancelled, or a callback raises (the error
    is then raised here), the running ones are cancelled and waited for.
    """
    start_ns = now_ns() + _SETTLING_NS
    running: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as tasks:
            for index, time_ns in enumerate(times_ns):
                intended_ns = start_ns + time_ns
                await asyncio.sleep(max(0, intended_ns - now_ns()) / 1e9)
                if len(running) >= most:
                    refuse(index, intended_ns)
                    continue
                task = tasks.create_task(arrive(index, intended_ns))
                running.add(task)
                task.add_done_callback(running.discard)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
