"""The gVisor substrate: `runsc` without a daemon, over layers of our image store. gVisor is a kernel in user space."""

from dutyfree.substrates.gvisor.substrate import GVisorSubstrate

__all__ = ["GVisorSubstrate"]
