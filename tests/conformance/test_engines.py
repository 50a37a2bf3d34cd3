"""The conformance suite on every engine of this machine, through both action paths.

An engine's substrate is opened once for all checks: opening some of them boots a machine. Engines can be judged beside
each other (`-n 3 --dist loadgroup -m 'not alone'`), but for the checks that look at the whole machine. A check has a
second try, and says so: some machines are emulated, beside each other, on two cores.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from conformance.bare_engine import BareEngine
from conformance.company import is_alone
from dutyfree.contract import Substrate
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import ActionPath, SandboxSpec
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.testing import Check, Outcome, all_checks, known_gaps, run_check
from dutyfree.testing.context import Context
from support.engines import OTHER_MACHINES, engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=1)]

PATH_CHECKS = (
    *("run.", "streaming.", "background.", "timeouts.", "cancellation.", "files.", "sessions.", "accounting."),
    "attribution.",
)
"""What an action path decides; all the rest is the same on both."""
EXEC_CHECKS = ("run.", "background.", "timeouts.", "attribution.", "accounting.", "pausing.", "watching.")
"""What an engine's own way to run a command decides of that; the rest is judged without one, on `bare`."""

CROSSING_CHECKS = (
    *("run.argv", "run.binary-output", "run.cwd", "run.env", "run.exit-codes", "run.not-found", "run.shell-line"),
    *("run.signal", "run.stdin", "run.streams-separate", "run.unicode"),
)
"""What another way to the same path could get wrong: words, bytes, streams and codes that cross it."""

GUEST_CHECKS = ("background.", "files.", "sessions.", "terminals.", "users.", "watching.")
"""What the guest and the kernel under it decide by themselves: judged once for each kernel, and not for each engine."""
SETTLED_CHECKS = ("files.", "sessions.", "streaming.", "terminals.")
"""The same for the oldest parts of the guest, which are the same on every Linux: each costs seconds under emulation."""
EVERY_CHECK = bool(os.environ.get("EVERY_CHECK"))
"""Set by `make conformance`: every check on every engine."""

LEAKS = (
    *("leaks.daemons", "leaks.under-way", "leaks.streams", "leaks.timeouts", "leaks.zombies", "leaks.sessions"),
    *("leaks.terminals", "leaks.files", "leaks.create-cancelled", "leaks.killed", "leaks.refusals", "leaks.close"),
)
"""Those that take few sandboxes."""


@dataclass(frozen=True)
class Subject:
    substrate: str
    path: ActionPath = ActionPath.GUEST
    only: tuple[str, ...] = ("",)
    """The beginnings of the names of the checks that are made."""
    without: tuple[str, ...] = ()
    """The beginnings of the names of those that are not."""

    def judges(self, check: Check) -> bool:
        """Docker is put to all checks. Of what engines share, once is enough: not slow ones, nor leaks in the mass."""
        if (self.substrate == "docker" or EVERY_CHECK) and self.path is ActionPath.GUEST:
            return True
        wanted = check.id in LEAKS if "leaks" in check.id else not check.slow
        return wanted and check.id.startswith(self.only) and not check.id.startswith(self.without)

    def make(self) -> Substrate:
        if self.substrate == "bare":
            return GuardedSubstrate(BareEngine(path=self.path))
        return GuardedSubstrate(engine(self.substrate, path=self.path))

    def __str__(self) -> str:
        return self.substrate if self.path is ActionPath.GUEST else f"{self.substrate}-{self.path}"


SUBJECTS = [
    Subject("vm", without=(*GUEST_CHECKS, *SETTLED_CHECKS)),  # a Linux under emulation, as in a microVM
    Subject("microvm", without=SETTLED_CHECKS),
    Subject("docker"),
    Subject("gvisor"),
    Subject("docker-gvisor", without=GUEST_CHECKS),  # the kernel of `gvisor`
    Subject("docker", ActionPath.EXEC, EXEC_CHECKS),
    Subject("gvisor", ActionPath.EXEC, EXEC_CHECKS),
    Subject("docker-gvisor", ActionPath.EXEC, CROSSING_CHECKS),
    Subject("vm", ActionPath.EXEC, CROSSING_CHECKS),
    Subject("bare", ActionPath.EXEC, PATH_CHECKS),
]
"""The slowest first, so that runs beside each other begin with them."""


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
        if subject.judges(check)
    ]


def marks(subject: Subject, check: Check) -> list[pytest.MarkDecorator]:
    gap = known_gaps(subject.substrate).get(check.id)
    found = [OTHER_MACHINES if str(subject) in ("microvm", "vm-exec") else pytest.mark.xdist_group(str(subject))]
    found += [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
    found += [pytest.mark.alone] if is_alone(check, subject.substrate) else []
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
