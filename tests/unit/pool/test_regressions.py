"""What a second reading of the pool has found: each once more, so that it does not come back."""

from __future__ import annotations

import asyncio
import time

import pytest

import dutyfree
from dutyfree.client.box import Box
from dutyfree.errors import CapacityError, InvalidRequest, LeaseLost
from dutyfree.model import Recipe, SandboxSpec, Stage
from dutyfree.pool import core
from dutyfree.pool.costs import Step
from dutyfree.pool.demand import Announcement
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.planner_input import OperationKind
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies
from dutyfree.substrates.fake import Step as FakeStep
from support.pools import RECIPE, plain, pool_of, text, until


def kind(number: int) -> Recipe:
    return Recipe(stages=(Stage("image", run=(f"echo {number} > n",)),))


async def test_a_binding_that_cannot_be_gives_the_sandbox_back() -> None:
    reserved = Recipe(stages=(Stage("image", run=("true",), env={"DUTYFREE_MINE": "1"}),))
    async with pool_of(sandboxes=1) as (pool, stager):
        wanted = await stager.wanted(reserved, SandboxSpec())
        for _ in range(3):
            with pytest.raises(InvalidRequest):
                await pool.acquire(wanted, timeout_s=5)
        assert pool.status().leased == 0


async def test_a_release_after_the_pool_was_closed_does_nothing() -> None:
    async with pool_of() as (pool, stager):
        grant = await pool.acquire(await plain(stager))
        await pool.close()
        await pool.release(grant)


async def test_who_waits_gets_what_is_idle_however_both_came_about() -> None:
    async with pool_of(sandboxes=4, policy="no-locality") as (pool, stager):
        one, other = [await stager.wanted(kind(number), SandboxSpec()) for number in range(2)]
        now_s = time.monotonic()
        announced = [
            (Announcement(str(n), each.ladder.top, 2, now_s, now_s + 60), each) for n, each in enumerate((one, other))
        ]
        pool.announce(announced)
        await until(lambda: pool.status().idle == 4)
        grants = await asyncio.gather(*(pool.acquire(each, timeout_s=10) for each in (other, one, other, one)))
        assert [await text(Box(grant, pool), "cat n") for grant in grants] == ["1\n", "0\n", "1\n", "0\n"]


async def test_destructions_that_fail_are_no_fault_of_those_who_wait() -> None:
    fake = FakeSubstrate(failures=[Failure(FakeStep.DESTROY, FailureKind.ERROR, {1, 2, 4, 7, 8, 11})])
    async with pool_of(fake, sandboxes=2) as (pool, stager):
        wanted = await plain(stager)
        for _ in range(20):
            await pool.release(await pool.acquire(wanted, timeout_s=30))


async def test_creations_that_are_stuck_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STUCK_AFTER_S", 0.2)
    fake = FakeSubstrate(failures=[Failure(FakeStep.CREATE, FailureKind.HANG, {13, 14})])
    async with pool_of(fake, sandboxes=4, at_once=2, policy="cold") as (pool, stager):
        wanted = await plain(stager)
        for _ in range(12):
            await pool.release(await pool.acquire(wanted))
        assert pool.costs.estimate(Step.create(wanted.ladder.top)).count >= 10
        start_s = time.monotonic()
        grants = await asyncio.gather(*(pool.acquire(wanted, timeout_s=30) for _ in range(3)))
        assert len(grants) == 3
        assert time.monotonic() - start_s < 20
        assert pool.core.metrics.failures[OperationKind.CREATE, "DeadlineExceeded"] == 2


async def test_announcements_are_whole_numbers() -> None:
    async with pool_of() as (_, stager):
        top = (await plain(stager)).ladder.top
        with pytest.raises(InvalidRequest):
            Announcement("half", top, 2.5, 0, 1)  # type: ignore[arg-type]


async def test_a_state_that_fails_does_not_keep_others_from_their_turn() -> None:
    async with pool_of(sandboxes=8, at_once=2) as (pool, stager):
        good = await stager.wanted(RECIPE, SandboxSpec())
        bad = await stager.wanted(Recipe(stages=(Stage("image", run=("exit 1",)),)), SandboxSpec())
        waiting = [asyncio.create_task(pool.acquire(bad, timeout_s=5)) for _ in range(6)]
        grants = await asyncio.gather(*(pool.acquire(good, timeout_s=5) for _ in range(4)))
        assert len(grants) == 4
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, dutyfree.DutyfreeError) for each in outcomes)


