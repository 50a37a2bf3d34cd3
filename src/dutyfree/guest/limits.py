"""How a substrate reports the limit that made an action fail."""

from __future__ import annotations

from typing import Protocol

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class LimitCounters:
    """How often a sandbox has hit its limits since its creation; the numbers only grow."""

    oom_kills: int = 0
    fork_refusals: int = 0


class LimitWatch(Protocol):
    """Asked only when an action has failed, so that a successful one costs nothing."""

    def counters(self) -> LimitCounters:
        """The counters now. Cheap and synchronous: it is called on the event loop. Raises nothing."""
        ...
