"""Limits that a sandbox lacks: a warning once for each kind, or a refusal."""

from __future__ import annotations

import gc
import warnings

import pytest

import dutyfree
from dutyfree.errors import UnenforcedWarning, Unsupported

NO_LIMITS = dutyfree.Resources(memory_bytes=None, pids=None, disk_bytes=None)


@pytest.fixture(autouse=True)
def _loud() -> object:
    """Each test sees every warning: pytest's own settings leave these out."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnenforcedWarning)
        yield


async def test_each_kind_is_named_once_for_each_host() -> None:
    with warnings.catch_warnings(record=True) as first:
        warnings.simplefilter("always", UnenforcedWarning)
        async with dutyfree.local("process") as host:
            async with host.lease(resources=NO_LIMITS):
                pass
            async with host.lease(resources=NO_LIMITS):
                pass
            async with host.lease(resources=dutyfree.Resources(memory_bytes="1g", pids=None, disk_bytes=None)) as box:
                assert "limit-memory" in [each.what for each in box.unenforced]
    assert len(first) == 2
    walls, memory = (str(each.message) for each in first)
    assert "deny-network" in walls
    assert "limit-memory" not in walls
    assert "limit-memory" in memory
    assert "deny-network" not in memory
    assert "hint:" in memory
    assert "strict=True" in memory
    assert all(each.filename == __file__ for each in first), "the warning names the line of the caller"
    with pytest.warns(UnenforcedWarning):
        async with dutyfree.local("process") as host, host.lease():
            pass


async def test_the_reason_is_part_of_the_warning() -> None:
    async with dutyfree.local("process") as host:
        with pytest.warns(UnenforcedWarning) as caught:
            box = await host.acquire()
        assert all(each.reason in str(caught[0].message) for each in box.unenforced)
        await box.close()


async def test_a_strict_lease_is_refused_and_its_sandbox_given_back() -> None:
    async with dutyfree.local("process", pool=dutyfree.PoolOptions(sandboxes=1)) as host:
        with pytest.raises(Unsupported, match="limit-memory") as refused:
            await host.acquire(strict=True, key="same")
        assert refused.value.hint is not None
        assert host.leases() == []
        with pytest.raises(Unsupported):  # and not LeaseLost: the key was given back, too
            await host.acquire(strict=True, key="same", timeout_s=10)
        with pytest.raises(Unsupported):
            async with host.lease(strict=True):
                raise AssertionError("a box was given out")
        with pytest.raises(Unsupported):
            async with host.group(n=1, strict=True):
                raise AssertionError("a group was given out")

        async def work(box: dutyfree.Box, task: int) -> None:
            raise AssertionError("a box was given out")

        (rollout,) = await host.map(work, [1], strict=True)
        assert isinstance(rollout.error, Unsupported)
        with pytest.warns(UnenforcedWarning):
            box = await host.acquire(timeout_s=10)  # the pool's one place is free
        await box.close()


async def test_a_program_that_makes_warnings_errors_loses_no_sandbox() -> None:
    async with dutyfree.local("process") as host:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnenforcedWarning)
            with pytest.raises(UnenforcedWarning):
                await host.acquire()
        assert host.leases() == []
    gc.collect()  # no box was made that could be dropped


def test_the_sync_client_warns_and_refuses_alike() -> None:
    with dutyfree.sync.local("process") as host:
        with pytest.warns(UnenforcedWarning, match="limit-memory"), host.lease():
            pass
        with pytest.raises(Unsupported), host.lease(strict=True):
            pass
