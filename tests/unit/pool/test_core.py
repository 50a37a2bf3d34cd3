"""The pool's core, driven by scripted events under virtual time: no sandbox, no event loop, no sleep."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import BuildFailed, CapacityError, DutyfreeError, SubstrateFailed
from dutyfree.leases.table import Lease, LeaseTable
from dutyfree.pool.commands import Abort, CoreCommand, Expire, Give, Refuse, Start
from dutyfree.pool.core import MAX_TRIES, STUCK_AFTER_S, CoreOptions, PoolCore
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.demand import Announcement
from dutyfree.pool.planner_input import Abilities, Limits, OperationKind
from dutyfree.pool.queue import Request
from dutyfree.pool.routing import Policy
from dutyfree.pool.size import Size
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.node import SimulatedGoal

MIB = 1 << 20
GOALS = [SimulatedGoal(Ladder(("base", "code"), State(("base", name))), images=True) for name in ("a", "b", "c")]


@dataclass
class Driver:
    """Carries out a core's commands when the test says so."""

    core: PoolCore[SimulatedGoal]
    now_s: float = 0.0
    running: dict[int, Start[SimulatedGoal]] = field(default_factory=dict)
    given: dict[Request[SimulatedGoal], Lease] = field(default_factory=dict)
    refused: dict[Request[SimulatedGoal], DutyfreeError] = field(default_factory=dict)
    expired: list[Lease] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    made: int = 0

    def obey(self, commands: list[CoreCommand[SimulatedGoal]]) -> None:
        for command in commands:
            match command:
                case Start(number):
                    assert number not in self.running
                    self.running[number] = command
                case Give(request, lease, member):
                    assert request not in self.given
                    assert lease.sandbox == member.id
                    self.given[request] = lease
                case Refuse(request, error):
                    assert request not in self.given
                    self.refused[request] = error
                case Expire(lease):
                    self.expired.append(lease)
                case Abort(number):
                    self.aborted.append(number)
        limits = self.core.options.limits
        assert self.core.members.count <= limits.sandboxes
        assert self.core.members.busy <= limits.at_once

    def ask(self, goal: int = 0, owner: str = "", ttl_s: float = math.inf) -> Request[SimulatedGoal]:
        request = Request(GOALS[goal], owner, ttl_s, None, self.now_s, math.inf)
        self.obey(self.core.acquire(request, self.now_s))
        return request

    def finish(self, number: int | None = None, error: DutyfreeError | None = None, aborted: bool = False) -> None:
        number = next(iter(self.running)) if number is None else number
        start = self.running.pop(number)
        sandbox = ""
        if start.member is None and error is None:
            self.made += 1
            sandbox = f"box-{self.made}"
        self.obey(self.core.finished(number, self.now_s, sandbox=sandbox, error=error, aborted=aborted))

    def give_back(self, request: Request[SimulatedGoal], *, clean: bool = True) -> None:
        lease = self.given.pop(request)
        if self.core.leases.release(lease.id, lease.token) is not None:
            self.obey(self.core.returned(lease.sandbox, self.now_s, clean=clean))

    def tick(self) -> None:
        """Let time pass until the core wants it to."""
        self.now_s = max(self.now_s, self.core.due_s if self.core.due_s < math.inf else self.now_s)
        self.obey(self.core.tick(self.now_s))

    def settle(self) -> None:
        """Let everything end with success until there is nothing to do."""
        for _ in range(200):
            self.tick()
            while self.running:
                self.now_s += 0.01
                self.finish()
            if self.core.due_s - self.now_s > 0.1:
                return
        raise AssertionError("the plans do not come to rest")

    def kinds(self) -> list[str]:
        return [str(start.kind) for start in self.running.values()]


def driver(
    sandboxes: int = 4,
    policy: Policy = Policy.LOCALITY,
    *,
    at_once: int = 4,
    memory_bytes: int | None = None,
    reset: bool = True,
    queue: int = 100,
) -> Driver:
    limits = Limits(sandboxes, memory_bytes, None, at_once)
    options = CoreOptions(limits, Abilities(reset=reset, images=True), policy, queue=queue)
    return Driver(PoolCore(options, Costs(), LeaseTable(prefix="test")))


def test_a_request_gets_what_was_created_for_it_and_the_next_one_gets_it_reset() -> None:
    pool = driver()
    first = pool.ask()
    assert pool.kinds() == ["create"]
    pool.finish()
    assert first in pool.given
    assert first.rung == "cold"
    pool.give_back(first)
    pool.tick()
    assert pool.kinds() == ["reset"]
    pool.finish()
    second = pool.ask()
    assert second in pool.given
    assert second.rung == "hit"
    assert pool.given[second].token > 1


