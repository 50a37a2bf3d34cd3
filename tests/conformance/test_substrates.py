"""Every check of the conformance suite, on every substrate of ours, bare and through the guard."""

from dataclasses import dataclass

import pytest

from conformance.company import is_alone
from dutyfree.contract import Substrate
from dutyfree.errors import SubstrateUnavailable
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.registry import load
from dutyfree.testing import Check, Outcome, all_checks, known_gaps, run_check
from dutyfree.testing.context import Context


@dataclass(frozen=True)
class Subject:
    substrate: str
    guarded: bool
    everywhere: bool
    """Whether it works on every machine, so that not being available is a failure."""

    def make(self) -> Substrate:
        substrate = load(self.substrate)
        return GuardedSubstrate(substrate) if self.guarded else substrate

    def __str__(self) -> str:
        return f"{self.substrate}-guarded" if self.guarded else self.substrate


SUBJECTS = [
    Subject(name, guarded, everywhere)
    for name, everywhere in (("fake", True), ("process", True), ("cell", False))
    for guarded in (False, True)
]
GUARDED = ("lifecycle.", "background.", "cancellation.", "attribution.", "reset.", "snapshot.", "fork.")
"""What the guard has a hand in; the engines are put to all checks through it."""


def cases() -> list[object]:
    return [
        pytest.param(
            subject,
            check,
            id=f"{subject}-{check.id}",
            marks=marks(subject, check),
        )
        for subject in SUBJECTS
        for check in all_checks()
        if not subject.guarded or check.id.startswith(GUARDED)
    ]


def marks(subject: Subject, check: Check) -> list[pytest.MarkDecorator]:
    gap = known_gaps(subject.substrate).get(check.id)
    found = [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
    found += [pytest.mark.alone] if is_alone(check, subject.substrate) else []
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("subject", "check"), cases())
async def test_promise(subject: Subject, check: Check, not_run: list[str]) -> None:
    substrate = subject.make()
    try:
        await substrate.open()
    except SubstrateUnavailable as error:
        if subject.everywhere:
            raise
        not_run.append(f"{subject}: {check.id}: {error}")
        pytest.skip(str(error))
    try:
        result = await run_check(check, Context(substrate, another=subject.make))
    finally:
        await substrate.close()
    if result.outcome is Outcome.NOT_RUN:
        not_run.append(f"{subject}: {check.id}: {result.reason}")
        pytest.skip(result.reason)
    assert result.outcome is Outcome.PASSED, f"{check.promise}: {result.reason}"
