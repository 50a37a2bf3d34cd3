"""`fake`: real sandboxes with injected delays and failures, to test how a program handles infrastructure failures.

It wraps another substrate (`process`, unless another one is given). Without options it behaves as that substrate does.
"""

from dutyfree.substrates.fake.options import Delay, Failure, FailureKind, Latencies, Step
from dutyfree.substrates.fake.sandbox import FakeSandbox
from dutyfree.substrates.fake.substrate import FakeSubstrate

__all__ = ["Delay", "Failure", "FailureKind", "FakeSandbox", "FakeSubstrate", "Latencies", "Step"]
