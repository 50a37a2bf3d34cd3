"""Wall time by phase. Pure, and exact: the parts always add up to the whole, in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from types import MappingProxyType

from dutyfree.errors import InvalidRequest
from dutyfree.model import Phase, Span
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time between `start_ns` and `end_ns` went; `by_phase` has every phase, and sums to `wall_ns`."""

    start_ns: int
    end_ns: int
    by_phase: Mapping[Phase, int]

    @property
    def wall_ns(self) -> int:
        """The whole interval."""
        return self.end_ns - self.start_ns

    @property
    def execute_ns(self) -> int:
        """What actions spent on their own execution inside the sandbox."""
        return self.by_phase[Phase.EXECUTE]

    @property
    def unattributed_ns(self) -> int:
        """What no span covers."""
        return self.by_phase[Phase.UNATTRIBUTED]

    @property
    def tax_ns(self) -> int:
        """Everything that is not execution, the unattributed time included."""
        return self.wall_ns - self.execute_ns


def account(spans: Iterable[Span], start_ns: int, end_ns: int) -> Ledger:
    """Give each instant between `start_ns` and `end_ns` to exactly one phase.

    Of the spans that cover an instant, the one that started last has it: that is the innermost of nested spans, and the
    latest of overlapping ones. Of two that start together the shorter is the inner one; of two alike, the one reported
    first, since an inner span ends before the outer. Raises InvalidRequest if the interval ends before it starts.
    """
    if end_ns < start_ns:
        raise InvalidRequest(f"the interval ends at {end_ns} ns, before it starts at {start_ns} ns")
    totals = dict.fromkeys(Phase, 0)
    within = [span for span in spans if max(span.start_ns, start_ns) < min(span.end_ns, end_ns)]
    arrivals = sorted(enumerate(within), key=lambda item: item[1].start_ns)
    edges = sorted({start_ns, end_ns} | {edge for span in within for edge in _clipped(span, start_ns, end_ns)})
    covering: list[tuple[int, int, int, Phase]] = []
    arrived = 0
    for instant, following in pairwise(edges):
        while arrived < len(arrivals) and arrivals[arrived][1].start_ns <= instant:
            order, span = arrivals[arrived]
            heappush(covering, (-span.start_ns, span.end_ns, order, span.phase))
            arrived += 1
        while covering and covering[0][1] <= instant:
            heappop(covering)
        phase = covering[0][3] if covering else Phase.UNATTRIBUTED
        totals[phase] += following - instant
    return Ledger(start_ns, end_ns, MappingProxyType(totals))


def _clipped(span: Span, start_ns: int, end_ns: int) -> tuple[int, int]:
    return max(span.start_ns, start_ns), min(span.end_ns, end_ns)
