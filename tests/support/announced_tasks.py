"""Tasks that were announced, in virtual time: a pool's core decides, and drawn orders of requests meet it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from dutyfree.leases.table import LeaseTable
from dutyfree.pool.commands import CoreCommand, Give, Refuse, Start
from dutyfree.pool.core import CoreOptions, PoolCore
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.demand import Announcement
from dutyfree.pool.planner_input import Abilities, Limits, OperationKind
from dutyfree.pool.queue import Request
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.node import SimulatedGoal

CREATE_S, RESET_S, DESTROY_S = 0.3, 0.1, 0.05


def goal_of(recipe: int) -> SimulatedGoal:
    return SimulatedGoal(Ladder(("base", "code"), State(("base", f"recipe-{recipe}"))), images=True)


class AnnouncedTasks:
    """`tasks` are numbers of recipes, in the order in which they are requested, `concurrency` at a time."""

    def __init__(self, sandboxes: int, tasks: Sequence[int], concurrency: int, task_s: float = 2.0) -> None:
        self._tasks, self._concurrency, self._task_s = deque(tasks), concurrency, task_s
        self._goals = {recipe: goal_of(recipe) for recipe in set(tasks)}
        costs = Costs()
        for goal in self._goals.values():
            for rung in goal.ladder.rungs:
                costs.observe(Step.create(rung), CREATE_S)
                costs.observe(Step.reset(rung), RESET_S)
        options = CoreOptions(Limits(sandboxes, at_once=4), Abilities(reset=True, images=True))
        self._core: PoolCore[SimulatedGoal] = PoolCore(options, costs, LeaseTable(prefix="test"))
        self._now_s = 0.0
        self._events: list[tuple[float, int, Start[SimulatedGoal] | Give[SimulatedGoal]]] = []
        self._number = 0
        self.hits: list[bool] = []

    def announce(self, demand: Sequence[tuple[int, int]], *, group: str = "step") -> None:
        """Announce (recipe, count) pairs, and let the pool prepare. Without a group, entries stand alone."""
        announced = [
            (Announcement(str(n), self._goals[recipe].ladder.top, count, 0.0, 1e6, group, n), self._goals[recipe])
            for n, (recipe, count) in enumerate(demand)
        ]
        self._obey(self._core.announce(announced, 0.0))
        self._run(until_s=60.0)

    def run(self) -> float:
        """Request all tasks; returns the share of requests that found their sandbox ready."""
        for _ in range(self._concurrency):
            self._request()
        self._run(until_s=math.inf)
        return sum(self.hits) / len(self.hits)

    def _request(self) -> None:
        if self._tasks:
            goal = self._goals[self._tasks.popleft()]
            request = Request(goal, "", math.inf, None, self._now_s, math.inf)
            self._obey(self._core.acquire(request, self._now_s))
            self.hits.append(request.rung == "hit")

    def _run(self, until_s: float) -> None:
        while True:
            next_s = self._events[0][0] if self._events else math.inf
            if math.isinf(until_s) and not self._tasks:
                return
            self._now_s = max(self._now_s, min(next_s, self._core.due_s))
            if self._now_s > until_s:
                return
            if next_s > self._now_s:
                self._obey(self._core.tick(self._now_s))
                continue
            event = heapq.heappop(self._events)[2]
            if isinstance(event, Give):
                self._core.leases.release(event.lease.id, event.lease.token)
                self._obey(self._core.returned(event.member.id, self._now_s))
                self._request()
            else:
                sandbox = f"box-{event.number}" if event.member is None else ""
                self._obey(self._core.finished(event.number, self._now_s, sandbox=sandbox))

    def _obey(self, commands: list[CoreCommand[SimulatedGoal]]) -> None:
        for command in commands:
            match command:
                case Start(kind=kind):
                    lasts_s = {OperationKind.RESET: RESET_S, OperationKind.DESTROY: DESTROY_S}.get(kind, CREATE_S)
                    self._push(lasts_s, command)
                case Give():
                    # Tasks differ a little in their length, so that they do not all end in the same moment.
                    self._push(self._task_s * (0.75 + self._number % 7 / 14), command)
                case Refuse(_, error):
                    raise error

    def _push(self, after_s: float, event: Start[SimulatedGoal] | Give[SimulatedGoal]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self._now_s + after_s, self._number, event))
