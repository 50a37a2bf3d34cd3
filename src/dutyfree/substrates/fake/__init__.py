"""A substrate in memory: it keeps the contract for the capabilities that it claims, and misbehaves on request.

Its sandboxes understand a small command language (see `shell`) and hold their files in memory. What it is for: testing
whatever stands on the contract, with scripted latency and scripted faults, on a machine where nothing else can run.
"""

from dutyfree.substrates.fake.sandbox import FakeSandbox
from dutyfree.substrates.fake.script import FakeScript, Fault, FaultKind, Latency, Step
from dutyfree.substrates.fake.substrate import FakeSubstrate

__all__ = ["FakeSandbox", "FakeScript", "FakeSubstrate", "Fault", "FaultKind", "Latency", "Step"]
