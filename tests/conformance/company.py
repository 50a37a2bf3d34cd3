"""Which checks bear no company: they judge by what the whole machine has, or has left for them."""

from __future__ import annotations

from dutyfree.testing import Check


def is_alone(check: Check) -> bool:
    """Whether it looks for leaks, or compares how much of a processor there is with a limit of it and without."""
    return "leaks" in check.id or check.id == "limits.cpu"
