"""The decorator that every substrate is used through."""

from dutyfree.substrates.guarded.sandbox import GuardedSandbox
from dutyfree.substrates.guarded.substrate import GuardedSubstrate

__all__ = ["GuardedSandbox", "GuardedSubstrate"]
