"""Promises that a substrate of ours is known not to keep. A gap that has closed is a failure until it leaves here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownGap:
    """`substrate` does not keep the promise of `check`, because of `reason`."""

    substrate: str
    check: str
    reason: str


KNOWN_GAPS = (
    KnownGap("fake", "files.big-file", "a fake keeps its files in the host's memory: that is what it is"),
    KnownGap("cell", "snapshot.ipc", "a cell in which nothing runs is replaced by one with the same files"),
)


def known_gaps(substrate: str) -> dict[str, str]:
    """Check id to reason, for the substrate of this name."""
    return {gap.check: gap.reason for gap in KNOWN_GAPS if gap.substrate == substrate}
