"""One timed occurrence of a phase."""

from __future__ import annotations

from dutyfree.model.phase import Phase
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """From `start_ns` to `end_ns` on the host's monotonic clock, `sandbox` spent its time on `phase`.

    `name` says more about the occurrence ("spawn", "handshake"); spans of one sandbox nest.
    """

    phase: Phase
    start_ns: int
    end_ns: int
    sandbox: str = ""
    name: str = ""

    @property
    def duration_ms(self) -> float:
        """The length of the span in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6
