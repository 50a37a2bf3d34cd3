"""All checks by topic, in the order in which the suite runs them."""

from __future__ import annotations

from dutyfree.testing.check import Check
from dutyfree.testing.checks import (
    accounting,
    attribution,
    background,
    caches,
    cancellation,
    capabilities,
    concurrency,
    egress,
    files,
    forks,
    images,
    leaks,
    lifecycle,
    limits,
    metrics,
    mounts,
    pausing,
    ports,
    resets,
    run,
    sessions,
    snapshots,
    streaming,
    terminals,
    timeouts,
    trees,
    users,
    watching,
)

_TOPICS = (
    lifecycle,
    capabilities,
    run,
    streaming,
    background,
    files,
    trees,
    watching,
    sessions,
    terminals,
    ports,
    egress,
    timeouts,
    cancellation,
    limits,
    concurrency,
    attribution,
    accounting,
    resets,
    pausing,
    metrics,
    snapshots,
    forks,
    images,
    users,
    mounts,
    caches,
    leaks,
)


def all_checks() -> tuple[Check, ...]:
    """All checks of the suite."""
    return tuple(value for topic in _TOPICS for value in vars(topic).values() if isinstance(value, Check))
