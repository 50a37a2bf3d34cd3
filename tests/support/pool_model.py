"""A model of a pool, without sandboxes: it carries out plans, and fails on a command that no plan may contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dutyfree.pool.commands import Create, Demote, Destroy, PlannerCommand, Promote, Reset
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.demand import Announcement, Demand
from dutyfree.pool.planner import plan
from dutyfree.pool.planner_input import (
    Abilities,
    Idle,
    Limits,
    Operation,
    OperationKind,
    PlannerInput,
    Returned,
    Tuning,
)
from dutyfree.pool.size import Size
from dutyfree.pool.state import Ladder, State

MIB = 1024**2
IMAGES = Abilities(reset=True, images=True)
STAGES = Abilities(reset=True, images=False)


def ladder(*names: str) -> Ladder:
    """`ladder("b", "attrs", "deps")`: rungs called base, stage-1, stage-2; digests are the names given."""
    return Ladder(("base", *(f"stage-{number}" for number in range(1, len(names)))), State(names))


def measured(
    ladders: Sequence[Ladder],
    create_s: float = 1.0,
    stage_s: float = 4.0,
    reset_s: float = 0.1,
    size: Size = Size(10 * MIB, MIB),  # noqa: B008 - it is frozen
) -> Costs:
    """Costs of which everything is known."""
    costs = Costs()
    for each in ladders:
        for rung in each.rungs:
            costs.observe(Step.create(rung), create_s)
            costs.observe(Step.reset(rung), reset_s)
            costs.observe_size(rung, size)
        for digest in each.top.digests[1:]:
            costs.observe(Step.stage(digest), stage_s)
    costs.observe(Step.destroy(), 0.1)
    return costs


@dataclass
class PoolModel:
    """Time passes when `pass_time` says so; works end when `finish` says so."""

    ladders: Sequence[Ladder]
    limits: Limits = Limits(8)  # noqa: RUF009 - it is frozen
    abilities: Abilities = IMAGES
    costs: Costs | None = None
    tuning: Tuning = Tuning()  # noqa: RUF009 - it is frozen
    planner: Callable[[PlannerInput], tuple[PlannerCommand, ...]] = plan
    now_s: float = 0.0
    demand: Demand = field(default_factory=Demand)
    idle: dict[str, Idle] = field(default_factory=dict)
    returned: dict[str, Returned] = field(default_factory=dict)
    leased: dict[str, Idle] = field(default_factory=dict)
    operations: list[tuple[Operation, Idle]] = field(default_factory=list)
    """Each with the sandbox that there will be."""
    queue: list[State] = field(default_factory=list)
    clock: float = 0.0
    made: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.costs is None:
            self.costs = measured(self.ladders)

    def planner_input(self) -> PlannerInput:
        assert self.costs is not None
        return PlannerInput(
            self.now_s,
            self.limits,
            self.abilities,
            self.costs,
            self.demand,
            {each.top: each for each in self.ladders},
            tuple(self.idle.values()),
            tuple(self.returned.values()),
            tuple(work for work, _ in self.operations),
            len(self.leased),
            sum((each.size for each in self.leased.values()), Size()),
            dict(Counter(self.queue)),
            self.clock,
            self.tuning,
        )

    def states(self) -> Counter[State]:
        return Counter(each.state for each in self.idle.values())

    def ask(self, state: State) -> None:
        """A request arrives: it takes an idle sandbox in exactly this state, or waits."""
        self.demand.arrived(state, self.now_s)
        self.queue.append(state)
        self._serve()

    def announce(
        self, *states: State, count: int = 1, at_s: float = 0.0, until_s: float = 1e6, prefix: str = ""
    ) -> None:
        self.demand.announce(
            [Announcement(f"{prefix}{n}", state, count, at_s, until_s) for n, state in enumerate(states)], self.now_s
        )

    def give_back(self, sandbox: str) -> None:
        was = self.leased.pop(sandbox)
        self.returned[sandbox] = Returned(sandbox, was.made_in, was.size)

    def put_idle(self, state: State, made_in: State | None = None, count: int = 1) -> list[str]:
        """Add idle sandboxes, as a start."""
        made = [self._new(state, made_in or state) for _ in range(count)]
        self.idle.update({each.sandbox: each for each in made})
        return [each.sandbox for each in made]

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def plan(self) -> tuple[PlannerCommand, ...]:
        """Make a plan and begin it."""
        commands = self.planner(self.planner_input())
        assert commands == self.planner(self.planner_input()), "the same input gives the same plan"
        for command in commands:
            self._begin(command)
            self._check()
        return commands

    def finish(self, count: int | None = None) -> None:
        """End the `count` oldest operations, or all; requests that wait take the sandboxes that are idle then."""
        ending, self.operations = self.operations[:count], self.operations[len(self.operations[:count]) :]
        for work, idle in ending:
            if work.kind is not OperationKind.DESTROY:
                self.idle[idle.sandbox] = replace(idle, since_s=self.now_s, clock=self.clock)
        self._serve()

    def settle(self, rounds: int = 200) -> int:
        """Plan and end operations until there is nothing to do; returns the number of rounds."""
        for number in range(rounds):
            if not self.plan() and not self.operations:
                return number
            self.finish()
        raise AssertionError(f"still something to do after {rounds} rounds: {self.plan()}")

    def _begin(self, command: PlannerCommand) -> None:
        self.counts[type(command).__name__] += 1
        match command:
            case Create(state):
                assert any(state.begins(each.top) for each in self.ladders), "no request has this state"
                made_in = state if self.abilities.images else state.cut(1)
                idle = self._new(state, made_in)
                self.operations.append((Operation(OperationKind.CREATE, state, self.now_s, idle.size), idle))
            case Promote(sandbox, state):
                had = self.idle.pop(sandbox)
                assert had.state.begins(state), "something that was not asked for would be inherited"
                assert had.state != state
                size = self._size(state)
                self.operations.append(
                    (Operation(OperationKind.PROMOTE, state, self.now_s, size), replace(had, state=state, size=size))
                )
            case Demote(sandbox):
                had = self.idle.pop(sandbox)
                assert self.abilities.reset
                assert had.state != had.made_in
                self._reset(had)
            case Reset(sandbox):
                back = self.returned.pop(sandbox)
                assert self.abilities.reset
                self._reset(Idle(sandbox, back.made_in, back.made_in, self.now_s, back.size))
            case Destroy(sandbox, reason):
                held = self.idle.pop(sandbox, None) or self.returned.pop(sandbox)
                state = held.state if isinstance(held, Idle) else held.made_in
                idle = Idle(sandbox, state, state, self.now_s, held.size)
                self.operations.append((Operation(OperationKind.DESTROY, state, self.now_s, held.size), idle))
                self.counts[reason] += 1
                self.clock = max(self.clock, command.clock)

    def _reset(self, had: Idle) -> None:
        clean = replace(had, state=had.made_in, size=self._size(had.made_in))
        self.operations.append((Operation(OperationKind.RESET, had.made_in, self.now_s, had.size), clean))

    def _check(self) -> None:
        held = [
            *(each.size for each in self.idle.values()),
            *(each.size for each in self.returned.values()),
            *(each.size for each in self.leased.values()),
            *(work.size for work, _ in self.operations),
        ]
        assert len(held) <= self.limits.sandboxes
        total = sum(held, Size())
        assert self.limits.memory_bytes is None or total.memory_bytes <= self.limits.memory_bytes
        assert self.limits.disk_bytes is None or total.disk_bytes <= self.limits.disk_bytes
        assert sum(work.kind is not OperationKind.DESTROY for work, _ in self.operations) <= self.limits.at_once

    def _serve(self) -> None:
        for state in tuple(self.queue):
            for sandbox in [each.sandbox for each in self.idle.values() if each.state == state][:1]:
                self.leased[sandbox] = self.idle.pop(sandbox)
                self.queue.remove(state)

    def _new(self, state: State, made_in: State) -> Idle:
        self.made += 1
        return Idle(f"box-{self.made:03}", state, made_in, self.now_s, self._size(state), self.clock)

    def _size(self, state: State) -> Size:
        assert self.costs is not None
        return self.limits.clamp(self.costs.size(state))
