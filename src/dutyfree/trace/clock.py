"""The one clock that spans are measured on."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Nanoseconds on the host's monotonic clock; comparable within one boot of one machine, and nowhere else."""
    return time.monotonic_ns()
