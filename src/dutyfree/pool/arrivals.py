"""Statistics of past arrivals for one state: the sizes of waves of requests and the gaps between them. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import field
from itertools import accumulate
from typing import Final

from dutyfree.values import dataclass

MAX_TICKS: Final = 64
"""Ticks that a history keeps; see `History._thin_out`."""
TICK_S: Final = 0.05
"""Arrivals at most this far apart count as one tick. A synchronous training step has few ticks."""
BURST_S: Final = 1.0
"""Arrivals over no more than this time show no pattern yet: a first burst may be the only one."""
MEMORY_S: Final = 3600.0
"""Each time that the recorded gaps add up to twice this time, the history halves the weight of all of them."""
COVERED: Final = 0.8
"""Gaps of `Past.gap_s` or less make up this share of the time between arrivals."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of past waves: how many requests each wave had."""

    counts: tuple[int, ...]
    """One entry for each wave, smallest first."""
    steps: tuple[tuple[int, float], ...] = field(init=False)
    """Each size except 0, with the share of waves that had at least this size."""

    _sums: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sums", tuple(accumulate(self.counts)))
        waves = len(self.counts)
        steps = ((count, 1 - bisect_left(self.counts, count) / waves) for count in sorted(set(self.counts)) if count)
        object.__setattr__(self, "steps", tuple(steps))

    def quantile(self, share: float) -> int:
        """The smallest wave size such that waves up to this size brought this share of all requests.

        It counts requests, not waves. After one wave of 64 requests and 36 waves of one, a request was in the large
        wave with a probability of 64 %, although only one wave in 37 was large.
        """
        return self.counts[bisect_left(self._sums, share * self._sums[-1])]


@dataclass(frozen=True, slots=True)
class Past:
    """The past arrivals for a state, divided into waves. A wave lasts as long as a refill takes.

    A wave begins with an arrival. A sandbox whose creation begins at that moment is ready only when the wave is over.
    So all sandboxes for a wave must be ready before its first request.

    The planner counts whole waves instead of fitting a Poisson rate, because the requests of a synchronous training
    step come together: 64 arrivals at once, and then none for a minute, need 64 sandboxes. The mean rate would
    suggest one.
    """

    last_s: float
    """The time of the last arrival."""
    arrivals: int
    """All recorded arrivals, announced or not."""
    gap_s: float | None
    """The typical gap between arrivals: gaps up to this length make up `COVERED` of the time. None before there is a
    pattern."""
    unannounced: float
    """The number of unannounced arrivals in the last `over_s` seconds. Both numbers are halved from time to time."""
    over_s: float
    _waves: tuple[tuple[int, int], ...]
    """For each wave: the octave of the gap before it, and its number of unannounced arrivals."""
    _gaps: tuple[tuple[float, float], ...]
    """For each class of recorded gaps: its shortest and its longest gap, in seconds."""
    _sizes: dict[int, Sizes] = field(default_factory=dict)

    def likely(self, quiet_s: float) -> Sizes:
        """The sizes of the waves that came `quiet_s` after the arrival before them.

        If no wave came after a gap of about this length, the waves after the next longer gap count; if there is none,
        the waves after the longest gap.

        The gap predicts the size of the wave. A training step begins, after a long gap, with many requests at once.
        During the step the gaps are short, and single requests follow as other rollouts end.
        """
        octave = _octave(quiet_s)
        known = self._sizes.get(octave)
        if known is None:
            longer = [after for after, _ in self._waves if after >= octave]
            least = min(longer) if longer else max([after for after, _ in self._waves])
            counts = [count for after, count in self._waves if least <= after <= least + 2]
            known = self._sizes[octave] = Sizes(tuple(sorted(counts)))
        return known

    def soon(self, quiet_s: float, within_s: float) -> bool:
        """Whether an arrival is likely within `within_s`, `quiet_s` after the last arrival.

        It is likely if some recorded gap was at least `quiet_s` long and ended by then. The factor of two is a margin:
        the next gap may be only half as long as the recorded one.
        """
        until_s = 2 * (quiet_s + within_s)
        return any(shortest_s <= until_s and quiet_s <= longest_s for shortest_s, longest_s in self._gaps)

    def concurrent_creations(self, lead_s: float) -> int:
        """Little's law: the mean number of creations in progress if each arrival starts one that takes `lead_s`."""
        return int(self.unannounced * lead_s / (self.over_s + lead_s)) if self.gap_s is not None else 0