def test_a_cold_pool_destroys_at_once_and_needs_no_plan() -> None:
    pool = driver(policy=Policy.COLD)
    request = pool.ask()
    assert pool.core.due_s == math.inf
    pool.finish()
    pool.give_back(request)
    assert pool.kinds() == ["destroy"]
    assert pool.core.due_s == math.inf
    pool.finish()
    assert pool.core.members.count == 0


def test_a_cold_pool_gives_up_a_creation_that_is_not_wanted_any_more() -> None:
    pool = driver(policy=Policy.COLD)
    requests = [pool.ask() for _ in range(2)]
    pool.obey(pool.core.cancel(requests[0]))
    assert pool.aborted == [2]
    pool.finish(2, aborted=True)
    pool.finish(1)
    assert requests[1] in pool.given
    assert requests[0] not in pool.given
    assert not pool.core.metrics.failures


def test_a_creation_that_outlives_its_request_is_ended_by_the_next_plan() -> None:
    pool = driver(policy=Policy.COLD)
    request = pool.ask()
    pool.core.queue.remove(request)
    pool.finish()
    pool.tick()
    assert pool.kinds() == ["destroy"]


def test_in_a_cold_pool_each_request_gets_the_sandbox_that_it_began() -> None:
    pool = driver(policy=Policy.COLD)
    first, second, third = (pool.ask() for _ in range(3))
    pool.finish(2)
    assert list(pool.given) == [second]
    pool.obey(pool.core.cancel(third))
    pool.finish(1, error=SubstrateFailed("no"))
    assert first not in pool.given
    pool.running.pop(3)
    pool.obey(pool.core.finished(3, pool.now_s, sandbox="late"))  # the cancellation came too late for it
    assert first in pool.given


def test_a_cold_pool_with_room_for_all_begins_each_creation_at_once() -> None:
    pool = driver(sandboxes=10, policy=Policy.COLD, at_once=10)
    for goal in (0, 1, 2, 0):
        pool.ask(goal)
    assert pool.kinds() == ["create"] * 4
    scarce = driver(sandboxes=2, policy=Policy.COLD)
    for goal in (0, 1, 2):
        scarce.ask(goal)
    assert scarce.kinds() == ["create"] * 2


@pytest.mark.parametrize("policy", list(Policy))
def test_a_request_fails_after_some_tries_with_pauses_between_them(policy: Policy) -> None:
    pool = driver(policy=policy)
    request = pool.ask()
    start_s = pool.now_s
    for tries in range(MAX_TRIES):
        assert request not in pool.refused, tries
        while not pool.running:
            pool.tick()
        pool.finish(error=SubstrateFailed("no"))
    assert isinstance(pool.refused[request], SubstrateFailed)
    assert pool.now_s - start_s >= 0.1 + 0.2
    assert pool.core.metrics.failures[OperationKind.CREATE, "SubstrateFailed"] == MAX_TRIES


def test_a_stage_that_fails_refuses_every_request_for_it_and_no_other() -> None:
    pool = driver(sandboxes=6)
    bad, others = [pool.ask(0) for _ in range(3)], [pool.ask(1)]
    number = next(number for number, start in pool.running.items() if start.goal is GOALS[0])
    pool.finish(number, error=BuildFailed("exit code 3", stage="code"))
    assert all(isinstance(pool.refused[each], BuildFailed) for each in bad)
    assert not pool.refused.keys() & set(others)


def test_a_creation_has_a_deadline_once_enough_were_measured() -> None:
    pool = driver()
    assert pool.core.costs.estimate(Step.create(GOALS[0].ladder.top)).count == 0
    pool.ask()
    assert next(iter(pool.running.values())).within_s is None
    for _ in range(20):
        pool.core.costs.observe(Step.create(GOALS[1].ladder.top), 4.0)
    pool.ask(1)
    pool.tick()
    within_s = list(pool.running.values())[-1].within_s
    assert within_s is not None
    assert within_s > STUCK_AFTER_S
    assert within_s == pytest.approx(20 * pool.core.costs.estimate(Step.create(GOALS[1].ladder.top)).p95_s)


def test_a_full_queue_refuses_and_displaces() -> None:
    pool = driver(sandboxes=1, queue=2)
    pool.ask(owner="ann")
    greedy = [pool.ask(owner="ann") for _ in range(2)]
    assert isinstance(pool.refused[greedy[1]], CapacityError)
    modest = pool.ask(owner="bob")
    assert modest not in pool.given
    assert isinstance(pool.refused[greedy[0]], CapacityError) or modest in pool.refused


