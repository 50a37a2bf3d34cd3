"""The contract's Sandbox, spoken over a wire channel to the guest agent; the same for every substrate that has one."""

from dutyfree.guest.environment import DEFAULT_ENVIRONMENT
from dutyfree.guest.limits import LimitCounters, LimitWatch
from dutyfree.guest.sandbox import GuestSandbox

__all__ = ["DEFAULT_ENVIRONMENT", "GuestSandbox", "LimitCounters", "LimitWatch"]
