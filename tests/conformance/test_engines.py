"""The conformance suite on every engine of this machine, through both action paths.

An engine's substrate is opened once for all checks: opening some of them boots a machine. Engines can be judged beside
each other (`-n 2 --dist loadgroup -m 'not alone'`), but for the checks that look at the whole machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio
from bare_engine import BareEngine

from dutyfree.contract import Substrate
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import ActionPath, SandboxSpec
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.testing import Check, Outcome, all_checks, known_gaps, run_check
from dutyfree.testing.context import Context
from engines_here import engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH_CHECKS = ("run.", "streaming.", "timeouts.", "cancellation.", "files.", "sessions.", "accounting.", "attribution.")
"""What an action path decides; all the rest is the same on both."""
EXEC_CHECKS = ("run.", "timeouts.", "attribution.", "accounting.")
"""What an engine's own way to run a command decides of that; the rest is judged without one, on `bare`."""

VM_CHECKS = (
    *("lifecycle.", "run.", "attribution.", "capabilities.", "timeouts.daemons", "limits.unenforced"),
    *("accounting.execute", "accounting.lifecycle", "files.read", "sessions.state", "reset.files"),
)
"""A machine that is restored, with SSH, takes seconds on emulated processors, and the whole suite a quarter of an hour:
`python -m dutyfree.testing vm --option boot=restore` runs it."""


@dataclass(frozen=True)
class Subject:
    substrate: str
    path: ActionPath = ActionPath.GUEST
    only: tuple[str, ...] = ("",)
    """The beginnings of the names of the checks that are made."""

    @property
    def thorough(self) -> bool:
        """Whether the slow checks are made, too: of what engines share, once is enough."""
        return self.substrate == "docker" and self.path is ActionPath.GUEST

    def make(self) -> Substrate:
        if self.substrate == "bare":
            return GuardedSubstrate(BareEngine(path=self.path))
        return GuardedSubstrate(engine(self.substrate, path=self.path))

    def __str__(self) -> str:
        return self.substrate if self.path is ActionPath.GUEST else f"{self.substrate}-{self.path}"


SUBJECTS = [
    Subject("bare", ActionPath.EXEC, PATH_CHECKS),
    Subject("docker"),
    Subject("docker", ActionPath.EXEC, EXEC_CHECKS),
    Subject("docker-gvisor"),
    Subject("gvisor"),
    Subject("gvisor", ActionPath.EXEC, EXEC_CHECKS),
    Subject("microvm"),
    Subject("vm", ActionPath.GUEST, VM_CHECKS),
    Subject("vm", ActionPath.EXEC, ("run.",)),
]


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
        if check.id.startswith(subject.only) and (subject.thorough or not (check.slow or "leaks" in check.id))
    ]


def marks(subject: Subject, check: Check) -> list[pytest.MarkDecorator]:
    gap = known_gaps(subject.substrate).get(check.id)
    found = [pytest.mark.xdist_group(str(subject))]
    found += [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
    found += [pytest.mark.alone] if "leaks" in check.id else []
    return found


class Opened:
    """The substrate of one subject at a time, or why there is none."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._subject: Subject | None = None
        self._opened: Substrate | SubstrateUnavailable | None = None

    async def of(self, subject: Subject) -> Substrate:
        if subject != self._subject:
            await self.close()
            self._subject = subject
            try:
                self._opened = await self._stack.enter_async_context(subject.make())
                # An image that the engine is given, a disk that is built, a machine that is saved: once, and not timed.
                await (await self._opened.create(SandboxSpec())).destroy()
            except SubstrateUnavailable as error:
                self._opened = error
        if isinstance(self._opened, SubstrateUnavailable):
            raise self._opened
        assert self._opened is not None
        return self._opened

    async def close(self) -> None:
        self._subject = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened() -> AsyncIterator[Opened]:
    keeper = Opened()
    yield keeper
    await keeper.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("subject", "check"), cases())
async def test_promise(subject: Subject, check: Check, opened: Opened, not_run: list[str]) -> None:
    try:
        substrate = await opened.of(subject)
    except SubstrateUnavailable as error:
        not_run.append(f"{subject}: {check.id}: {error}")
        pytest.skip(f"{subject}: {error}")
    result = await run_check(check, Context(substrate, another=subject.make))
    if result.outcome is Outcome.NOT_RUN:
        not_run.append(f"{subject}: {check.id}: {result.reason}")
        pytest.skip(result.reason)
    assert result.outcome is Outcome.PASSED, f"{check.promise}: {result.reason}"
