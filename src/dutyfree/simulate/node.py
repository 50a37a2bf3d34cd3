"""One pool under a simulated clock: the real core, over sandboxes that are only counted.

This is the core's second driver. `pool.Pool` carries its commands out with asyncio; here an operation is a latency that
is drawn at random, and a lease lasts as long as its trajectory was drawn to last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from dutyfree.errors import CapacityError, DeadlineExceeded, DutyfreeError, SubstrateFailed
from dutyfree.leases.table import Lease, LeaseTable
from dutyfree.pool.commands import CoreCommand, Give, Refuse, Start
from dutyfree.pool.core import CoreOptions, PoolCore
from dutyfree.pool.costs import Step
from dutyfree.pool.demand import Announcement
from dutyfree.pool.members import Member
from dutyfree.pool.planner_input import OperationKind
from dutyfree.pool.queue import Request
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.clock import Processor
from dutyfree.simulate.setting import Setting, Trajectory

UNBOUNDED: Final = 10**9
"""Requests that may wait: scenarios say how long one waits, not how many do."""

Steps = list[tuple[Step, float]]
"""The steps of an operation, and the seconds that each takes alone."""


@dataclass(frozen=True, slots=True)
class SimulatedGoal:
    """A wanted state, over a substrate that has images of all states or of the bases alone."""

    ladder: Ladder
    images: bool

    def made_in(self, state: State) -> State:
        """The state in which a new sandbox is created when `state` is asked for."""
        return state if self.images else state.cut(1)


class OperationFailed(SubstrateFailed):
    """A simulated operation has failed."""

    def __init__(self, kind: OperationKind) -> None:
        super().__init__(f"a simulated {kind} failed")
        self.kind = kind


class Node:
    """A pool, and its sandboxes."""

    def __init__(self, index: int, setting: Setting, numbers: Random) -> None:
        pool = setting.pool
        options = CoreOptions(
            pool.limits,
            pool.abilities,
            setting.policy,
            queue=UNBOUNDED,
            plan_every_s=pool.plan_every_s,
            tick_s=pool.tick_s,
            longest_tick_s=pool.longest_tick_s,
        )
        self._setting = setting
        self._clock = setting.clock
        self._numbers = numbers
        self._index = index
        self._created = 0
        self._core: PoolCore[SimulatedGoal] = PoolCore(options, setting.costs, LeaseTable(prefix=str(index)))
        self._goals = {
            state: SimulatedGoal(ladder, pool.abilities.images) for state, ladder in setting.leading_to.items()
        }
        self._processor = Processor(setting.clock, setting.contention)
        self._waiting: dict[Request[SimulatedGoal], Trajectory] = {}
        self._tick_at_s = math.inf
        """When the next tick is scheduled."""

    def announce(self, announcements: Iterable[Announcement]) -> None:
        """Announce demand to the pool."""
        self._obey(self._core.announce([(each, self._goals[each.state]) for each in announcements], self._clock.now_s))

    def acquire(self, trajectory: Trajectory) -> None:
        """Begin a trajectory: it gets a sandbox, does what it does, and gives the sandbox back."""
        now_s, timeout_s = self._clock.now_s, self._setting.pool.acquire_timeout_s
        deadline_s = math.inf if timeout_s is None else now_s + timeout_s
        request = Request(self._goals[trajectory.ladder.top], "", math.inf, None, now_s, deadline_s)
        self._waiting[request] = trajectory
        self._obey(self._core.acquire(request, now_s))
        if timeout_s is not None and request in self._waiting:
            self._clock.after(timeout_s, self._time_out, request)

    def close(self) -> None:
        """Add up the idle time of the whole simulation."""
        self._setting.tally.idle_s += sum(self._core.members.idle_s(self._clock.now_s).values())

    # Driving the core.

    def _obey(self, commands: list[CoreCommand[SimulatedGoal]]) -> None:
        for command in commands:
            match command:
                case Start():
                    self._start(command)
                case Give(request, lease, member):
                    self._give(request, lease, member)
                case Refuse(request, error):
                    self._end_without(request, error)
        self._count()
        due_s = max(self._core.due_s, self._clock.now_s)
        if due_s < self._tick_at_s:
            self._schedule(due_s)

    def _schedule(self, at_s: float) -> None:
        self._tick_at_s = at_s
        self._clock.after(at_s - self._clock.now_s, self._tick, at_s)

    def _tick(self, at_s: float) -> None:
        if at_s != self._tick_at_s:
            return  # an earlier tick has replaced this one
        self._tick_at_s = math.inf
        due_s = self._core.due_s
        if due_s > self._clock.now_s:
            if not math.isinf(due_s):
                self._schedule(due_s)
            return
        self._setting.tally.plans += 1
        self._obey(self._core.tick(self._clock.now_s))

    def _count(self) -> None:
        tally, members = self._setting.tally, self._core.members
        tally.most_sandboxes = max(tally.most_sandboxes, members.count)
        tally.most_busy = max(tally.most_busy, members.busy)

    # Trajectories.

    def _give(self, request: Request[SimulatedGoal], lease: Lease, member: Member[SimulatedGoal]) -> None:
        trajectory = self._waiting.pop(request)
        numbers, latencies, tally = self._numbers, self._setting.latencies, self._setting.tally
        rollout = trajectory.rollout
        give_s = latencies.give.draw(numbers)
        readiness_s = self._clock.now_s + give_s - trajectory.asked_s
        hold_s = rollout.think_s + rollout.action_s / self._processor.speed
        cause = None
        if latencies.failures.lease and numbers.random() < latencies.failures.lease:
            cause, hold_s = "lease", hold_s * numbers.random()
        tally.readiness_s.append(readiness_s)
        tally.queue_s.append(max(0.0, member.begun_s - trajectory.asked_s))
        tally.hits[request.rung] += 1
        tally.leased_s += hold_s
        tally.trajectories_s += readiness_s + hold_s
        self._processor.beside(rollout.computing)
        self._clock.after(give_s + hold_s, self._release, trajectory, lease, cause)

    def _release(self, trajectory: Trajectory, lease: Lease, cause: str | None) -> None:
        self._processor.beside(-trajectory.rollout.computing)
        self._core.leases.release(lease.id, lease.token)
        self._obey(self._core.returned(lease.sandbox, self._clock.now_s, clean=cause is None))
        self._setting.ended(trajectory, cause)

    def _time_out(self, request: Request[SimulatedGoal]) -> None:
        if request in self._waiting:
            self._core.cancel(request)
            self._end_without(request, CapacityError("no sandbox was ready in time"))

    def _end_without(self, request: Request[SimulatedGoal], error: DutyfreeError) -> None:
        """End a trajectory that got no sandbox."""
        trajectory = self._waiting.pop(request)
        self._setting.tally.trajectories_s += self._clock.now_s - trajectory.asked_s
        cause = str(error.kind) if isinstance(error, OperationFailed) else "capacity"
        self._setting.ended(trajectory, cause)

    # Operations.

    def _start(self, start: Start[SimulatedGoal]) -> None:
        """Begin an operation. One that fails does so at any point of it, and its sandbox is destroyed then."""
        latencies = self._setting.latencies
        self._setting.tally.operations[start.reason or str(start.kind)] += 1
        steps, fails = self._drawn(start)
        work_s = sum([seconds for _, seconds in steps])
        error: DutyfreeError | None = OperationFailed(start.kind) if fails else None
        if fails:
            work_s = work_s * self._numbers.random() + latencies.destroy.draw(self._numbers)
        elif start.within_s is not None and steps[0][1] > start.within_s:
            work_s, error = start.within_s, DeadlineExceeded("a simulated creation was stuck")
        self._processor.start(work_s, self._finish, start, steps, work_s, self._clock.now_s, error)

    def _drawn(self, start: Start[SimulatedGoal]) -> tuple[Steps, bool]:
        """The steps of an operation, with drawn times, and whether it fails."""
        latencies, ladder, failures = self._setting.latencies, start.goal.ladder, self._setting.latencies.failures
        if start.kind is OperationKind.DESTROY:
            return [(Step.destroy(), latencies.destroy.draw(self._numbers))], self._fails(failures.destroy)
        if start.kind is OperationKind.RESET:
            return [(Step.reset(start.made_in), latencies.reset.draw(self._numbers))], self._fails(failures.reset)
        steps: Steps = []
        have = start.member.state if start.member is not None else start.made_in
        if start.member is None:
            steps.append((Step.create(have), latencies.creation(ladder, have).draw(self._numbers)))
        for depth in range(have.depth, start.state.depth):
            digest = start.state.digests[depth]
            steps.append((Step.stage(digest), latencies.stage(ladder, depth).draw(self._numbers)))
        stages = start.state.depth - have.depth
        fails = start.member is None and self._fails(failures.create)
        return steps, fails or (failures.stage > 0 and self._fails(1 - (1 - failures.stage) ** stages))

    def _fails(self, probability: float) -> bool:
        return probability > 0 and self._numbers.random() < probability

    def _finish(
        self, start: Start[SimulatedGoal], steps: Steps, work_s: float, begun_s: float, error: DutyfreeError | None
    ) -> None:
        now_s, sandbox = self._clock.now_s, ""
        if error is not None:
            self._setting.tally.lost[start.kind] += 1
        else:
            # What was measured includes the slowdown by others on the same cores.
            slowness = (now_s - begun_s) / work_s if work_s else 1.0
            for step, seconds in steps:
                self._setting.costs.observe(step, seconds * slowness)
            if start.member is None:
                self._created += 1
                sandbox = f"{self._index}/{self._created}"
        self._obey(self._core.finished(start.number, now_s, sandbox=sandbox, error=error))
