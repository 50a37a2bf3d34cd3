"""All checks by topic, in the order in which the suite runs them."""

from __future__ import annotations

from dutyfree.testing.check import Check
from dutyfree.testing.checks import (
    accounting,
    attribution,
    cancellation,
    capabilities,
    concurrency,
    files,
    forks,
    images,
    leaks,
    lifecycle,
    limits,
    resets,
    run,
    sessions,
    snapshots,
    streaming,
    terminals,
    timeouts,
    trees,
)

_TOPICS = (
    lifecycle,
    capabilities,
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
    resets,
    snapshots,
    forks,
    images,
    leaks,
)


def all_checks() -> tuple[Check, ...]:
    """All checks of the suite."""
    return tuple(value for topic in _TOPICS for value in vars(topic).values() if isinstance(value, Check))
