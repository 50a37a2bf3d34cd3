"""`dutyfree.local("auto", trust=...)`: the cheapest substrate that works here and isolates strongly enough."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dutyfree.choose.candidates import read_candidates
from dutyfree.choose.decision import Candidate, Decision, choose, none_allowed, refusal
from dutyfree.choose.trust import Trust
from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateUnavailable
from dutyfree.model import Isolation
from dutyfree.model.limits import MIB
from dutyfree.substrates import registry
from dutyfree.substrates.guarded import GuardedSubstrate

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

    def decide(self, failures: Mapping[str, str] | None = None) -> Decision:
        """Decide between the candidates that have not failed; `failures` has the reason of each that has.

        Raises Unsupported, with all reasons, if no candidate is left that the trust class allows.
        """
        failed = dict(failures or {})
        refused = {each.name: self._refusal(each) for each in self.candidates if each.name not in failed}
        if failed and all(refused.values()):
            raise none_allowed(self.trust, {**failed, **refused})
        found = [each for each in self.candidates if each.name not in failed]
        decision = choose(found, self.trust, self.actions, self.work_s, accept_emulated=self.accept_emulated)
        return replace(decision, unavailable=failed)

    def _refusal(self, candidate: Candidate) -> str:
        return refusal(candidate, self.trust, self.accept_emulated)


async def opened(options: dict[str, Any]) -> tuple[GuardedSubstrate, Decision]:
    """Open the cheapest substrate that the trust class allows. Substrates that do not work here are skipped.

    The decision says of every other candidate why it was passed over. Raises Unsupported, with the reason for each
    candidate, if none is left.
    """
    try:
        choice = Choice.of(**options)
    except TypeError as error:
        raise registry.wrong_options(registry.AUTO, Choice.of, options, error) from error
    failures: dict[str, str] = {}
    while True:
        decision = choice.decide(failures)
        try:
            return await _open(choice, decision.chosen), decision
        except DutyfreeError as error:
            failures[decision.chosen.name] = str(error)


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
