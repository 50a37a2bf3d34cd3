"""How much works slow one another down, and what each would have taken alone: from when they began and ended.

With `n` works under way each is taken to go at `(cores / n) ** exponent` of its speed alone (see `Contention`). So for
a given exponent the work that each has done is the integral of that speed over its time. How much work something is has
nothing to do with how many others it meets when it begins; so the exponent is the one under which the two are not
correlated. (Not the one under which works are most alike: the large ones live longer, and outlive those beside them.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import log, sqrt
from statistics import fmean
from typing import Final

from dutyfree.simulate.clock import NO_CONTENTION, Contention

EXPONENTS: Final = tuple(step / 20 for step in range(41))
LEAST_CORRELATION: Final = 3.0
"""In standard errors, of what works took and how many they met: below it, nobody can say that there is contention."""
_SHORTEST_S: Final = 1e-9
FEW: Final = 20
"""Works; of fewer nothing is fitted."""
MANY: Final = 50_000
"""Works; of more, the exponent is that of the last ones: a bound on how long the search takes."""


@dataclass(frozen=True, slots=True)
class Took:
    """One operation of a real run."""

    operation: str
    digest: str
    seconds: float
    end_s: float | None = None
    """When it had ended; None where nobody wrote it down."""


def fit(took: Sequence[Took], cores: float) -> tuple[Contention, list[Took]]:
    """The contention among operations on so many cores, and the operations as they would have been alone.

    Operations without a time, and all of them where nothing can be said, are as they were, without contention.
    """
    timed = sorted((each for each in took if each.end_s is not None and each.seconds > 0), key=_end_s)
    found = _contention(timed[-MANY:], cores)
    if found is NO_CONTENTION:
        return NO_CONTENTION, list(took)
    rest = [each for each in took if each.end_s is None or each.seconds <= 0]
    alone = zip(timed, _Crowd.of(timed).alone_s(found), strict=True)
    return found, [*(replace(each, seconds=seconds) for each, seconds in alone), *rest]


def _contention(timed: Sequence[Took], cores: float) -> Contention:
    if len(timed) < FEW:
        return NO_CONTENTION
    crowd = _Crowd.of(timed)
    kinds = [each.operation for each in timed]
    met = [log(max(1.0, count / cores)) for count in crowd.met()]
    if _correlation(kinds, met, [each.seconds for each in timed]) * sqrt(len(timed)) < LEAST_CORRELATION:
        return NO_CONTENTION
    return min(
        (Contention(cores, exponent) for exponent in EXPONENTS),
        key=lambda each: abs(_correlation(kinds, met, crowd.alone_s(each))),
    )


def _end_s(took: Took) -> float:
    return took.end_s if took.end_s is not None else 0.0


class _Crowd:
    """How many were under way, at all times."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans
        changes: dict[float, int] = defaultdict(int)
        for start_s, end_s in spans:
            changes[start_s] += 1
            changes[end_s] -= 1
        self._times = sorted(changes)
        self._place = {time_s: number for number, time_s in enumerate(self._times)}
        self._counts = list(accumulate(changes[time_s] for time_s in self._times))

    @staticmethod
    def of(timed: Sequence[Took]) -> _Crowd:
        """Of operations that all have a time."""
        return _Crowd([(_end_s(each) - each.seconds, _end_s(each)) for each in timed])

    def met(self) -> list[int]:
        """How many each has met, itself included: those under way when it began, and those that began just after.

        Works that are ordered together begin one after the other, and meet all the same. Just after is within the time
        that nearly all works take, so that how long this one took has no say in it.
        """
        starts, ends = sorted(start_s for start_s, _ in self._spans), sorted(end_s for _, end_s in self._spans)
        taken = sorted(end_s - start_s for start_s, end_s in self._spans)
        soon_s = taken[len(taken) // 20]
        return [bisect_right(starts, start_s + soon_s) - bisect_right(ends, start_s) for start_s, _ in self._spans]

    def alone_s(self, contention: Contention) -> list[float]:
        """The work that each has done, in the seconds that it would have taken alone."""
        pieces = zip(pairwise(self._times), self._counts, strict=False)
        work = [(end_s - start_s) * contention.speed(count) for (start_s, end_s), count in pieces]
        done = [0.0, *accumulate(work)]
        return [done[self._place[end_s]] - done[self._place[start_s]] for start_s, end_s in self._spans]


def _correlation(kinds: Sequence[str], met: Sequence[float], seconds: Sequence[float]) -> float:
    """Of the logarithms of what works took with how many they met, within works of one kind."""
    by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, crowd, took_s in zip(kinds, met, seconds, strict=True):
        by_kind[kind].append((crowd, log(max(took_s, _SHORTEST_S))))
    pairs = [pair for values in by_kind.values() for pair in _centred(values)]
    crowds, times = [crowd for crowd, _ in pairs], [took for _, took in pairs]
    scale = sqrt(_dot(crowds, crowds) * _dot(times, times))
    return _dot(crowds, times) / scale if scale > 0 else 0.0


def _centred(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    middles = [fmean(side) for side in zip(*pairs, strict=True)]
    return [(first - middles[0], second - middles[1]) for first, second in pairs]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