async def test_a_key_waits_as_long_as_its_caller_and_leaves_nothing() -> None:
    slow = FakeSubstrate(latencies=Latencies(create_s=1.5))
    async with pool_of(slow, sandboxes=2) as (pool, stager):
        wanted = await plain(stager)
        start_s = time.monotonic()
        with pytest.raises(CapacityError):
            await pool.acquire(wanted, key="k", timeout_s=0.1)
        assert time.monotonic() - start_s < 1.2
        task = asyncio.create_task(pool.acquire(wanted, key="k"))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: not pool.status().leased and not pool.status().waiting)
        grant = await pool.acquire(wanted, key="k", timeout_s=30)
        with pytest.raises(InvalidRequest):
            await pool.acquire(await stager.wanted(RECIPE, SandboxSpec()), key="k")
        await pool.release(grant)
        with pytest.raises(LeaseLost):
            await pool.acquire(wanted, key="k")


async def test_a_listener_that_fails_costs_no_sandbox() -> None:
    async with pool_of(sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

        def fail(_: object) -> None:
            raise ValueError("no")

        pool.on_end = fail
        for _ in range(3):
            await pool.release(await pool.acquire(wanted, timeout_s=5))
        assert len(told) == 3


async def test_groups_do_not_wait_for_each_other() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=4)) as host:

        async def group() -> int:
            async with host.group(n=3, timeout_s=10) as boxes:
                await asyncio.sleep(0.05)
                return len(boxes)

        assert await asyncio.gather(*(group() for _ in range(4))) == [3] * 4
        with pytest.raises(InvalidRequest):
            host.group(n=5)
        with pytest.raises(InvalidRequest):
            host.group(n=2, key="one")


async def test_what_is_announced_anew_replaces_what_was() -> None:
    one, other = kind(1), kind(2)
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=8)) as host:
        await host.pool.announce([(one, 2), (other, 2)], name="step")
        await host.pool.announce([(one, 1)], name="step")
        await until(lambda: host.pool.status().idle >= 1)
        for _ in range(2):
            await host.pool.announce([(one, 1)], name="step")
            await until(lambda: host.pool.status().idle >= 1)
            async with host.lease(one):
                pass
        assert host.pool.status().acquires == {"hit": 2}
        assert host.pool.expected() == 0


async def test_map_raises_what_work_raises_and_retries_what_is_retryable() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=2)) as host:

        async def fail(_: dutyfree.Box, task: int) -> int:
            raise ZeroDivisionError(task)

        with pytest.raises(ZeroDivisionError):
            await host.map(fail, range(4))

        async def run(box: dutyfree.Box, task: int) -> str:
            return (await box.run(f"echo {task}")).text

        done: list[tuple[int, int]] = []
        outcomes = await host.map(run, range(10), concurrency=4, on_progress=lambda *each: done.append(each))
        assert [each.value for each in outcomes] == [f"{number}\n" for number in range(10)]
        assert done[-1] == (10, 10)


@pytest.mark.parametrize(
    "options",
    [
        *({"sandboxes": 0}, {"sandboxes": 1.5}, {"sandboxes": float("nan")}, {"at_once": 0}, {"waiting": 0}),
        *({"policy": "best"}, {"ttl_s": float("nan")}, {"timeout_s": -1}, {"waiting_per_owner": 0}),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        PoolOptions(**options)  # type: ignore[arg-type]


async def test_the_holder_of_a_lease_can_renew_it() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=4)) as host:
        async with host.lease(ttl_s=0.5) as box:
            await box.renew(60)
            await asyncio.sleep(0.8)
            await box.run("true")
        async with host.lease(ttl_s=60) as box:
            for ttl_s in (0, -1, float("nan")):
                with pytest.raises(InvalidRequest):
                    await box.renew(ttl_s)
            await box.renew(0.1)
            await asyncio.sleep(0.8)
            with pytest.raises(LeaseLost):
                await box.renew()
    async with dutyfree.local("process") as host, host.lease() as box:
        assert box.lease.expires_at is None
        await box.renew(0.1)
        await asyncio.sleep(0.8)
        with pytest.raises(LeaseLost):
            await box.run("true")