class History:
    """The arrival times for one state, in bounded space: the last ticks, and the total time of gaps by length.

    Gaps are classified by octave: the gaps of one octave are up to twice as long as those of the octave before.
    """

    __slots__ = (
        *("_arrivals", "_burst", "_burst_octaves", "_cached", "_cached_lead", "_gap_octaves", "_gap_times"),
        *("_ticks_by_octave", "_times", "_total_s", "_unannounced", "_unannounced_total"),
    )

    def __init__(self) -> None:
        self._times = array("d")
        """The time of each tick."""
        self._unannounced = array("l")
        """The unannounced arrivals of each tick."""
        self._gap_octaves = array("b")
        """The octave of the gap before each tick."""
        self._burst_octaves = array("b")
        """The octave of the gap before the burst to which each tick belongs: see `_thin_out`."""
        self._ticks_by_octave: dict[int, int] = {}
        """The number of ticks for each value in `_burst_octaves`."""
        self._burst = (-math.inf, 0)
        """When the last burst began, and the octave of the gap before it."""
        self._gap_times: dict[int, float] = {}
        """The total time of the gaps in each quarter of an octave, in seconds."""
        self._total_s = 0.0
        self._unannounced_total = 0.0
        """Unannounced arrivals; halved together with the times of gaps."""
        self._arrivals = 0
        self._cached: Past | None = None
        self._cached_lead = 0

    @property
    def last_s(self) -> float:
        """The time of the last arrival."""
        return self._times[-1]

    def add(self, now_s: float, announced: bool) -> None:
        """Record one arrival."""
        if not self._times or now_s - self._times[-1] > TICK_S:
            self._begin_tick(now_s)
        self._unannounced[-1] += not announced
        self._unannounced_total += not announced
        self._arrivals += 1
        self._cached = None

    def past(self, lead_s: float) -> Past:
        """The arrivals so far, divided into waves that last as long as a refill takes (`lead_s`)."""
        # Each measurement changes the expected lead time a little. The lead time is rounded to a quarter of an octave,
        # so that most changes leave the cached result valid.
        lead = _quarter(max(lead_s, TICK_S))
        if self._cached is None or self._cached_lead != lead:
            self._cached, self._cached_lead = self._summarise(2 ** (lead / 4)), lead
        return self._cached

    def _begin_tick(self, now_s: float) -> None:
        octave = _LONGEST_OCTAVE
        if self._times:
            gap_s = now_s - self._times[-1]
            octave, quarter = _octave(gap_s), _quarter(gap_s)
            self._gap_times[quarter] = self._gap_times.get(quarter, 0.0) + gap_s
            self._total_s += gap_s
            if self._total_s > 2 * MEMORY_S:
                self._fade()
        # A tick begins a new burst if the burst before it is over, or if the gap before the tick is as long as the
        # gap before that burst.
        if octave >= self._burst[1] or now_s - self._burst[0] > BURST_S:
            self._burst = now_s, octave
        self._times.append(now_s)
        self._unannounced.append(0)
        self._gap_octaves.append(octave)
        self._burst_octaves.append(self._burst[1])
        self._ticks_by_octave[self._burst[1]] = self._ticks_by_octave.get(self._burst[1], 0) + 1
        if len(self._times) > MAX_TICKS:
            self._thin_out()

    def _thin_out(self) -> None:
        """Forget the oldest tick of the most frequent kind of burst.

        Forgetting the oldest tick of all would lose the large waves at the beginning of training steps: each step also
        has many single requests, and these would fill the history.
        """
        octave = max(self._ticks_by_octave, key=self._ticks_by_octave.__getitem__)
        place = self._burst_octaves.index(octave)
        self._ticks_by_octave[octave] -= 1
        for column in (self._times, self._unannounced, self._gap_octaves, self._burst_octaves):
            del column[place]

    def _fade(self) -> None:
        """Halve the weight of the past, so that a changed pattern of gaps replaces the old one."""
        self._gap_times = {
            quarter: seconds / 2
            for quarter, seconds in self._gap_times.items()
            if seconds > _bounds(quarter)[0] / 8  # a gap that occurred once is forgotten after four halvings
        }
        self._total_s /= 2
        self._unannounced_total /= 2

    def _summarise(self, lead_s: float) -> Past:
        waves: list[tuple[int, int]] = []
        begun_s = -math.inf
        for time_s, gap_octave, count in zip(self._times, self._gap_octaves, self._unannounced, strict=True):
            if time_s - begun_s > lead_s:
                waves.append((gap_octave, count))
                begun_s = time_s
            else:
                waves[-1] = (waves[-1][0], waves[-1][1] + count)
        quarters = sorted(self._gap_times)
        # Gaps are weighted by their length. A training step has many gaps of a second, and most gaps are like these;
        # but the minute between two steps is most of the time, and keep-alive must last that long.
        gap_s, sum_s = None, 0.0
        for quarter in quarters if self._total_s > BURST_S else ():
            sum_s += self._gap_times[quarter]
            gap_s = _bounds(quarter)[1]
            if sum_s >= COVERED * self._total_s:
                break
        gaps = tuple([_bounds(quarter) for quarter in quarters])
        return Past(self.last_s, self._arrivals, gap_s, self._unannounced_total, self._total_s, tuple(waves), gaps)


_LONGEST_OCTAVE: Final = 40
"""The octave of the time before the first arrival, which has no known beginning."""


def _octave(gap_s: float) -> int:
    return min(_LONGEST_OCTAVE, math.ceil(math.log2(gap_s / TICK_S))) if gap_s > TICK_S else 0


def _quarter(gap_s: float) -> int:
    return round(4 * math.log2(gap_s))


def _bounds(quarter: int) -> tuple[float, float]:
    """The shortest and the longest gap in a quarter of an octave, in seconds."""
    return 2 ** ((quarter - 0.5) / 4), 2 ** ((quarter + 0.5) / 4)
