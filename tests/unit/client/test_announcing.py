"""Announcements: what they take, how their builds end, and what `ready` waits for. Builds end when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import dutyfree
from dutyfree.client import announcing
from dutyfree.client.announcing import BUILDS_AT_ONCE, Announcements
from dutyfree.errors import BuildFailed, DeadlineExceeded, InvalidRequest, SubstrateFailed, Unsupported
from dutyfree.model import Image, Network, Recipe, SandboxSpec, Stage
from dutyfree.pool.ladder_cache import LadderCache
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step
from support.pools import pool_of, until

SPEC = SandboxSpec()
HOST_ROOT = Image()


def recipe(number: int) -> Recipe:
    return Recipe(stages=(Stage(f"stage-{number}", run=(f"echo {number} > n",)),))


class Gate:
    """Stands in for the stager: each recipe is built when the test opens its gate, or fails with the error there."""

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self.begun: list[Recipe] = []
        self.cancelled: list[Recipe] = []
        self.gates: dict[int, asyncio.Future[None]] = {}

    def of(self, what: Recipe) -> asyncio.Future[None]:
        return self.gates.setdefault(id(what), asyncio.get_running_loop().create_future())

    async def wanted(self, what: Recipe, spec: SandboxSpec) -> Wanted:
        self.begun.append(what)
        try:
            await asyncio.shield(self.of(what))
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        return await self._stager.wanted(what, spec)


@asynccontextmanager
async def announcements(
    fake: FakeSubstrate | None = None, **options: object
) -> AsyncIterator[tuple[Announcements, Gate, LadderCache]]:
    async with pool_of(fake, **options) as (pool, stager):
        gate = Gate(stager)
        ladders = LadderCache(gate)  # type: ignore[arg-type]
        announced = Announcements(pool, ladders, ladders.find)
        try:
            yield announced, gate, ladders
        finally:
            await announced.close()
            await ladders.close()


def announce(announced: Announcements, name: str, *demand: tuple[Recipe | Image, int], in_s: float = 0.0) -> None:
    at_s = time.monotonic() + in_s
    announced.announce(name, demand, SPEC, at_s, at_s + 600)


async def test_builds_go_on_in_the_background_in_order_and_a_few_at_a_time() -> None:
    recipes = [recipe(number) for number in range(BUILDS_AT_ONCE + 2)]
    async with announcements(sandboxes=16) as (announced, gate, _):
        announce(announced, "step", *((each, 1) for each in recipes))
        await until(lambda: len(gate.begun) == BUILDS_AT_ONCE)
        await asyncio.sleep(0)
        assert gate.begun == recipes[:BUILDS_AT_ONCE]
        assert announced.builds() == {f"step: stage-{number}": 1 for number in range(len(recipes))}
        assert announced.pending() == len(recipes)
        gate.of(recipes[0]).set_result(None)
        await until(lambda: len(gate.begun) == BUILDS_AT_ONCE + 1)
        assert announced.pending() == len(recipes) - 1


async def test_ready_waits_for_builds_and_sandboxes() -> None:
    one = recipe(1)
    async with announcements(sandboxes=8) as (announced, gate, _):
        announce(announced, "step", (one, 2), (HOST_ROOT, 3))
        with pytest.raises(DeadlineExceeded, match="recipes not built: 1, sandboxes not ready: "):
            await announced.ready("step", 0.3)
        waiting = asyncio.create_task(announced.ready("step", 20))
        gate.of(one).set_result(None)
        await waiting
        idle = announced._pool.status().idle_by_rung
        assert idle["stage-1"] >= 2 and idle["base"] >= 3  # noqa: PT018 - more, if a creation was late
        await announced.ready(None, 20)


async def test_ready_means_what_fits() -> None:
    async with announcements(sandboxes=3) as (announced, _, __):
        announce(announced, "step", (HOST_ROOT, 50))
        await announced.ready("step", 20)
        assert announced._pool.status().idle == 3
        announce(announced, "later", (Image(env={"A": "1"}), 5), in_s=0.01)
        await announced.ready("later", 20)  # the earlier announcement has all places
        assert announced._pool.status().idle == 3


async def test_sandboxes_that_cannot_be_made_are_a_missed_deadline_with_its_cause() -> None:
    fake = FakeSubstrate(failures=[Failure(Step.CREATE, FailureKind.ERROR)])
    async with announcements(fake, sandboxes=2) as (announced, _, __):
        announce(announced, "step", (HOST_ROOT, 1))
        with pytest.raises(DeadlineExceeded, match="recipes not built: 0, sandboxes not ready: 1") as caught:
            await announced.ready("step", 0.5)
        assert isinstance(caught.value.__cause__, SubstrateFailed)


async def test_a_build_that_fails_is_kept_shown_and_raised() -> None:
    bad, good = recipe(1), recipe(2)
    async with announcements(sandboxes=4) as (announced, gate, _):
        announce(announced, "step", (bad, 1), (good, 1))
        gate.of(bad).set_exception(BuildFailed("make: no rule", stage="stage-1"))
        gate.of(good).set_result(None)
        for _ in range(2):
            with pytest.raises(BuildFailed, match="no rule"):
                await announced.ready("step", 20)
        assert announced.errors() == {"step: stage-1": "BuildFailed: make: no rule"}
        await until(lambda: announced._pool.status().idle >= 1)  # the others are prepared all the same
        announce(announced, "step", (good, 1))
        await announced.ready("step", 20)
        assert announced.errors() == {}


async def test_an_error_that_ready_did_not_raise_is_warned_of() -> None:
    bad = recipe(1)
    with pytest.warns(RuntimeWarning, match="step: stage-1: SubstrateFailed.*ZeroDivisionError"):  # noqa: PT031
        async with announcements(sandboxes=4) as (announced, gate, _):
            announce(announced, "step", (bad, 1))
            gate.of(bad).set_exception(ZeroDivisionError())
            await until(announced.errors)


async def test_the_builds_of_a_replaced_announcement_that_nothing_else_wants_are_cancelled() -> None:
    alone, leased, kept, shared = (recipe(number) for number in range(4))
    async with announcements(sandboxes=8) as (announced, gate, ladders):
        announce(announced, "step", (alone, 1), (leased, 1), (kept, 1), (shared, 1))
        announce(announced, "another", (shared, 1))
        await until(lambda: len(gate.begun) == 4)
        lease = asyncio.create_task(ladders.find(leased, SPEC))
        await asyncio.sleep(0)
        announce(announced, "step", (kept, 2))
        await until(lambda: gate.cancelled == [alone])
        for each in (leased, kept, shared):
            gate.of(each).set_result(None)
        await lease
        await announced.ready(None, 20)
        assert gate.cancelled == [alone]
        idle = announced._pool.status().idle_by_rung
        assert set(idle) == {"stage-2", "stage-3"}, "of the new announcement and of the other one"
        assert idle["stage-2"] >= 2
        # It was cancelled, not failed: the next caller that wants it builds it.
        gate.of(alone).set_result(None)
        assert await ladders.find(alone, SPEC)


async def test_leases_that_come_before_their_announcement_is_known_are_not_expected_again() -> None:
    recipes = [recipe(number) for number in range(BUILDS_AT_ONCE + 1)]
    async with announcements(sandboxes=8) as (announced, gate, ladders):
        announce(announced, "step", *((each, 2) for each in recipes))
        last = recipes[-1]
        gate.of(last).set_result(None)
        await ladders.find(last, SPEC)  # it waits for a place among the builds, and a lease builds it
        announced.requested(last, SPEC)
        announced.requested(Recipe(), SPEC)
        assert announced.pending() == 2 * len(recipes) - 1
        for each in recipes[:-1]:
            gate.of(each).set_result(None)
        await until(lambda: not announced.builds())
        expected = announced._pool.core.demand.announced(time.monotonic())
        assert [count for _, count, _ in expected] == [2] * BUILDS_AT_ONCE + [1]


async def test_the_end_cancels_builds_and_waits_for_them() -> None:
    one, other = recipe(1), recipe(2)
    async with announcements(sandboxes=4) as (announced, gate, _):
        announce(announced, "step", (one, 1), (other, 1))
        await until(lambda: len(gate.begun) == 2)
    assert gate.cancelled == [one, other]


async def test_what_is_wrong_is_refused_at_once_and_the_earlier_announcement_stays() -> None:
    async with announcements(sandboxes=4) as (announced, _, __):
        announce(announced, "step", (HOST_ROOT, 2))
        for count, in_s in ((0, 0.0), (-1, 0.0), (1.5, 0.0), (1, float("nan"))):
            with pytest.raises(InvalidRequest):
                announce(announced, "step", (recipe(1), count), in_s=in_s)  # type: ignore[arg-type]
        await announced.ready("step", 20)
        assert announced._pool.status().idle >= 2
        with pytest.raises(InvalidRequest, match="nothing was announced"):
            await announced.ready("other", 1)
        with pytest.raises(InvalidRequest, match="positive"):
            await announced.ready("step", 0)


async def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "MAX_NAMES", 2)
    recipes = [recipe(number) for number in range(3)]
    async with announcements(sandboxes=4) as (announced, gate, _):
        for number, each in enumerate(recipes):
            announce(announced, f"step {number}", (each, 1))
            await until(lambda: len(gate.begun) == number + 1)  # noqa: B023
        await until(lambda: gate.cancelled == recipes[:1])


# On a host.


async def test_announce_takes_what_a_lease_takes() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=8)) as host:
        for options in ({}, {"network": "host"}, {"writes": "disk"}, {"network": dutyfree.Egress(("example.org",))}):
            await host.pool.announce([(None, 1), (Image(), 1), (recipe(1), 1)], name="step", **options)  # type: ignore[arg-type]
            assert host.pool.expected() == 3
            await host.pool.ready(name="step", timeout_s=30)
            before = host.pool.status().acquires.get("hit", 0)
            if not isinstance(options.get("network"), dutyfree.Egress):
                async with host.lease(**options), host.lease(Image(), **options):  # type: ignore[arg-type]
                    assert host.pool.status().acquires["hit"] == before + 2
        with pytest.raises(InvalidRequest, match="network is 'internet'"):
            await host.pool.announce([(None, 1)], name="step", network="internet")
        with pytest.raises(Unsupported):
            await host.pool.announce([("no-such-image", 1)], name="step")


async def test_announce_returns_while_creations_are_slow_and_a_wrong_stage_is_raised() -> None:
    bad = Recipe(stages=(Stage("broken", run=("exit 3",)),))
    slow = Latencies(create_s=0.3)
    async with dutyfree.local("fake", latencies=slow, pool=PoolOptions(sandboxes=8)) as host:
        await host.pool.announce([(None, 2)], name="good")
        await host.pool.announce([(bad, 2)], name="bad")
        assert host.pool.status().idle == 0
        with pytest.raises(BuildFailed):
            await host.pool.ready(timeout_s=20)
        await host.pool.ready(name="good", timeout_s=20)


async def test_a_cold_pool_has_nothing_to_wait_for() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=2, policy="cold")) as host:
        await host.pool.announce([(None, 2)], name="step")
        await host.pool.ready(timeout_s=5)
        assert host.pool.status().idle == 0


async def test_another_event_loop_is_refused() -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=2)) as host:
        pool = host.pool
        for call in (lambda: pool.announce([(None, 1)], name="x"), pool.ready):
            with pytest.raises(InvalidRequest, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(call()))  # type: ignore[arg-type]  # noqa: B023


def test_ready_without_an_event_loop() -> None:
    with dutyfree.sync.local("process", pool=PoolOptions(sandboxes=4)) as host:
        host.pool.announce([(None, 2)], name="step", network=Network.NONE)
        host.pool.ready(name="step", timeout_s=30)
        with host.lease(), host.lease():
            assert host.pool.status().acquires == {"hit": 2}
