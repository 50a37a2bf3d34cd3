"""A pool over real processes: whoever asks gets one sandbox, alone, in time, or a reason."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dutyfree.client.box import Box
from dutyfree.errors import (
    BuildFailed,
    CapacityError,
    InvalidRequest,
    LeaseLost,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
    Unsupported,
)
from dutyfree.leases.binding import Binding
from dutyfree.model import Network, Phase, Recipe, SandboxSpec, Stage
from dutyfree.pool.demand import Announcement
from dutyfree.pool.metrics import HIT
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step
from support.pools import RECIPE, plain, pool_of, text, until

SLOW = Latencies(create_s=0.05)


async def test_a_lease_is_a_sandbox_of_ones_own() -> None:
    async with pool_of() as (pool, stager):
        wanted = await plain(stager)
        one, other = await asyncio.gather(pool.acquire(wanted), pool.acquire(wanted))
        assert one.sandbox.id != other.sandbox.id
        assert await text(Box(one, pool), "echo hi > mine; cat mine") == "hi\n"
        assert (await Box(other, pool).run("cat mine")).exit_code == 1
        await pool.release(one)
        await pool.release(one)
        with pytest.raises(LeaseLost):
            await Box(one, pool).run("echo late")
        third = await pool.acquire(wanted)
        assert (await Box(third, pool).run("cat mine")).exit_code == 1


async def test_stages_are_there_with_their_environment() -> None:
    async with pool_of() as (pool, stager):
        grant = await pool.acquire(await stager.wanted(RECIPE, SandboxSpec()))
        assert await text(Box(grant, pool), "cat image repository; echo $REPOSITORY") == "tools\ncode\nhere\n"


async def test_what_is_announced_is_ready_when_it_is_asked_for() -> None:
    async with pool_of(FakeSubstrate(latencies=SLOW)) as (pool, stager):
        wanted = await stager.wanted(RECIPE, SandboxSpec())
        now_s = time.monotonic()
        pool.announce([(Announcement("step", wanted.ladder.top, 4, now_s, now_s + 60), wanted)])
        await until(lambda: pool.status().idle == 4)
        grants = [await pool.acquire(wanted) for _ in range(4)]
        assert [grant.rung for grant in grants] == [HIT] * 4
        assert (await pool.acquire(wanted)).rung != HIT


async def test_the_same_key_gives_the_same_lease() -> None:
    async with pool_of(FakeSubstrate(latencies=SLOW)) as (pool, stager):
        wanted = await plain(stager)
        grants = await asyncio.gather(*(pool.acquire(wanted, owner="me", key="one") for _ in range(5)))
        grants.append(await pool.acquire(wanted, owner="me", key="one"))
        assert len({grant.lease.id for grant in grants}) == 1
        stranger = await pool.acquire(wanted, owner="you", key="one")
        assert stranger.lease.id != grants[0].lease.id


async def test_a_full_pool_says_so_in_time_and_goes_on() -> None:
    async with pool_of(sandboxes=2, waiting=1) as (pool, stager):
        wanted = await plain(stager)
        held = [await pool.acquire(wanted) for _ in range(2)]
        start_s = time.monotonic()
        waiting = asyncio.create_task(pool.acquire(wanted, timeout_s=0.2))
        await asyncio.sleep(0.01)
        with pytest.raises(CapacityError) as refused:
            await pool.acquire(wanted)
        assert refused.value.retry_after_s is not None
        with pytest.raises(CapacityError):
            await waiting
        assert time.monotonic() - start_s < 5
        await pool.release(held[0])
        await pool.acquire(wanted, timeout_s=5)


async def test_a_cancelled_request_takes_nothing() -> None:
    async with pool_of(FakeSubstrate(latencies=SLOW), sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        for delay_s in (0.0, 0.02, 0.049, 0.0505, 0.051, 0.052, 0.06):
            task = asyncio.create_task(pool.acquire(wanted))
            await asyncio.sleep(delay_s)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(outcome, BaseException):
                await pool.release(outcome)
        await pool.release(await pool.acquire(wanted, timeout_s=5))


async def test_a_cancelled_release_of_a_cold_pool_still_frees_the_place() -> None:
    slow = FakeSubstrate(latencies=Latencies(destroy_s=0.2))
    async with pool_of(slow, sandboxes=1, policy="cold") as (pool, stager):
        wanted = await plain(stager)
        grant = await pool.acquire(wanted)
        releasing = asyncio.create_task(pool.release(grant))
        await asyncio.sleep(0.05)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert pool.status().leased == 0
        await pool.release(await pool.acquire(wanted, timeout_s=5))


async def test_a_lease_that_nobody_renews_expires_under_its_tenant() -> None:
    async with pool_of(sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        grant = await pool.acquire(wanted, ttl_s=30)
        pool.renew(grant, 0.4)
        with pytest.raises(LeaseLost, match="expired"):
            await Box(grant, pool).run("sleep 60")
        await pool.release(grant)
        again = await pool.acquire(wanted, timeout_s=5)
        assert again.lease.token > grant.lease.token
        assert pool.core.metrics.expired == 1


async def test_creations_that_fail_are_told_after_a_few_tries() -> None:
    fake = FakeSubstrate(failures=[Failure(Step.CREATE, FailureKind.ERROR)])
    async with pool_of(fake) as (pool, stager):
        with pytest.raises(SubstrateFailed):
            await pool.acquire(await plain(stager), timeout_s=30)
    once = FakeSubstrate(failures=[Failure(Step.CREATE, FailureKind.ERROR, {1})])
    async with pool_of(once) as (pool, stager):
        await pool.acquire(await plain(stager), timeout_s=30)


async def test_a_stage_that_fails_is_the_callers_fault_and_told_at_once() -> None:
    broken = Recipe(stages=(Stage("image", run=("echo no >&2; exit 3",)),))
    async with pool_of() as (pool, stager):
        wanted = await stager.wanted(broken, SandboxSpec())
        outcomes = await asyncio.gather(*(pool.acquire(wanted) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, BuildFailed) and "exit code 3" in str(each) for each in outcomes)


async def test_a_sandbox_that_dies_is_not_given_out_again() -> None:
    fake = FakeSubstrate(failures=[Failure(Step.RUN, FailureKind.DEATH, {1})])
    async with pool_of(fake, sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        grant = await pool.acquire(wanted)
        with pytest.raises(LinkFailed):
            await Box(grant, pool).run("echo")
        with pytest.raises(SandboxGone):
            await Box(grant, pool).run("echo")
        await pool.release(grant)
        again = await pool.acquire(wanted, timeout_s=5)
        assert again.sandbox.id != grant.sandbox.id
        assert await text(Box(again, pool), "echo fine") == "fine\n"


async def test_what_is_bound_is_the_leases_alone(tmp_path: Path) -> None:
    async with pool_of() as (pool, stager):
        wanted = await plain(stager)
        binding = Binding(env={"A": "1"}, secrets={"TOKEN": "hush"}, files={f"{tmp_path}/given": b"data"})
        grant = await pool.acquire(wanted, owner="me", binding=binding)
        line = f"echo $A $TOKEN $DUTYFREE_OWNER; cat {tmp_path}/given"
        assert await text(Box(grant, pool), line) == "1 hush me\ndata"
        await pool.release(grant)
        other = await pool.acquire(wanted)
        assert await text(Box(other, pool), "echo $A$TOKEN$DUTYFREE_OWNER") == "\n"
        assert "hush" not in repr(binding) + repr(grant)


async def test_closing_ends_those_who_wait_and_those_who_have() -> None:
    async with pool_of(sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        grant = await pool.acquire(wanted)
        waiting = asyncio.create_task(pool.acquire(wanted))
        running = asyncio.create_task(Box(grant, pool).run("sleep 60"))
        await asyncio.sleep(0.02)
        await pool.close()
        with pytest.raises(SubstrateFailed):
            await waiting
        with pytest.raises(LeaseLost):
            await running
        with pytest.raises(InvalidRequest):
            await pool.acquire(wanted)


@pytest.mark.parametrize("policy", ["locality", "no-locality", "cold"])
async def test_every_policy_serves_everyone(policy: str) -> None:
    async with pool_of(sandboxes=4, policy=policy, at_once=2) as (pool, stager):
        ladders = [
            await stager.wanted(Recipe(stages=(Stage("image", run=(f"echo {n} > n",)),)), SandboxSpec())
            for n in range(3)
        ]

        async def rollout(number: int) -> str:
            grant = await pool.acquire(ladders[number % 3], owner=str(number % 2), timeout_s=30)
            try:
                return await text(Box(grant, pool), "cat n")
            finally:
                await pool.release(grant)

        seen = await asyncio.gather(*(rollout(number) for number in range(40)))
        assert seen == [f"{number % 3}\n" for number in range(40)]
        assert pool.core.metrics.acquires.total() == 40


async def test_spans_of_a_lease_are_its_own() -> None:
    async with pool_of() as (pool, stager):
        wanted = await plain(stager)
        one = await pool.acquire(wanted)
        await Box(one, pool).run("sleep 0.05")
        await pool.release(one)
        ledger = one.ledger()
        assert ledger.execute_ns >= 50e6
        assert ledger.by_phase[Phase.QUEUE] > 0
        assert ledger.wall_ns == sum(ledger.by_phase.values())


async def test_secret_files_need_private_files_and_stages_their_network() -> None:
    async with pool_of() as (_, stager):
        with pytest.raises(InvalidRequest):
            Binding(secret_files={"/tmp/token": b"hush"})
        online = Recipe(stages=(Stage("image", run=("true",), network=Network.HOST),))
        with pytest.raises(Unsupported):
            await stager.wanted(online, SandboxSpec())