def test_a_lease_that_runs_out_is_reported_once() -> None:
    pool = driver(policy=Policy.COLD)
    request = pool.ask(ttl_s=5.0)
    pool.finish()
    assert pool.core.due_s == 5.0
    pool.tick()
    assert [lease.id for lease in pool.expired] == [pool.given[request].id]
    pool.obey(pool.core.returned(pool.given[request].sandbox, pool.now_s))
    assert pool.kinds() == ["destroy"]
    assert pool.core.due_s == math.inf


def test_what_is_announced_is_there_in_time() -> None:
    pool = driver(sandboxes=6)
    announced = [(Announcement("step", GOALS[0].ladder.top, 4, 60.0, 600.0), GOALS[0])]
    pool.obey(pool.core.announce(announced, 0.0))
    while pool.now_s < 60.0:
        pool.tick()
        while pool.running:
            pool.finish()
    assert [pool.ask().rung for _ in range(4)] == ["hit"] * 4


def test_quick_creations_are_begun_between_two_ticks_if_need_be() -> None:
    """They are begun milliseconds before they are announced for, and ticks are a quarter of a second apart."""
    for at_s in (60.0, 60.07, 60.13, 60.2):
        pool = driver(sandboxes=6)
        for step in (Step.create(GOALS[0].ladder.top), Step.create(GOALS[0].ladder.rungs[0])):
            for _ in range(20):
                pool.core.costs.observe(step, 0.003)
        pool.obey(pool.core.announce([(Announcement("step", GOALS[0].ladder.top, 4, at_s, 600.0), GOALS[0])], 0.0))
        while pool.core.due_s < at_s:
            pool.tick()
            while pool.running:
                pool.finish()
        assert [pool.ask().rung for _ in range(4)] == ["hit"] * 4


# Forks of leased sandboxes.


def test_forks_count_against_the_limit_and_end_with_their_lease() -> None:
    pool = driver(sandboxes=4)
    request = pool.ask()
    pool.finish()
    sandbox = pool.given[request].sandbox
    pool.obey(pool.core.ask_for_forks(sandbox, 3, pool.now_s))
    assert pool.core.take_forks(sandbox, 3)
    waiting = pool.ask(1)
    pool.tick()
    assert waiting not in pool.given
    assert not pool.running
    with pytest.raises(CapacityError):
        pool.core.ask_for_forks(sandbox, 1, pool.now_s)
    pool.give_back(request)
    pool.settle()
    assert waiting in pool.given


def test_forks_make_idle_sandboxes_go_and_nothing_takes_their_places() -> None:
    pool = driver(sandboxes=4)
    requests = [pool.ask(goal) for goal in (0, 1, 2, 0)]
    pool.settle()
    for each in requests[1:]:
        pool.give_back(each)
    pool.settle()
    idle = pool.core.members.count - 1
    sandbox = pool.given[requests[0]].sandbox
    pool.obey(pool.core.ask_for_forks(sandbox, 3, pool.now_s))
    assert pool.kinds() == ["destroy"] * idle
    late = pool.ask(1)
    while pool.running:
        assert not pool.core.take_forks(sandbox, 3)
        pool.finish()
        pool.tick()
        assert "create" not in pool.kinds()
    assert pool.core.take_forks(sandbox, 3)
    assert late not in pool.given
    pool.core.forks_ended(sandbox, 3)
    pool.settle()
    assert late in pool.given


def test_a_lease_that_ends_under_a_fork_takes_its_claim_along() -> None:
    pool = driver(sandboxes=2)
    requests = [pool.ask(), pool.ask()]
    pool.settle()
    pool.give_back(requests[1])
    sandbox = pool.given[requests[0]].sandbox
    pool.obey(pool.core.ask_for_forks(sandbox, 1, pool.now_s))
    pool.give_back(requests[0], clean=False)  # the fork did not end within the time for that
    assert not pool.core.take_forks(sandbox, 1)
    pool.settle()
    pool.core.cancel_forks(sandbox, 1)
    pool.settle()
    assert pool.core.members.leased == 0


def test_forks_that_are_given_up_free_their_places() -> None:
    pool = driver(sandboxes=2)
    request = pool.ask()
    pool.finish()
    sandbox = pool.given[request].sandbox
    pool.obey(pool.core.ask_for_forks(sandbox, 1, pool.now_s))
    pool.core.cancel_forks(sandbox, 1)
    other = pool.ask(1)
    pool.settle()
    assert other in pool.given


# Sizes.


