"""How long a sandbox that nobody needs just now is kept: layered keep-alive (RainbowCake, ASPLOS'24).

Arrivals count for every state that they begin with, so that what many recipes share is asked for more often, and lives
longer, than any one of them; what has outlived its own state is taken back to the one it was made in, if that lives.
There an exponential distribution is fitted to the gaps. Here they are counted, and weighed by their lengths: between
synchronous steps nobody comes for a minute, and within them somebody comes every second, so that the mean is neither.
"""

from __future__ import annotations

from typing import Final

from dutyfree.pool.arrivals import Past
from dutyfree.pool.planner_input import Tuning
from dutyfree.pool.size import Size

LEAST_GIB: Final = 1 / 16
"""A sandbox is never held to be smaller: a place in the pool has its price, too."""
_GIB: Final = 1024**3


def ttl_s(past: Past | None, rebuild_s: float, size: Size, tuning: Tuning) -> float:
    """How long one is kept in a state with this past, which `rebuild_s` would bring back."""
    wanted_s = tuning.keep_unknown_s if past is None or past.gap_s is None else past.gap_s
    return max(tuning.keep_at_least_s, min(wanted_s, worth_s(rebuild_s, size, tuning)))


def worth_s(rebuild_s: float, size: Size, tuning: Tuning) -> float:
    """For how long it costs less to keep a sandbox than to let somebody wait until it is built again (beta)."""
    gib = max(LEAST_GIB, size.memory_bytes / _GIB)
    return min(tuning.keep_at_most_s, tuning.idle_gib_s_per_wait_s * rebuild_s / gib)


def lives(past: Past, rebuild_s: float, size: Size, tuning: Tuning, now_s: float) -> bool:
    """Whether somebody can still be expected to come for a state."""
    return now_s - past.last_s <= ttl_s(past, rebuild_s, size, tuning)
