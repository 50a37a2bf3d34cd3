"""`dutyfree.local("auto", trust=...)`: the cheapest substrate that works here and isolates strongly enough."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree.choose.candidates import read_candidates
from dutyfree.choose.decision import Candidate, Decision, choose
from dutyfree.choose.trust import Trust
from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateUnavailable
from dutyfree.model import Isolation
from dutyfree.model.limits import MIB
from dutyfree.substrates import registry
from dutyfree.substrates.guarded import GuardedSubstrate

AUTO: Final = "auto"
PRIORS: Final = (
    Candidate("process", "process", Isolation.NONE, 0.0019, 0.0001),
    Candidate("cell", "cell", Isolation.CONTAINER, 0.0027, 0.0001, memory_bytes=MIB),
    Candidate("docker", "docker", Isolation.CONTAINER, 0.217, 0.0005, memory_bytes=6 * MIB),
    Candidate("gvisor", "gvisor", Isolation.USER_KERNEL, 0.25, 0.0098, slowdown=1.87, memory_bytes=26 * MIB),
    Candidate(
        "docker-gvisor", "docker-gvisor", Isolation.USER_KERNEL, 0.40, 0.013, slowdown=1.87, memory_bytes=26 * MIB
    ),
    Candidate("microvm", "microvm", Isolation.MICROVM, 0.31, 0.001, memory_bytes=140 * MIB),
    Candidate("vm", "vm", Isolation.VM, 3.0, 0.001, memory_bytes=300 * MIB),
)
"""Measurements from one small machine (docs/explanation/engines.md); gVisor's slowdown is from a public comparison. To
decide by your own measurements: `dutyfree advise RESULTS --json > FILE`, and `advice=FILE` here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of `dutyfree.local("auto")`, checked."""

    trust: Trust
    actions: int
    work_s: float
    candidates: Sequence[Candidate]
    accept_emulated: bool

    @classmethod
    def of(
        cls,
        trust: str = Trust.MODEL,
        *,
        expected_actions: int = 50,
        expected_work_s: float = 60.0,
        advice: str | os.PathLike[str] | None = None,
        accept_emulated: bool = False,
    ) -> Choice:
        """A choice from the options of `dutyfree.local`. Raises InvalidRequest."""
        try:
            wanted = Trust(trust)
        except ValueError:
            raise InvalidRequest(f"trust is {trust!r}; it can be {', '.join(Trust)}") from None
        found = PRIORS if advice is None else read_candidates(Path(advice))
        return cls(wanted, expected_actions, expected_work_s, found, accept_emulated)

    def decide(self, left_out: Sequence[str] = ()) -> Decision:
        """Decide between the candidates that are not left out. Raises Unsupported if the trust class allows none."""
        found = [each for each in self.candidates if each.name not in left_out]
        return choose(found, self.trust, self.actions, self.work_s, accept_emulated=self.accept_emulated)


async def opened(options: dict[str, Any]) -> tuple[GuardedSubstrate, Decision]:
    """Open the cheapest substrate that the trust class allows. Substrates that do not work here are skipped.

    Raises Unsupported if no allowed substrate works here; the reasons are notes of the error.
    """
    try:
        choice = Choice.of(**options)
    except TypeError as error:
        raise InvalidRequest(f"substrate 'auto' does not take these options: {error}") from error
    failures: dict[str, str] = {}
    while True:
        try:
            decision = choice.decide(tuple(failures))
        except DutyfreeError as error:
            for name, reason in failures.items():
                error.add_note(f"{name}: {reason}")
            raise
        found = decision.chosen
        try:
            return await _open(choice, found), decision
        except (SubstrateUnavailable, InvalidRequest) as error:
            failures[found.name] = str(error)


async def _open(choice: Choice, found: Candidate) -> GuardedSubstrate:
    words = (f"{name}={value}" for name, value in found.options.items())
    inner: Substrate = registry.load(found.substrate, **registry.parse_options(words))
    guarded = GuardedSubstrate(inner)
    try:
        await guarded.open()
        if not guarded.has_default_image:
            raise SubstrateUnavailable("it needs an image to start from", hint="set DUTYFREE_IMAGE")
        if guarded.emulated and not choice.accept_emulated and choice.trust in (Trust.UNTRUSTED, Trust.HOSTILE):
            raise SubstrateUnavailable(
                "its processors are emulated here, which is no wall", hint="accept_emulated=True"
            )
    except BaseException:
        await guarded.close()
        raise
    return guarded
