"""gVisor without a daemon: a kernel in user space between a sandbox and the host, over our own layers."""

from dutyfree.substrates.gvisor.substrate import GVisorSubstrate

__all__ = ["GVisorSubstrate"]
