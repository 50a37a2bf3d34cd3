"""What to do next: a view of a pool in, commands out. Pure, and the same for a real pool and a simulated one.

`slots` says what would be good to have. Here existing sandboxes, and those under way, are given to slots in the order
of worth, as many as the limits allow; for each slot that is left empty the cheapest way to fill it is begun; and what
fills no slot is kept while it can be expected to be of use, and makes room first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from math import inf
from operator import attrgetter

from dutyfree.pool import eviction
from dutyfree.pool.commands import Create, Demote, Destroy, PlannerCommand, Promote, Reset
from dutyfree.pool.costs import Step
from dutyfree.pool.demand import Demand
from dutyfree.pool.planner_input import Idle, Limits, Operation, OperationKind, PlannerInput, Returned
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.slots import Slot, Slots, Tier
from dutyfree.pool.state import State

_SINCE = attrgetter("since_s")


def plan(view: PlannerInput) -> tuple[PlannerCommand, ...]:
    """What is to be begun now, the most urgent first. An empty plan means that all is well until something happens."""
    return _Planning(view).commands()


def plan_until(view: PlannerInput) -> tuple[tuple[PlannerCommand, ...], float]:
    """As `plan`, and when the next plan must come at the latest for announced demand; infinite if none is announced."""
    planning = _Planning(view)
    return planning.commands(), planning.next_announced_s


def plan_cold(view: PlannerInput) -> tuple[PlannerCommand, ...]:
    """The plan of a pool that keeps nothing: one new sandbox for each request, and an end to all that come back."""
    back = tuple(Returned(each.sandbox, each.made_in, each.size) for each in view.idle)
    unable = replace(view.abilities, reset=False)
    return plan(replace(view, demand=Demand(), abilities=unable, idle=(), returned=(*view.returned, *back)))


class _Room:
    """Places, memory and disk that are left."""

    __slots__ = ("disk_bytes", "memory_bytes", "places")

    def __init__(self, limits: Limits) -> None:
        self.places: float = limits.sandboxes
        self.memory_bytes: float = inf if limits.memory_bytes is None else limits.memory_bytes
        self.disk_bytes: float = inf if limits.disk_bytes is None else limits.disk_bytes

    def fits(self, size: Size, places: int = 1) -> bool:
        return self.places >= places and self.memory_bytes >= size.memory_bytes and self.disk_bytes >= size.disk_bytes

    def take(self, size: Size, places: int = 1) -> None:
        self.places -= places
        self.memory_bytes -= size.memory_bytes
        self.disk_bytes -= size.disk_bytes

    def give(self, size: Size) -> None:
        self.places += 1
        self.memory_bytes += size.memory_bytes
        self.disk_bytes += size.disk_bytes


class _Planning:
    """One plan in the making: what is not spoken for yet, and what was decided."""

    def __init__(self, view: PlannerInput) -> None:
        self._view = view
        self._commands: list[PlannerCommand] = []
        self._operations_left = view.limits.at_once - sum(
            [operation.kind is not OperationKind.DESTROY for operation in view.operations]
        )
        self._idle: dict[State, list[Idle]] = {}
        """Of each state, longest idle first. The ones that were idle for the least time fill slots."""
        for idle in sorted(view.idle, key=_SINCE):
            self._idle.setdefault(idle.state, []).append(idle)
        self._back: dict[State, list[Returned]] = {}
        for back in view.returned:
            self._back.setdefault(back.made_in, []).append(back)
        self._coming, lost = _counted_on(view)
        self._filled: defaultdict[State, list[tuple[Slot, Idle]]] = defaultdict(list)
        """Idle sandboxes that fill slots; of each state, those of the least worth last."""
        self._blocked: list[tuple[Size, int]] = []
        """What wants to be created, or to grow, and finds no room: sizes and places."""
        self._gone: set[str] = set()
        self._allowed = _Room(view.limits)
        """For slots: all that is not leased, or held by operations that are not counted on."""
        self._allowed.take(view.leased_size, view.leased)
        for size in lost:
            self._allowed.take(size)
        self._room = _Room(view.limits)
        """For new sandboxes, at this moment."""
        self._room.take(view.leased_size, view.leased)
        for size in _held(view):
            self._room.take(size)
        existing = {state: len(there) for state, there in self._idle.items()}
        for state, sizes in self._coming.items():
            existing[state] = existing.get(state, 0) + len(sizes)
        self._slots = Slots(view, existing)

    @property
    def next_announced_s(self) -> float:
        """When the next announced sandboxes have to be begun."""
        return self._slots.next_announced_s

    def commands(self) -> tuple[PlannerCommand, ...]:
        """The whole plan."""
        self._fill(self._assign())
        self._end_old()
        self._evict()
        self._keep_returned()
        return tuple(self._commands)

    # What is there is given to slots.

    def _assign(self) -> list[Slot | Returned]:
        """Give slots what is there or under way, as far as the limits allow. What is to be done for the others comes
        out in their order: slots that are empty, and sandboxes that fill one as soon as they are reset."""
        to_do: list[Slot | Returned] = []
        for group in self._slots.groups:
            if self._allowed.places < 1:
                break
            rest = [(slot, left) for slot in group if (left := self._match(slot, to_do)) and slot.make]
            if not rest:
                continue
            waiting = group[0].tier is Tier.WAITING
            for slot in _in_turn(rest) if waiting else _in_order(rest):
                size = self._slots.size(slot.state)
                if self._allowed.fits(size):
                    self._allowed.take(size)
                    to_do.append(slot)
                elif waiting and group is self._slots.groups[0]:
                    return to_do  # whoever is next waits for leases to end, and nobody takes what they give back
                elif self._allowed.places < 1:
                    break
        return to_do

    def _match(self, slot: Slot, to_do: list[Slot | Returned]) -> int:
        """Give a slot what is in just its state; how many are missing."""
        state, left = slot.state, slot.places
        idle, coming = self._idle.get(state), self._coming.get(state)
        while left and idle and self._allowed.fits(idle[-1].size):
            self._allowed.take(idle[-1].size)
            self._filled[state].append((slot, idle.pop()))
            left -= 1
        while left and coming and self._allowed.fits(coming[-1]):
            self._allowed.take(coming.pop())
            left -= 1
        if left and self._reset_pays(state, self._slots.rebuild_s(state)):
            back = self._back[state]
            while left and back and self._allowed.fits(back[0].size):
                self._allowed.take(back[0].size)
                to_do.append(back.pop(0))
                left -= 1
        return left

    # What is missing is begun.

    def _fill(self, to_do: list[Slot | Returned]) -> None:
        """Begin the cheapest way to fill each slot. Robbed ones come to the end of the list, and get their turn."""
        for each in to_do:
            if self._operations_left <= 0:
                return
            if isinstance(each, Returned):
                self._begin(Reset(each.sandbox), NO_SIZE, places=0)
            else:
                self._fill_one(each, to_do)

    def _fill_one(self, slot: Slot, to_do: list[Slot | Returned]) -> None:
        costs, state = self._view.costs, slot.state
        create_s, missing_s = self._slots.rebuild_s(state), 0.0
        for depth in range(state.depth - 1, 0, -1):
            missing_s += costs.stage_s(state.digests[depth])
            if missing_s >= create_s:
                break
            prefix = state.cut(depth)
            if idle := self._idle.get(prefix):
                return self._promote(idle.pop(0), state)
            if self._may_rob(slot, prefix):
                loser, robbed = self._filled[prefix].pop()
                to_do.append(loser._replace(places=1))
                return self._promote(robbed, state)
            if slot.tier is Tier.WAITING and prefix in self._view.ladders:
                continue  # whoever wants just that would take it before it can go on
            if coming := self._coming.get(prefix):
                coming.pop()  # it is promoted when it is there
                return None
            if self._reset_pays(prefix, create_s - missing_s):
                return self._begin(Reset(self._back[prefix].pop(0).sandbox), NO_SIZE, places=0)
        return self._begin(Create(state), self._slots.size(state))

    def _may_rob(self, slot: Slot, prefix: State) -> bool:
        """Whether a slot may take the sandbox of one of less worth, for which a new one is made then.

        Where creations take as long on every rung, that pays for somebody who waits already; elsewhere two share the
        work that the creation for one of them takes.
        """
        filled = self._filled.get(prefix)
        if not filled or filled[-1][0].tier <= slot.tier:
            return False
        return slot.tier is Tier.WAITING or not self._view.abilities.images

    def _promote(self, idle: Idle, state: State) -> None:
        has, size = idle.size, self._slots.size(state)
        growth = Size(max(0, size.memory_bytes - has.memory_bytes), max(0, size.disk_bytes - has.disk_bytes))
        self._begin(Promote(idle.sandbox, state), growth, places=0)

    def _begin(self, command: PlannerCommand, size: Size, places: int = 1) -> None:
        """Once one thing has found no room, nothing after it may take what it waits for."""
        self._operations_left -= 1
        if not places and size == NO_SIZE:
            self._commands.append(command)
        elif not self._blocked and self._room.fits(size, places):
            self._room.take(size, places)
            self._commands.append(command)
        else:
            self._blocked.append((size, places))

    # What fills no slot makes room, is kept, or ends.

    def _end_old(self) -> None:
        if not self._view.abilities.reset:
            for back in self._view.returned:
                self._end(Destroy(back.sandbox, "unusable"), back.size)
            self._back.clear()
        for state, there in self._idle.items():
            if not there or self._view.now_s - there[0].since_s <= self._view.tuning.keep_at_least_s:
                continue
            oldest_s = self._view.now_s - self._slots.ttl_s(state)
            while there and there[0].since_s < oldest_s:
                self._outlived(there.pop(0))

    def _outlived(self, idle: Idle) -> None:
        """Demoted, if that makes it what somebody can be expected to want; ended otherwise."""
        useful = idle.made_in != idle.state and idle.made_in in self._slots.useful
        if useful and self._view.abilities.reset and self._operations_left > 0 and not self._blocked:
            self._begin(Demote(idle.sandbox), NO_SIZE, places=0)
        else:
            self._end(Destroy(idle.sandbox, "expired"), idle.size)

    def _evict(self) -> None:
        """Make room for what found none, but never for a part of it: what goes for nothing is missed."""
        if not self._blocked:
            return
        for operation in self._view.operations:
            if operation.kind is OperationKind.DESTROY:
                self._room.give(operation.size)
        candidates = eviction.in_order(self._candidates())
        for size, places in self._blocked:
            chosen: list[eviction.Evictable] = []
            while not self._room.fits(size, places):
                if not candidates:
                    return
                chosen.append(candidates.pop(0))
                self._room.give(chosen[-1].size)
            self._room.take(size, places)
            for each in chosen:
                self._gone.add(each.sandbox)
                self._commands.append(Destroy(each.sandbox, "evicted", each.priority))

    def _candidates(self) -> Iterator[eviction.Evictable]:
        for state, idle in self._idle.items():
            worth = self._worth(state)
            for each in idle:
                yield eviction.Evictable(each.sandbox, each.clock + worth, each.size)
        for state, back in self._back.items():
            worth = self._view.clock + self._worth(state)
            for given in back:
                yield eviction.Evictable(given.sandbox, worth, given.size)

    def _worth(self, state: State) -> float:
        view, rebuild_s = self._view, self._slots.rebuild_s(state)
        past = view.demand.past(state, rebuild_s)
        frequency = 0 if past is None else past.arrivals
        return eviction.priority(0.0, frequency, rebuild_s, eviction.share(view.costs.size(state), view.limits))

    def _keep_returned(self) -> None:
        """Those that nobody needs just now are reset if they are of use to somebody, and ended otherwise."""
        for state, there in self._back.items():
            useful = state in self._slots.useful and self._reset_pays(state, self._slots.rebuild_s(state))
            for back in there:
                if back.sandbox in self._gone:
                    continue
                if not useful:
                    self._commands.append(Destroy(back.sandbox, "surplus"))
                elif self._operations_left > 0:
                    self._begin(Reset(back.sandbox), NO_SIZE, places=0)

    def _end(self, command: Destroy, size: Size) -> None:
        self._commands.append(command)
        self._room.give(size)

    def _reset_pays(self, made_in: State, create_s: float) -> bool:
        """Whether there is something to reset, and ending it and creating another would take longer."""
        if not self._view.abilities.reset or not self._back.get(made_in):
            return False
        return self._view.costs.reset_s(made_in) < create_s + self._view.costs.destroy_s()


def _in_order(slots: list[tuple[Slot, int]]) -> Iterator[Slot]:
    """All of the first, then all of the second ..."""
    for slot, count in slots:
        yield from repeat(slot, count)


def _in_turn(slots: list[tuple[Slot, int]]) -> Iterator[Slot]:
    """One of the first, one of the second ..., then again."""
    for number in range(max([count for _, count in slots], default=0)):
        yield from (slot for slot, count in slots if count > number)


def _held(view: PlannerInput) -> Iterator[Size]:
    """What everything but leased sandboxes takes."""
    for idle in view.idle:
        yield idle.size
    for back in view.returned:
        yield back.size
    for operation in view.operations:
        yield operation.size


def _counted_on(view: PlannerInput) -> tuple[dict[State, list[Size]], list[Size]]:
    """What operations in progress will give, by state; and what those hold that should have ended by now.

    One that takes longer than nineteen in twenty of its kind is not counted on any more, so that another is begun in
    its place; if that one is late, too, the two count for one, so that nothing is begun a third time.
    """
    coming: dict[State, list[Size]] = {}
    late: dict[tuple[OperationKind, State], list[Operation]] = {}
    for operation in view.operations:
        if operation.kind is OperationKind.DESTROY:
            continue
        if view.now_s - operation.since_s > _late_s(operation, view):
            late.setdefault((operation.kind, operation.state), []).append(operation)
        else:
            coming.setdefault(operation.state, []).append(operation.size)
    lost: list[Size] = []
    for slow in late.values():
        slow.sort(key=lambda operation: operation.since_s)
        alone: list[Operation] = []
        for operation in slow:
            # Half of it, for what is late for its kind changes with every one that ends.
            if alone and operation.since_s - alone[0].since_s > _late_s(operation, view) / 2:
                lost.append(alone.pop(0).size)
                coming.setdefault(operation.state, []).append(operation.size)
            else:
                alone.append(operation)
        lost += [operation.size for operation in alone]
    return coming, lost


def _late_s(operation: Operation, view: PlannerInput) -> float:
    if operation.kind is OperationKind.RESET:
        return view.costs.estimate(Step.reset(operation.state)).p95_s
    return view.costs.late_s(operation.state, images=view.abilities.images and operation.kind is OperationKind.CREATE)
