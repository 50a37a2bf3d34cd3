"""Leases as handles, on hosts with and without a pool: acquired, found again, listed, renewed, released."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import dutyfree
from dutyfree import sync
from dutyfree.client.leasing import Leasing
from dutyfree.substrates.fake import Latencies

POOLS = [None, dutyfree.PoolOptions(sandboxes=4)]
pytestmark = pytest.mark.parametrize("pool", POOLS, ids=["without a pool", "with a pool"])


async def test_a_lease_is_found_again_by_its_id_until_it_is_released(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        box = await host.acquire(owner="ann", env={"A": "1"})
        assert [lease.id for lease in host.leases()] == [box.lease.id]
        again = await host.get(box.lease.id)
        assert again.id == box.id
        assert (await again.run("echo $A $DUTYFREE_OWNER")).text == "1 ann\n"
        await host.release(box.lease.id)
        await host.release(box.lease.id)
        assert host.leases() == []
        for late in (box, again):
            assert not late.alive
            with pytest.raises(dutyfree.LeaseLost):
                await late.run("true")
        with pytest.raises(dutyfree.LeaseLost):
            await host.get(box.lease.id)
        with pytest.raises(dutyfree.LeaseLost):
            await host.release("never-1")


async def test_close_ends_the_lease_also_under_a_call(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        box = await host.acquire()
        call = asyncio.create_task(box.run("sleep 60"))
        await asyncio.sleep(0.1)
        await box.close()
        await box.close()
        with pytest.raises(dutyfree.LeaseLost):
            await call
        assert host.leases() == []


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
async def test_an_end_that_is_cut_off_still_destroys_the_sandbox(pool: dutyfree.PoolOptions | None, ends: str) -> None:
    """A caller is cancelled in the middle of `close`, or the whole host ends meanwhile."""
    latencies = Latencies(destroy_s=0.2, reset_s=0.2)
    async with dutyfree.local("fake", pool=pool, latencies=latencies) as host:
        box = await host.acquire()
        closing = asyncio.create_task(box.close())
        await asyncio.sleep(0.05)
        if ends == "cancelled":
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            another = await host.acquire()
            assert another.alive
            await asyncio.wait_for(another.close(), 5)
    await asyncio.wait({closing}, timeout=5)
    assert closing.done()
    assert closing.cancelled() or closing.exception() is None
    assert not box._sandbox.alive


async def test_leases_of_two_hosts_have_different_ids_and_growing_tokens(pool: dutyfree.PoolOptions | None) -> None:
    leases = []
    for _ in range(2):
        async with dutyfree.local("process", pool=pool) as host:
            boxes = [await host.acquire() for _ in range(2)]
            leases += [box.lease for box in boxes]
    assert len({lease.id for lease in leases}) == 4
    assert [lease.token for lease in leases] == sorted(lease.token for lease in leases)


async def test_a_lease_expires_unless_it_is_renewed(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        box, other = await host.acquire(ttl_s=0.3), await host.acquire(ttl_s=0.3)
        assert box.lease.expires_at == pytest.approx(time.time() + 0.3, abs=0.25)
        await box.renew(60)
        assert box.lease.expires_at == pytest.approx(time.time() + 60, abs=1)
        await asyncio.sleep(0.8)
        await box.run("true")
        with pytest.raises(dutyfree.LeaseLost):
            await other.run("true")
        assert [lease.id for lease in host.leases()] == [box.lease.id]


async def test_the_same_key_gives_the_same_lease(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        boxes = await asyncio.gather(*(host.acquire(owner="ann", key="task 7") for _ in range(3)))
        assert len({box.lease.id for box in boxes}) == 1
        other = await host.acquire(owner="bob", key="task 7")
        assert other.lease.id != boxes[0].lease.id
        await boxes[0].close()
        with pytest.raises(dutyfree.LeaseLost):
            await host.acquire(owner="ann", key="task 7")


async def test_what_is_bound_is_there_on_every_host(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        async with host.lease(secrets={"TOKEN": "hush"}, files={"/tmp/dutyfree-test-handles": b"x"}) as box:
            assert (await box.run("echo $TOKEN; cat /tmp/dutyfree-test-handles")).text == "hush\nx"
            await box.files.remove("/tmp/dutyfree-test-handles")
        async with host.lease() as box:
            assert (await box.run("echo $TOKEN")).text == "\n"


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"timeout_s": -1}, {"ttl_s": 0}, {"owner": "x" * 1000}])
async def test_wrong_arguments_are_refused(pool: dutyfree.PoolOptions | None, wrong: dict[str, object]) -> None:
    async with dutyfree.local("process", pool=pool) as host:
        with pytest.raises(dutyfree.InvalidRequest):
            await host.acquire(**wrong)  # type: ignore[arg-type]
        assert host.leases() == []


def test_the_client_without_await_has_the_same_handles(pool: dutyfree.PoolOptions | None) -> None:
    with sync.local("process", pool=pool) as host:
        box = host.acquire()
        assert host.get(box.lease.id).run("echo hi").text == "hi\n"
        assert len(host.leases()) == 1
        box.renew(60)
        box.close()
        assert host.leases() == []


async def test_a_slow_registry_leaves_less_time_for_the_build(
    pool: dutyfree.PoolOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_s: list[float] = []
    image, find = Leasing.image, Leasing.find

    async def slow_image(self: Leasing, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.2)
        return await image(self, *args, **options)

    async def recorded_find(self: Leasing, what: Any, spec: Any, timeout_s: float, **options: Any) -> Any:
        given_s.append(timeout_s)
        return await find(self, what, spec, timeout_s, **options)

    monkeypatch.setattr(Leasing, "image", slow_image)
    monkeypatch.setattr(Leasing, "find", recorded_find)
    async with dutyfree.local("process", pool=pool) as host, host.lease(timeout_s=30):
        assert 0 < given_s[-1] <= 29.8
