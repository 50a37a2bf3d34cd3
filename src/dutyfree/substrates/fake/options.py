"""What the fake substrate injects: delays, failures, and the seeded script that draws them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    SubstrateFailed,
)

Delay = float | Callable[[random.Random], float]
"""Seconds, or a function that draws them from a generator: `lambda rng: rng.lognormvariate(-2, 0.5)`."""


class Step(StrEnum):
    """The calls that can be delayed or fail."""

    CREATE = "create"
    READY = "ready"
    """The end of a creation. It has a delay and no failures: those belong to CREATE."""
    RUN = "run"
    """Each `run`, each start of a stream or terminal, and each line of a session. File calls are left alone."""
    RESET = "reset"
    DESTROY = "destroy"


class FailureKind(StrEnum):
    """How a call fails."""

    FULL = "full"
    """CapacityError; nothing was done."""
    ERROR = "error"
    """SubstrateFailed; nothing was done, and the sandbox is still alive."""
    DEATH = "death"
    """The sandbox's first process is killed: LinkFailed for calls under way, SandboxGone for later ones."""
    MISBEHAVIOUR = "misbehaviour"
    """GuestMisbehaved; the sandbox is dead."""
    DEADLINE = "deadline"
    """DeadlineExceeded; the sandbox does not answer and must be destroyed."""
    HANG = "hang"
    """No answer until the caller cancels the call or destroys the sandbox."""


_ERRORS: dict[FailureKind, type[DutyfreeError]] = {
    FailureKind.FULL: CapacityError,
    FailureKind.ERROR: SubstrateFailed,
    FailureKind.MISBEHAVIOUR: GuestMisbehaved,
    FailureKind.DEADLINE: DeadlineExceeded,
}
# The contract allows a call no other errors. A reset replaces the processes, so a death would not make it fail.
_POSSIBLE = {
    Step.CREATE: frozenset(FailureKind),
    Step.READY: frozenset[FailureKind](),
    Step.RUN: frozenset(FailureKind),
    Step.RESET: frozenset(FailureKind) - {FailureKind.DEATH},
    Step.DESTROY: frozenset({FailureKind.ERROR, FailureKind.HANG}),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Makes calls of `step` fail: those whose numbers are in `calls`, or, without it, each with `probability`.

    Calls are numbered from 1 in the order in which they start, over all sandboxes of the substrate.
    """

    step: Step
    kind: FailureKind
    calls: Container[int] | None = None
    """`{1, 4}`, or `range(10, 1000, 10)` for every tenth call."""
    probability: float = 1.0
    after_s: float = 0.0
    """How long the call goes on before it fails. With DEATH, a creation succeeds, and the sandbox dies later."""

    def __post_init__(self) -> None:
        if self.kind not in _POSSIBLE[self.step]:
            possible = ", ".join(sorted(_POSSIBLE[self.step])) or "none"
            raise InvalidRequest(f"{self.step} cannot fail by {self.kind}", hint=f"possible: {possible}")
        if not 0 <= self.probability <= 1 or not 0 <= self.after_s < math.inf:
            raise InvalidRequest(f"{self}: a probability is between 0 and 1, and after_s a number of seconds")

    def error(self) -> DutyfreeError:
        """What the call raises; not for DEATH and HANG, which end it in other ways."""
        return _ERRORS[self.kind](f"injected failure: {self.step} {self.kind}")


@dataclass(frozen=True, slots=True)
class Latencies:
    """How much longer each step takes."""

    create_s: Delay = 0.0
    ready_s: Delay = 0.0
    run_s: Delay = 0.0
    reset_s: Delay = 0.0
    destroy_s: Delay = 0.0


Injection = tuple[float, Failure | None]
"""What one call gets: a delay in seconds, and then perhaps a failure."""


class Script:
    """Draws injections. Each step has a generator of its own, so the n-th call of a step always gets the same."""

    def __init__(self, latencies: Latencies, failures: Iterable[Failure], seed: int) -> None:
        self._latencies = latencies
        self._failures = tuple(failures)
        self._generators = {step: random.Random(f"{seed} {step}") for step in Step}
        self._calls: Counter[Step] = Counter()
        self.struck: Counter[Step] = Counter()
        """How many calls of each step got a failure."""

    def draw(self, step: Step) -> Injection:
        """The injection for the next call of `step`."""
        self._calls[step] += 1
        generator = self._generators[step]
        delay: Delay = getattr(self._latencies, f"{step}_s")
        delay_s = delay(generator) if callable(delay) else delay
        # Every failure draws, so that the outcome of one does not shift the draws of later calls.
        struck = [each for each in self._failures if each.step is step and self._strikes(each, generator)]
        if not struck:
            return delay_s, None
        self.struck[step] += 1
        return delay_s, struck[0]

    def _strikes(self, failure: Failure, generator: random.Random) -> bool:
        is_drawn = generator.random() < failure.probability
        return is_drawn and (failure.calls is None or self._calls[failure.step] in failure.calls)
