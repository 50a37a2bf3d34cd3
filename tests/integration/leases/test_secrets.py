"""Secrets that are bound to a lease, searched for byte by byte wherever something could be kept."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
from pathlib import Path

import pytest

import dutyfree
from dutyfree import claims
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Span
from dutyfree.pool.options import PoolOptions
from dutyfree.trace import JournalWriter

RECIPE = dutyfree.Recipe(stages=(dutyfree.Stage("image", run=("echo ready > /root/ready",)),))
SEARCH = 'grep -rlaF "$1" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=lib 2>/dev/null | head'
ENVIRONMENTS = 'cat /proc/*/environ 2>/dev/null | grep -caF "$1"'


def holds(directory: Path, needle: bytes) -> list[str]:
    """The files below it in which the needle is found, in their names too."""
    found = subprocess.run(
        ["grep", "-rlaF", needle.decode(), str(directory)], capture_output=True, text=True, timeout=120
    )
    names = [str(path) for path in directory.rglob("*") if needle.decode() in path.name]
    return found.stdout.split() + names


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_bound_secret_is_nowhere_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    needle = f"hush-{secrets.token_hex(12)}"
    filed = f"file-{secrets.token_hex(12)}"
    store, costs = tmp_path / "store", tmp_path / "costs.json"
    with JournalWriter(tmp_path / "journal.jsonl") as journal:

        def keep(span: Span) -> None:
            journal.append({"phase": span.phase, "name": span.name, "sandbox": span.sandbox})

        host = dutyfree.local("cell", store=store, pool=PoolOptions(sandboxes=3, costs=costs), on_span=keep)
        try:
            await host.__aenter__()
        except SubstrateUnavailable as error:
            pytest.skip(str(error))
        try:
            first_id, printed = await _leased_with(host, needle, filed)
            # The next lease may get the very same sandbox; it must not matter.
            for _ in range(3):
                async with host.lease(RECIPE) as box:
                    for secret in (needle, filed):
                        seen = await box.run(["sh", "-c", SEARCH, "search", secret], timeout_s=60)
                        assert seen.text == "", "on the disk of a later lease"
                        assert (await box.run(["sh", "-c", ENVIRONMENTS, "search", secret])).text == "0\n"
                    assert (await box.run("ls -A /dev/shm; echo $TOKEN")).text == "\n"
            await asyncio.sleep(1.2)  # the notice board is written once in a second
            for place in (claims.state_base(), store):
                assert not holds(place, needle.encode())
                assert not holds(place, filed.encode())
        finally:
            await host.__aexit__(None, None, None)
    for secret in (needle, filed):
        assert not holds(tmp_path, secret.encode())
        assert secret not in caplog.text
        assert secret not in printed
    assert first_id


async def _leased_with(host: dutyfree.LocalHost, needle: str, filed: str) -> tuple[str, str]:
    """Use the secrets, snapshot, fork, and fail; the sandbox's name, and all that could have been printed."""
    bound = {"secrets": {"TOKEN": needle}, "secret_files": {"/dev/shm/token": filed.encode()}}
    async with host.lease(RECIPE, **bound) as box:  # type: ignore[arg-type]
        # The searches below can find what is there.
        assert "/dev/shm/token" in (await box.run(["sh", "-c", SEARCH, "search", filed])).text
        assert int((await box.run(["sh", "-c", ENVIRONMENTS, "search", needle])).text) > 0
        length = await box.run('printf %s "$TOKEN" | wc -c; cat /dev/shm/token | wc -c')
        assert length.text.split() == [str(len(needle)), str(len(filed))]
        snapshot = await box.snapshot()
        image = await snapshot.save()
        forks = await box.fork(1)
        assert (await forks[0].run('printf %s "$TOKEN" | wc -c; cat /dev/shm/token | wc -c')).text == length.text
        async with host.lease(image) as other:
            assert (await other.run(["sh", "-c", SEARCH, "search", needle])).text == ""
            assert (await other.run(["sh", "-c", SEARCH, "search", filed])).text == ""
        printed = repr((box, box.__dict__, host.pool.status()))
        with pytest.raises(dutyfree.DutyfreeError) as refused:
            await box.run("true", cwd="/nowhere")
        return box.id, printed + repr(refused.value) + str(refused.value) + str(os.environ)
