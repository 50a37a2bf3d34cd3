"""What a fake substrate is told to do wrong, and how slowly: data, and a seeded reading of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dutyfree.model import Phase


class Step(StrEnum):
    """Where a fault can strike."""

    CREATE = "create"
    RUN = "run"
    STREAM = "stream"
    DESTROY = "destroy"


class FaultKind(StrEnum):
    """How it goes wrong."""

    FAIL = "fail"
    """SubstrateFailed is raised; the sandbox, if there is one, lives on."""
    HANG = "hang"
    """Nothing happens, until the caller gives up or the sandbox is destroyed."""
    DIE = "die"
    """The sandbox dies: LinkFailed now, SandboxGone afterwards."""
    LIE = "lie"
    """Success is claimed and nothing was done: a dead sandbox, an empty exit code 0, a destroyed sandbox that lives."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` strikes at `step`: at its `nth` occurrence (from 1), or at each one with `probability`."""

    step: Step
    kind: FaultKind
    nth: int | None = None
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Latency:
    """A delay, uniform between `least_s` and `most_s`."""

    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class FakeScript:
    """The whole misbehaviour: a delay per phase (create, ready, dispatch, observe, destroy), and faults."""

    latency: Mapping[Phase, Latency] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


class Performer:
    """Reads a script, the same way for the same seed and the same order of calls."""

    def __init__(self, script: FakeScript, seed: int) -> None:
        self._script = script
        self._random = random.Random(seed)
        self._seen: Counter[Step] = Counter()

    async def delay(self, phase: Phase) -> None:
        """Take as long as the script says `phase` takes."""
        latency = self._script.latency.get(phase)
        if latency is not None:
            await asyncio.sleep(self._random.uniform(latency.least_s, latency.most_s))

    def fault(self, step: Step) -> FaultKind | None:
        """The fault that strikes at this occurrence of `step`, if any."""
        self._seen[step] += 1
        for fault in self._script.faults:
            if fault.step is not step or fault.nth not in (None, self._seen[step]):
                continue
            if fault.probability >= 1 or self._random.random() < fault.probability:
                return fault.kind
        return None
