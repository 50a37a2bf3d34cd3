"""What `hosted` leaves at a service: nothing, also after a kill; and what it says of a service that fails."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2b import AsyncSandbox

import dutyfree
from dutyfree.errors import CapacityError, InfraFailed, InvalidRequest, SandboxGone, SubstrateUnavailable
from dutyfree.model import Action, SandboxSpec
from dutyfree.server.e2b import Settings
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.hosted import HostedSubstrate
from support.e2b_server import TOKENS, e2b_server
from support.serving import Serving, serving

pytestmark = pytest.mark.xdist_group("hosted-clean-up")
PATHS = pytest.mark.parametrize("path", ["guest", "exec"])
CHILD = """
import asyncio, sys
from dutyfree.model import SandboxSpec
from dutyfree.substrates.hosted import HostedSubstrate

async def main():
    substrate = HostedSubstrate(api_url=sys.argv[1], api_key=sys.argv[2], path=sys.argv[3])
    await substrate.open()
    await asyncio.gather(*(substrate.create(SandboxSpec()) for _ in range(3)))
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="dutyfree-hosted-") as directory, serving(Path(directory)) as found:
        yield found


async def at_service(server: Serving) -> int:
    """How many sandboxes the service has."""
    pages = AsyncSandbox.list(api_url=server.http, api_key=server.token)
    found = 0
    while pages.has_next:
        found += len(await pages.next_items())
    return found


@PATHS
async def test_destroy_and_close_leave_nothing(server: Serving, path: str) -> None:
    substrate = HostedSubstrate(path=path, **server.options)
    async with substrate:
        first, _ = await asyncio.gather(*(substrate.create(SandboxSpec()) for _ in range(2)))
        assert await at_service(server) == 2
        await first.destroy()
        await first.destroy()
        assert await at_service(server) == 1
        with pytest.raises(SandboxGone):
            await first.run(Action("true"))
    assert await at_service(server) == 0


@PATHS
async def test_the_next_substrate_ends_what_a_killed_process_left(server: Serving, path: str) -> None:
    child = subprocess.Popen(  # noqa: ASYNC220 - once, at first
        [sys.executable, "-c", CHILD, server.http, server.token, path], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        assert await asyncio.to_thread(child.stdout.readline) == "ready\n"
        async with HostedSubstrate(path=path, **server.options):
            assert await at_service(server) == 3, "those of a living process are left alone"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert await at_service(server) == 3
    async with HostedSubstrate(path=path, **server.options):
        assert await at_service(server) == 0


@PATHS
async def test_creations_that_are_cancelled_leave_nothing(server: Serving, path: str) -> None:
    async with GuardedSubstrate(HostedSubstrate(path=path, **server.options)) as substrate:
        for delay_ms in (0, 1, 3, 6, 10, 15, 20, 30, 45, 60):
            creation = asyncio.create_task(substrate.create(SandboxSpec()))
            await asyncio.sleep(delay_ms / 1e3)
            creation.cancel()
            (outcome,) = await asyncio.gather(creation, return_exceptions=True)
            if not isinstance(outcome, BaseException):
                await outcome.destroy()
        assert await at_service(server) == 0


async def test_sandboxes_are_renewed(server: Serving) -> None:
    async with HostedSubstrate(timeout_s=15, **server.options) as substrate:
        sandbox: Any = await substrate.create(SandboxSpec())
        connection = {"api_url": server.http, "api_key": server.token}
        before = (await AsyncSandbox.get_info(sandbox.body.sandbox_id, **connection)).end_at
        await asyncio.sleep(6.5)
        after = (await AsyncSandbox.get_info(sandbox.body.sandbox_id, **connection)).end_at
        assert (after - before).total_seconds() > 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the server's boxes are dropped, in this process
async def test_a_full_service_is_a_capacity_error_with_its_time() -> None:
    pool = dutyfree.PoolOptions(sandboxes=1)
    with e2b_server(Settings(acquire_timeout_s=0.2), substrate="cell", pool=pool) as full:
        where = {"api_url": full.url, "sandbox_url": full.url, "api_key": next(iter(TOKENS))}
        async with HostedSubstrate(path="exec", **where) as substrate:
            await substrate.create(SandboxSpec())
            with pytest.raises(CapacityError) as caught:
                await substrate.create(SandboxSpec())
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0


async def test_a_wrong_key_and_an_absent_service(server: Serving) -> None:
    with pytest.raises(SubstrateUnavailable, match="did not answer") as wrong:
        await HostedSubstrate(api_url=server.http, api_key="wrong").open()
    assert wrong.value.hint is not None
    assert "E2B_API_KEY" in wrong.value.hint
    assert "wrong" not in wrong.value.message.replace("missing or wrong", "")
    with pytest.raises(SubstrateUnavailable) as absent:
        await HostedSubstrate(api_url="http://127.0.0.1:1", api_key="x", request_timeout_s=5).open()
    assert absent.value.hint is not None
    assert "api_url" in absent.value.hint


async def test_an_unknown_template_is_the_callers_error(server: Serving) -> None:
    async with HostedSubstrate(template="no-such-template", **server.options) as substrate:
        with pytest.raises(InvalidRequest):
            await substrate.create(SandboxSpec())
        assert await at_service(server) == 0


@pytest.mark.slow
@PATHS
async def test_a_service_that_dies_is_never_an_observation(tmp_path: Path, path: str) -> None:
    with serving(tmp_path) as server:
        substrate = GuardedSubstrate(HostedSubstrate(path=path, request_timeout_s=5, **server.options))
        await substrate.open()
        sandbox = await substrate.create(SandboxSpec())
        under_way = asyncio.create_task(sandbox.run(Action("sleep 60")))
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(InfraFailed):
            await under_way
        with pytest.raises(SandboxGone):
            await sandbox.run(Action("true"))
        with suppress(InfraFailed):  # that its sandbox could not be ended
            await substrate.close()
