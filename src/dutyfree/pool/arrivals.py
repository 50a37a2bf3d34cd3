"""What the past of a state lets expect: how many come at once, after which silence, and how soon. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

MAX_TICKS: Final = 64
TICK_S: Final = 0.05
"""Arrivals that are no further apart are remembered as one moment: a tick. Of a synchronous step, that is a few."""
BURST_S: Final = 1.0
"""No more than this of the past is a pattern of nothing yet: a first burst may be the last."""
MEMORY_S: Final = 3600.0
"""The time over which gaps are remembered: every so often, what is known of them loses half of its weight."""
COVERED: Final = 0.8
"""The share of the time between arrivals that a gap of `Past.gap_s` or less is a part of."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many came at once, of several times."""

    counts: tuple[int, ...]
    """Smallest first."""
    steps: tuple[tuple[int, float], ...] = field(init=False)
    """Each count but 0, with the share of times that so many came, or more."""

    _sums: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sums", tuple(accumulate(self.counts)))
        times = len(self.counts)
        found = ((count, 1 - bisect_left(self.counts, count) / times) for count in sorted(set(self.counts)) if count)
        object.__setattr__(self, "steps", tuple(found))

    def quantile(self, share: float) -> int:
        """The smallest number that is enough for this share of those who came.

        Those who came are counted, not the times: of 64 at once and 36 one by one, 64 found themselves in a crowd.
        """
        return self.counts[bisect_left(self._sums, share * self._sums[-1])]


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of those who came for a state, in stretches as long as a refill takes, each begun by an arrival.

    How many come within such a stretch, a wave, is what has to be ready when the first one comes, for nothing that is
    begun then is ready before its end. Counted like this, rather than fitted by a Poisson distribution, synchronous
    steps weigh what they weigh: 64 arrivals at once and then silence are a need of 64, not one of the mean.
    """

    last_s: float
    """When somebody came last."""
    arrivals: int
    """All that are remembered, announced or not."""
    gap_s: float | None
    """How long nobody comes, mostly: gaps no longer than this make up `COVERED` of all time. None before there is a
    pattern."""
    unannounced: float
    over_s: float
    """How many came that nobody had announced, and in which time; both fade."""
    _waves: tuple[tuple[int, int], ...]
    """The octave of the silence before each one, and how many came that nobody had announced."""
    _gaps: tuple[tuple[float, float], ...]
    """The bounds of every gap that there was."""
    _sizes: dict[int, Sizes] = field(default_factory=dict)

    def likely(self, silence_s: float) -> Sizes:
        """The waves that came after a silence of about this length, or longer if there are none; at last, shorter.

        At the beginning of a step many come at once, and then one by one, as others are done: which of the two is to be
        expected can be told from how long nobody came.
        """
        octave = _octave(silence_s)
        known = self._sizes.get(octave)
        if known is None:
            longer = [after for after, _ in self._waves if after >= octave]
            least = min(longer) if longer else max([after for after, _ in self._waves])
            counts = [count for after, count in self._waves if least <= after <= least + 2]
            known = self._sizes[octave] = Sizes(tuple(sorted(counts)))
        return known

    def soon(self, silence_s: float, within_s: float) -> bool:
        """Whether somebody can be expected within a time, if nobody came for so long.

        That is if a silence of this length ever ended by then; half of its length is for the day when it ends sooner.
        """
        until_s = 2 * (silence_s + within_s)
        return any(shortest_s <= until_s and silence_s <= longest_s for shortest_s, longest_s in self._gaps)

    def under_way(self, lead_s: float) -> int:
        """Little's law: how many creations that take `lead_s` are under way at any time if each arrival begins one."""
        return int(self.unannounced * lead_s / (self.over_s + lead_s)) if self.gap_s is not None else 0


