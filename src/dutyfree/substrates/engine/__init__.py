"""The common part of the substrates that drive a third-party engine: Docker, gVisor, QEMU, a cloud.

Such a substrate makes *bodies*: a container, a machine, with our guest in it. A sandbox has one body at a time, and
`reset` puts another one in its place. All the rest of the contract is kept here, on both action paths.
"""

from dutyfree.substrates.engine.body import Body, Marks
from dutyfree.substrates.engine.sandbox import EngineSandbox
from dutyfree.substrates.engine.substrate import EngineSubstrate

__all__ = ["Body", "EngineSandbox", "EngineSubstrate", "Marks"]
