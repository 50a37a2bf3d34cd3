"""How long an idle sandbox that fills no slot is kept: layered keep-alive (RainbowCake, ASPLOS'24).

A request counts as an arrival for every state that its wanted state begins with. Many recipes share the lower stages,
so these have more arrivals than each recipe alone, and live longer. When a sandbox expires in its own state, the
planner demotes it to the state that it was made in, if requests for that state are still likely; otherwise it destroys
it.

RainbowCake fits an exponential distribution to the gaps between arrivals. Here gaps are counted and weighted by their
length, because synchronous training steps have two kinds of gaps: about a second within a step, about a minute between
steps. The mean describes neither.
"""

from __future__ import annotations

from typing import Final

from dutyfree.pool.arrivals import Past
from dutyfree.pool.planner_input import Tuning
from dutyfree.pool.size import Size

LEAST_GIB: Final = 1 / 16
"""A sandbox counts as at least this large: it also takes one of the pool's places, which a small sandbox takes too."""
_GIB: Final = 1024**3


def ttl_s(past: Past | None, rebuild_s: float, size: Size, tuning: Tuning) -> float:
    """How long an idle sandbox is kept in a state with these past arrivals; creating it again takes `rebuild_s`."""
    # A sandbox that is kept for a typical gap serves the next request. Keeping it longer than it is worth does not pay.
    wanted_s = tuning.keep_unknown_s if past is None or past.gap_s is None else past.gap_s
    return max(tuning.keep_at_least_s, min(wanted_s, worth_s(rebuild_s, size, tuning)))


def worth_s(rebuild_s: float, size: Size, tuning: Tuning) -> float:
    """How long keeping a sandbox costs less than the wait for a new one (beta in the paper)."""
    gib = max(LEAST_GIB, size.memory_bytes / _GIB)
    return min(tuning.keep_at_most_s, tuning.idle_gib_s_per_wait_s * rebuild_s / gib)


def lives(past: Past, rebuild_s: float, size: Size, tuning: Tuning, now_s: float) -> bool:
    """Whether a request for the state is still likely: the last one is no longer ago than a sandbox would be kept."""
    return now_s - past.last_s <= ttl_s(past, rebuild_s, size, tuning)
