"""The conformance suite through a server: the whole of it over TCP, and what crosses the link over a unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from conformance.company import is_alone
from dutyfree.contract import Substrate
from dutyfree.errors import SubstrateUnavailable
from dutyfree.substrates.registry import load
from dutyfree.testing import Check, Outcome, all_checks, known_gaps, run_check
from dutyfree.testing.context import Context
from support.nodes import ServedNode, served_node

pytestmark = pytest.mark.asyncio(loop_scope="module")

BY_UNIX = ("run.", "streaming.", "files.transfer", "lifecycle.")
"""What another kind of socket could change."""


def cases() -> list[object]:
    return [
        pytest.param(link, check, id=f"{link}-{check.id}", marks=marks(check))
        for link in ("tcp", "unix")
        for check in all_checks()
        if link == "tcp" or (check.id.startswith(BY_UNIX) and not check.slow)
    ]


def marks(check: Check) -> list[pytest.MarkDecorator]:
    gap = known_gaps("server").get(check.id)
    found = [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
    found += [pytest.mark.alone] if is_alone(check, "server") else []
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedNode | SubstrateUnavailable]:
    place: Path = tmp_path_factory.mktemp("node")
    try:
        async with served_node(place) as served:
            yield served
    except SubstrateUnavailable as error:
        yield error


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("link", "check"), cases())
async def test_promise(link: str, check: Check, node: ServedNode | SubstrateUnavailable, not_run: list[str]) -> None:
    if isinstance(node, SubstrateUnavailable):
        not_run.append(f"server: {check.id}: {node}")
        pytest.skip(str(node))
    served = node

    def make() -> Substrate:
        return load("server", url=served.url if link == "tcp" else served.unix_url, token=served.token)

    async with make() as substrate:
        result = await run_check(check, Context(substrate, another=make, killer=served.kill))
    if result.outcome is Outcome.NOT_RUN:
        not_run.append(f"server: {check.id}: {result.reason}")
        pytest.skip(result.reason)
    assert result.outcome is Outcome.PASSED, f"{check.promise}: {result.reason}"
