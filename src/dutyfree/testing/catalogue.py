"""Every check, by topic, in the order in which they are tried."""

from __future__ import annotations

from dutyfree.testing.check import Check
from dutyfree.testing.checks import (
    accounting,
    attribution,
    cancellation,
    concurrency,
    files,
    leaks,
    lifecycle,
    limits,
    run,
    sessions,
    streaming,
    terminals,
    timeouts,
    trees,
)

_TOPICS = (
    lifecycle,
    run,
    streaming,
    files,
    trees,
    sessions,
    terminals,
    timeouts,
    cancellation,
    limits,
    concurrency,
    attribution,
    accounting,
    leaks,
)


def all_checks() -> tuple[Check, ...]:
    """The whole suite."""
    return tuple(value for topic in _TOPICS for value in vars(topic).values() if isinstance(value, Check))