class History:
    """When somebody came, in bounded space: ticks, and for how much of the time there were gaps of which length."""

    __slots__ = (
        *("_arrivals", "_crowds", "_gap_times", "_kept_for", "_known", "_known_step", "_opened", "_silences"),
        *("_times", "_total_s", "_unannounced", "_weight"),
    )

    def __init__(self) -> None:
        self._times = array("d")
        self._unannounced = array("l")
        self._silences = array("b")
        """The octave of the silence before each tick."""
        self._kept_for = array("b")
        """The octave of the silence before the burst that each tick is a part of: see `_thin_out`."""
        self._crowds: dict[int, int] = {}
        """How many ticks are kept for each octave."""
        self._opened = (-math.inf, 0)
        """When the last burst began, and the octave of the silence before it."""
        self._gap_times: dict[int, float] = {}
        """Seconds, by the quarter of an octave that gaps are in."""
        self._total_s = 0.0
        self._weight = 0.0
        """Unannounced arrivals; fades as the gaps do."""
        self._arrivals = 0
        self._known: Past | None = None
        self._known_step = 0

    @property
    def last_s(self) -> float:
        """When somebody came last."""
        return self._times[-1]

    def add(self, now_s: float, announced: bool) -> None:
        """Somebody came."""
        if not self._times or now_s - self._times[-1] > TICK_S:
            self._begin_tick(now_s)
        self._unannounced[-1] += not announced
        self._weight += not announced
        self._arrivals += 1
        self._known = None

    def past(self, lead_s: float) -> Past:
        """What is known, in waves as long as a refill takes."""
        # Measured costs move a little with every observation; rounded to quarters of an octave, most leads stay what
        # they were, and so does the answer.
        step = _quarter(max(lead_s, TICK_S))
        if self._known is None or self._known_step != step:
            self._known, self._known_step = self._found(2 ** (step / 4)), step
        return self._known

    def _begin_tick(self, now_s: float) -> None:
        octave = _LONGEST
        if self._times:
            gap_s = now_s - self._times[-1]
            octave, quarter = _octave(gap_s), _quarter(gap_s)
            self._gap_times[quarter] = self._gap_times.get(quarter, 0.0) + gap_s
            self._total_s += gap_s
            if self._total_s > 2 * MEMORY_S:
                self._fade()
        if octave >= self._opened[1] or now_s - self._opened[0] > BURST_S:
            self._opened = now_s, octave
        self._times.append(now_s)
        self._unannounced.append(0)
        self._silences.append(octave)
        self._kept_for.append(self._opened[1])
        self._crowds[self._opened[1]] = self._crowds.get(self._opened[1], 0) + 1
        if len(self._times) > MAX_TICKS:
            self._thin_out()

    def _thin_out(self) -> None:
        """Forget the oldest tick of the kind that there are most of: how steps begin is not to be forgotten for all
        those who come one by one while they last."""
        kind = max(self._crowds, key=self._crowds.__getitem__)
        place = self._kept_for.index(kind)
        self._crowds[kind] -= 1
        for each in (self._times, self._unannounced, self._silences, self._kept_for):
            del each[place]

    def _fade(self) -> None:
        self._gap_times = {
            quarter: seconds / 2
            for quarter, seconds in self._gap_times.items()
            if seconds > _bounds(quarter)[0] / 8  # of a single one, that is after four times
        }
        self._total_s /= 2
        self._weight /= 2

    def _found(self, lead_s: float) -> Past:
        waves: list[tuple[int, int]] = []
        begun_s = -math.inf
        for time_s, silence, count in zip(self._times, self._silences, self._unannounced, strict=True):
            if time_s - begun_s > lead_s:
                waves.append((silence, count))
                begun_s = time_s
            else:
                waves[-1] = (waves[-1][0], waves[-1][1] + count)
        quarters = sorted(self._gap_times)
        gap_s, sum_s = None, 0.0
        for quarter in quarters if self._total_s > BURST_S else ():
            sum_s += self._gap_times[quarter]
            gap_s = _bounds(quarter)[1]
            if sum_s >= COVERED * self._total_s:
                break
        gaps = tuple([_bounds(quarter) for quarter in quarters])
        return Past(self.last_s, self._arrivals, gap_s, self._weight, self._total_s, tuple(waves), gaps)


_LONGEST: Final = 40
"""The octave of a silence that had no beginning."""


def _octave(gap_s: float) -> int:
    return min(_LONGEST, math.ceil(math.log2(gap_s / TICK_S))) if gap_s > TICK_S else 0


def _quarter(gap_s: float) -> int:
    return round(4 * math.log2(gap_s))


def _bounds(quarter: int) -> tuple[float, float]:
    """The shortest and the longest gap that is in a quarter of an octave."""
    return 2 ** ((quarter - 0.5) / 4), 2 ** ((quarter + 0.5) / 4)
