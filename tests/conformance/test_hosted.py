"""The conformance suite through `hosted`: E2B's SDK against our own server, on both action paths.

Nothing of the checks is ours on the way but the two ends: the SDK speaks to the server's E2B face over HTTP.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from conformance.company import is_alone
from dutyfree.contract import Sandbox, Substrate
from dutyfree.model import ActionPath
from dutyfree.substrates.engine import EngineSandbox
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.hosted import HostedSubstrate
from dutyfree.testing import Check, Outcome, all_checks, known_gaps, run_check
from dutyfree.testing.context import Context
from support.serving import Serving, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=1)]

EXEC_CHECKS = ("run.", "streaming.", "timeouts.", "files.", "lifecycle.", "attribution.", "accounting.", "concurrency.")
"""What the SDK's own calls decide."""


def name(path: ActionPath) -> str:
    return "hosted" if path is ActionPath.GUEST else "hosted-exec"


def cases() -> list[object]:
    return [
        pytest.param(path, check, id=f"{name(path)}-{check.id}", marks=marks(path, check))
        for path in ActionPath
        for check in all_checks()
        if not check.slow and (path is ActionPath.GUEST or check.id.startswith(EXEC_CHECKS))
    ]


def marks(path: ActionPath, check: Check) -> list[pytest.MarkDecorator]:
    gap = known_gaps(name(path)).get(check.id)
    found = [pytest.mark.xdist_group(name(path))]
    found += [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
    found += [pytest.mark.alone] if is_alone(check, "hosted") else []
    return found


class Subjects:
    """One server, and the substrate of one path at a time."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self._stack = AsyncExitStack()
        self._path: ActionPath | None = None
        self._opened: Substrate | None = None

    def make(self, path: ActionPath) -> Substrate:
        options: dict[str, Any] = self.server.options
        return GuardedSubstrate(HostedSubstrate(path=path, **options))

    async def of(self, path: ActionPath) -> Substrate:
        if path is not self._path or self._opened is None:
            await self.close()
            self._opened = await self._stack.enter_async_context(self.make(path))
            self._path = path
        return self._opened

    def kill(self, sandbox: Sandbox) -> bool:
        """End the service's sandbox behind our back, as another of its clients could."""
        from e2b import Sandbox as Remote

        inner: Any = sandbox
        while inner is not inner.inner:
            inner = inner.inner
        ids = inner.body if isinstance(inner, EngineSandbox) else inner.remote
        return bool(Remote.kill(ids.sandbox_id, api_url=self.server.http, api_key=self.server.token))

    async def close(self) -> None:
        self._opened = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subjects() -> AsyncIterator[Subjects]:
    with tempfile.TemporaryDirectory(prefix="dutyfree-hosted-") as directory, serving(Path(directory)) as server:
        found = Subjects(server)
        yield found
        await found.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("path", "check"), cases())
async def test_promise(path: ActionPath, check: Check, subjects: Subjects, not_run: list[str]) -> None:
    substrate = await subjects.of(path)
    context = Context(substrate, another=lambda: subjects.make(path), killer=subjects.kill)
    result = await run_check(check, context)
    if result.outcome is Outcome.NOT_RUN:
        not_run.append(f"{name(path)}: {check.id}: {result.reason}")
        pytest.skip(result.reason)
    assert result.outcome is Outcome.PASSED, f"{check.promise}: {result.reason}"