def test_memory_is_limited_by_what_sandboxes_were_measured_to_take() -> None:
    pool = driver(sandboxes=10, memory_bytes=100 * MIB, reset=False)
    first = pool.ask()
    pool.finish()
    pool.core.measured(pool.given[first].sandbox, Size(memory_bytes=40 * MIB))
    requests = [pool.ask() for _ in range(4)]
    pool.settle()
    assert sum(each in pool.given for each in requests) == 1  # 40 + 40 of 100
    pool.give_back(first)
    pool.settle()
    assert sum(each in pool.given for each in requests) == 2


def test_a_sandbox_that_was_never_measured_is_tried_whatever_the_limit() -> None:
    pool = driver(sandboxes=10, memory_bytes=MIB)
    request = pool.ask()
    pool.settle()
    assert request in pool.given


def test_a_state_that_was_measured_larger_than_the_limit_is_served_alone() -> None:
    pool = driver(sandboxes=10, memory_bytes=100 * MIB)
    for goal, memory_bytes in ((0, 300 * MIB), (1, 10 * MIB)):
        request = pool.ask(goal)
        pool.settle()
        pool.core.measured(pool.given[request].sandbox, Size(memory_bytes=memory_bytes))
        pool.give_back(request)
        pool.settle()
    small, large = pool.ask(1), pool.ask(0)
    pool.settle()
    assert large not in pool.given
    pool.give_back(small)
    pool.settle()
    assert large in pool.given
    assert pool.core.members.total_size.memory_bytes <= 100 * MIB


def test_forks_count_against_memory_too() -> None:
    pool = driver(sandboxes=10, memory_bytes=100 * MIB)
    request = pool.ask()
    pool.finish()
    sandbox = pool.given[request].sandbox
    pool.core.measured(sandbox, Size(memory_bytes=40 * MIB))
    with pytest.raises(CapacityError):
        pool.core.ask_for_forks(sandbox, 2, pool.now_s)
    pool.obey(pool.core.ask_for_forks(sandbox, 1, pool.now_s))
    assert pool.core.take_forks(sandbox, 1)


# Fault schedules: whatever happens in whatever order, nothing is doubled, lost or left behind.


@given(st.integers(0, 2**32), st.sampled_from(Policy), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_fails_no_request_and_no_sandbox_is_lost(seed: int, policy: Policy, reset: bool) -> None:
    numbers = random.Random(seed)
    pool = driver(sandboxes=numbers.randint(1, 6), policy=policy, at_once=numbers.randint(1, 4), reset=reset, queue=8)
    asked: list[Request[SimulatedGoal]] = []
    cancelled: set[Request[SimulatedGoal]] = set()
    forks: dict[str, int] = {}
    for _ in range(numbers.randint(10, 120)):
        pool.now_s += numbers.expovariate(20)
        event = numbers.random()
        if event < 0.35:
            asked.append(pool.ask(numbers.randrange(3), numbers.choice(["ann", "bob"])))
        elif event < 0.6 and pool.running:
            failed = SubstrateFailed("no") if numbers.random() < 0.3 else None
            pool.finish(numbers.choice(list(pool.running)), failed)
        elif event < 0.75 and pool.given:
            request = numbers.choice(list(pool.given))
            forks.pop(pool.given[request].sandbox, None)
            pool.give_back(request, clean=numbers.random() < 0.8)
        elif event < 0.8 and asked:
            request = numbers.choice(asked)
            if request not in pool.given and request not in pool.refused:
                cancelled.add(request)
                pool.obey(pool.core.cancel(request))
        elif event < 0.9 and pool.given:
            sandbox = pool.given[numbers.choice(list(pool.given))].sandbox
            try:
                pool.obey(pool.core.ask_for_forks(sandbox, 1, pool.now_s))
            except CapacityError:
                continue
            if pool.core.take_forks(sandbox, 1):
                forks[sandbox] = forks.get(sandbox, 0) + 1
            else:
                pool.core.cancel_forks(sandbox, 1)
        else:
            pool.tick()
        leased = [lease.sandbox for lease in pool.given.values()]
        assert len(leased) == len(set(leased)), "one sandbox, one tenant"
        assert pool.core.members.leased == len(leased) + sum(forks.values())
    for _ in range(400):
        pool.now_s += 0.05
        pool.tick()
        while pool.running:
            pool.finish()
        for request in list(pool.given):
            pool.give_back(request)
        if not len(pool.core.queue):
            break
    waiting = set(pool.core.queue.all())
    assert not waiting, "every request is served in the end"
    pool.settle()
    assert len(pool.core.leases) == 0
    assert pool.core.members.leased == 0
    if policy is Policy.COLD or not reset:
        assert pool.core.members.count == 0 or policy is not Policy.COLD
