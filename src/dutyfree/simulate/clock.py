"""A clock of discrete events, and cores that operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from dutyfree.errors import InvalidRequest

Call = Callable[..., None]


class Clock:
    """Runs calls in the order of their times; calls of the same time run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._number = 0
        self._calls: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Call, *arguments: Any) -> None:
        """Schedule a call `delay_s` from now."""
        self._number += 1
        heappush(self._calls, (self.now_s + delay_s, self._number, call, arguments))

    def stop(self) -> None:
        """Drop all scheduled calls."""
        self._calls.clear()

    def run(self) -> None:
        """Run until no call is left."""
        calls = self._calls
        while calls:
            self.now_s, _, call, arguments = heappop(calls)
            self.events += 1
            call(*arguments)


@dataclass(frozen=True, slots=True)
class Contention:
    """How much slower operations become when more are in progress than there are cores, or whatever else they share.

    With `n` operations in progress each goes at `(cores / n) ** exponent` of its speed alone, from the first that is
    one too many. Exponent 1 is processor sharing: all wait for processors. 0 is none: measured latencies hold
    under load, too, which is right if they were measured under the same load. `fitting` finds both from a real run.
    """

    cores: float = 1.0
    exponent: float = 0.0

    def __post_init__(self) -> None:
        if not (self.cores > 0 and 0 <= self.exponent <= 4):
            raise InvalidRequest(f"contention of exponent {self.exponent:g} on {self.cores:g} cores is refused")

    def speed(self, under_way: float) -> float:
        """The speed of each operation; alone it is 1."""
        return 1.0 if under_way <= self.cores else (self.cores / under_way) ** self.exponent


NO_CONTENTION: Final = Contention()


class Processor:
    """Runs operations on shared cores. Exact for every speed that depends on the number of operations alone.

    All operations go at the same speed, so the one with the least work left always ends first. So there is one clock of
    work done (`_done_s`), a heap of the times on it at which operations end, and one event for the first of them.
    """

    def __init__(self, clock: Clock, contention: Contention) -> None:
        self._clock = clock
        self._contention = contention
        self._shares = contention.exponent > 0
        self._works: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._beside = 0.0
        self._done_s = 0.0
        self._since_s = 0.0
        self._speed = 1.0
        self._number = 0
        self._awaited = 0
        """The number of the last scheduled event; earlier ones are ignored."""

    @property
    def speed(self) -> float:
        """The speed of each operation at this moment."""
        return self._speed

    def start(self, work_s: float, call: Call, *arguments: Any) -> None:
        """Call it when this much work is done; alone, that is after `work_s`."""
        if not self._shares:
            self._clock.after(work_s, call, *arguments)
            return
        self._advance()
        self._number += 1
        heappush(self._works, (self._done_s + work_s, self._number, call, arguments))
        self._await(is_first=self._works[0][1] == self._number)

    def beside(self, load: float) -> None:
        """Add (or take away) load that is not an operation of the pool: tenants that compute."""
        if self._shares:
            self._advance()
            self._beside += load
            self._await(is_first=False)

    def _advance(self) -> None:
        now_s = self._clock.now_s
        self._done_s += (now_s - self._since_s) * self._speed
        self._since_s = now_s

    def _await(self, *, is_first: bool) -> None:
        speed = self._contention.speed(len(self._works) + self._beside)
        if speed == self._speed and not is_first:
            return
        self._speed = speed
        if self._works:
            self._awaited += 1
            left_s = max(0.0, self._works[0][0] - self._done_s)
            self._clock.after(left_s / speed, self._end_first, self._awaited)

    def _end_first(self, awaited: int) -> None:
        if awaited != self._awaited:
            return
        self._advance()
        _, _, call, arguments = heappop(self._works)
        self._await(is_first=True)
        call(*arguments)
