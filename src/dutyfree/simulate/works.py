"""What is done to simulated sandboxes: creations, promotions, resets, destructions; each holds its place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final

from dutyfree.pool.costs import Operation
from dutyfree.pool.state import Ladder, State
from dutyfree.pool.view import Kind, Work
from dutyfree.simulate.clock import Processor
from dutyfree.simulate.setting import Member, Setting

_FIRST_PAUSE_S: Final = 0.1
"""After a creation that failed, as in a real pool; it doubles with each that fails."""
_LONGEST_PAUSE_S: Final = 30.0

Parts = list[tuple[Operation, float]]
"""What a work consists of, and the seconds that each takes alone."""


class Works:
    """Carries works out, on the cores of one node."""

    def __init__(
        self,
        setting: Setting,
        numbers: Random,
        name: str,
        ready: Callable[[Member], None],
        failed: Callable[[Kind, Member], None],
        ended: Callable[[], None],
    ) -> None:
        self.processor = Processor(setting.clock, setting.contention)
        self.busy = 0
        """Creations, promotions and resets under way."""
        self._setting = setting
        self._clock = setting.clock
        self._numbers = numbers
        self._name = name
        self._ready = ready
        self._told_failed = failed
        self._ended = ended
        self._under_way: dict[int, Work] = {}
        self._number = 0
        self._pauses: dict[State, tuple[float, float]] = {}
        """After failures: until when no more is made, and how long the pause is."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def under_way(self) -> Collection[Work]:
        """In the order in which they were begun."""
        return self._under_way.values()

    def paused(self, state: State) -> bool:
        """Whether creations in this state have failed so lately that none is begun."""
        return bool(self._pauses) and self._pauses.get(state, (0.0, 0.0))[0] > self._clock.now_s

    def create(self, ladder: Ladder, state: State) -> None:
        """Make a sandbox."""
        latencies, images = self._setting.latencies, self._setting.pool.abilities.images
        made_in = state if images else state.cut(1)
        self._number += 1
        member = Member(f"{self._name}{self._number}", ladder, state, made_in, self._clock.now_s)
        parts = [(Operation.create(made_in), latencies.creation(ladder, made_in).draw(self._numbers))]
        parts += self._stages(ladder, made_in, state)
        fails = self._fails(latencies.failures.create) or self._fails_in_stages(state.depth - made_in.depth)
        self._begin(Kind.CREATE, state, parts, fails, member)

    def promote(self, member: Member, ladder: Ladder, state: State) -> None:
        """Add the stages to a member that lead to `state`."""
        parts = self._stages(ladder, member.state, state)
        member.ladder = ladder
        member.state = state
        self._begin(Kind.PROMOTE, state, parts, self._fails_in_stages(len(parts)), member)

    def reset(self, member: Member) -> None:
        """Take a member back to the state that it was made in."""
        latencies = self._setting.latencies
        member.state = member.made_in
        parts = [(Operation.reset(member.made_in), latencies.reset.draw(self._numbers))]
        self._begin(Kind.RESET, member.made_in, parts, self._fails(latencies.failures.reset), member)

    def destroy(self, member: Member) -> None:
        """End a member."""
        latencies = self._setting.latencies
        parts = [(Operation.destroy(), latencies.destroy.draw(self._numbers))]
        self._begin(Kind.DESTROY, member.state, parts, self._fails(latencies.failures.destroy), member)

    def _stages(self, ladder: Ladder, have: State, to: State) -> Parts:
        latencies = self._setting.latencies
        return [
            (Operation.stage(to.digests[depth]), latencies.stage(ladder, depth).draw(self._numbers))
            for depth in range(have.depth, to.depth)
        ]

    def _fails(self, probability: float) -> bool:
        return probability > 0 and self._numbers.random() < probability

    def _fails_in_stages(self, count: int) -> bool:
        probability = self._setting.latencies.failures.stage
        return probability > 0 and self._fails(1 - (1 - probability) ** count)

    def _begin(self, kind: Kind, state: State, parts: Parts, fails: bool, member: Member) -> None:
        """What fails does so at any point of it, and is destroyed then."""
        now_s = member.begun_s = self._clock.now_s
        self._number += 1
        self._under_way[self._number] = Work(kind, state, now_s, self._setting.latencies.size)
        self.busy += kind is not Kind.DESTROY
        work_s = sum([seconds for _, seconds in parts])
        if fails:
            work_s = work_s * self._numbers.random() + self._setting.latencies.destroy.draw(self._numbers)
        self.processor.start(work_s, self._end, self._number, kind, parts, work_s, fails, member)

    def _end(self, number: int, kind: Kind, parts: Parts, work_s: float, fails: bool, member: Member) -> None:
        del self._under_way[number]
        self.busy -= kind is not Kind.DESTROY
        if fails:
            if kind is Kind.CREATE:
                self._pause(member.state)
            self._told_failed(kind, member)
        else:
            # What others on the same cores have cost is a part of what is measured.
            slowness = (self._clock.now_s - member.begun_s) / work_s if work_s else 1.0
            for operation, seconds in parts:
                self._setting.costs.observe(operation, seconds * slowness)
            if kind is Kind.CREATE:
                self._pauses.pop(member.state, None)
            if kind is not Kind.DESTROY:
                self._ready(member)
        self._ended()

    def _pause(self, state: State) -> None:
        pause_s = min(2 * self._pauses.get(state, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
        self._pauses[state] = (self._clock.now_s + pause_s, pause_s)
        self._clock.after(pause_s, self._ended)  # a plan then: ticks may be far apart here
