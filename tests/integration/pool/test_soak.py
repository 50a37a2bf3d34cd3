"""Thousands of leases while everything fails now and then, tenants are killed, and ten times too many ask at once."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from dutyfree.client.box import Box
from dutyfree.errors import CapacityError, DutyfreeError, SubstrateUnavailable
from dutyfree.model import Image, SandboxSpec
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.outcomes import OutcomeKind, classify
from dutyfree.pool.pool import Pool
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Step
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.registry import load

LEASES = int(os.environ.get("DUTYFREE_SOAK_LEASES", "0"))
"""More leases than usual: 10,000 on cells take two minutes."""
FAILURES = [
    Failure(Step.CREATE, FailureKind.ERROR, calls={5}),  # cells are reset, so few are created
    Failure(Step.CREATE, FailureKind.ERROR, probability=0.01),
    Failure(Step.RUN, FailureKind.DEATH, probability=0.01),
    Failure(Step.RESET, FailureKind.ERROR, probability=0.01),
    Failure(Step.DESTROY, FailureKind.ERROR, probability=0.01),
]


@dataclass
class Book:
    """What tenants saw, kept beside the pool's own."""

    held: dict[str, int] = field(default_factory=dict)
    endings: Counter[OutcomeKind] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    strangers: list[BaseException] = field(default_factory=list)


async def tenant(pool: Pool, wanted: Wanted, number: int, book: Book, killed: bool) -> None:
    error: BaseException | None = None
    try:
        grant = await pool.acquire(wanted, owner=f"owner {number % 7}", timeout_s=60)
        try:
            assert grant.sandbox.id not in book.held, "two tenants in one sandbox"
            book.held[grant.sandbox.id] = number
            book.tokens.append(grant.lease.token)
            seen = await Box(grant, pool).run(f"cat trace; echo {number} > trace", timeout_s=20)
            assert seen.text == "", "something of an earlier tenant is left"
            if killed:
                await Box(grant, pool).run("sleep 30")
        finally:
            book.held.pop(grant.sandbox.id, None)
            await pool.release(grant)
    except (DutyfreeError, asyncio.CancelledError) as caught:
        error = caught
    except Exception as caught:
        book.strangers.append(caught)
    book.endings[classify(error).kind if error is not None else OutcomeKind.OBSERVATION] += 1
    if isinstance(error, asyncio.CancelledError):
        raise error


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("substrate", "leases"), [("process", LEASES or 1_500), ("cell", LEASES or 500)])
async def test_nothing_is_lost_and_everything_has_a_type(substrate: str, leases: int) -> None:
    faulty = FakeSubstrate(substrate, failures=FAILURES, seed=6)
    numbers, book = random.Random(6), Book()
    async with AsyncExitStack() as held:
        try:
            guarded = await held.enter_async_context(GuardedSubstrate(faulty))
        except SubstrateUnavailable as error:
            pytest.skip(str(error))
        stager = Stager(guarded)
        wanted = await stager.wanted(Image(), SandboxSpec())
        async with Pool(stager, PoolOptions(sandboxes=16), guarded.capabilities) as pool:
            places = asyncio.Semaphore(32)

            async def one(number: int) -> None:
                async with places:
                    killed = numbers.random() < 0.05
                    task = asyncio.create_task(tenant(pool, wanted, number, book, killed))
                    if killed:
                        await asyncio.sleep(numbers.uniform(0, 0.05))
                        task.cancel()
                    await asyncio.wait({task})

            await asyncio.gather(*(one(number) for number in range(leases)))
            await rest(pool)
            status = pool.status()
            assert (status.leased, status.waiting) == (0, 0)
            assert status.idle <= 16
        assert not book.strangers
        assert not book.held
        assert book.endings.total() == leases
        assert book.endings[OutcomeKind.OBSERVATION] > 0.85 * leases
        assert len(set(book.tokens)) == len(book.tokens)
        expected = [Step.CREATE, Step.RUN, Step.RESET if substrate == "cell" else Step.DESTROY]
        assert min(faulty.struck[step] for step in expected) > 0
        assert not faulty.living, "a closed pool leaves nothing"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_ten_times_too_many_get_an_answer_in_time_and_a_fair_share() -> None:
    places, owners, each = 8, 5, 160
    guarded = GuardedSubstrate(load("process"))
    served: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    answers_s: list[float] = []
    hints_s: list[float | None] = []
    async with guarded:
        stager = Stager(guarded)
        wanted = await stager.wanted(Image(), SandboxSpec())
        options = PoolOptions(sandboxes=places, waiting=10 * places)
        async with Pool(stager, options, guarded.capabilities) as pool:
            end_s = time.monotonic() + 4.0

            async def ask(owner: str) -> None:
                while time.monotonic() < end_s:
                    start_s = time.monotonic()
                    try:
                        grant = await pool.acquire(wanted, owner=owner, timeout_s=0.5)
                    except CapacityError as error:
                        refused[owner] += 1
                        answers_s.append(time.monotonic() - start_s)
                        hints_s.append(error.retry_after_s)
                        await asyncio.sleep(0.1)
                        continue
                    await asyncio.sleep(0.02)
                    await pool.release(grant)
                    served[owner] += 1

            # One owner asks five times as often as the others.
            crowd = {f"owner {number}": each // 5 if number else each for number in range(owners)}
            await asyncio.gather(*(ask(owner) for owner, count in crowd.items() for _ in range(count)))
            assert len(pool._waiting) == 0
    assert sum(refused.values()) > 0
    assert max(answers_s) < 5, "an answer long after the deadline"
    assert all(hint_s is not None for hint_s in hints_s)
    greedy = served.pop("owner 0")
    assert len(served) == owners - 1
    assert min(served.values()) > 0.25 * max(served.values()), f"nobody starves: {served}"
    assert greedy <= 1.6 * sum(served.values()) / len(served), f"who asks more gets no more: {greedy}, {served}"


async def rest(pool: Pool) -> None:
    end_s = time.monotonic() + 20
    while pool.status().leased or pool.status().returned or pool.status().operations:
        assert time.monotonic() < end_s, pool.status()
        await asyncio.sleep(0.01)
