"""The planner: the state of a pool goes in, commands come out. Pure, and the same for a real and a simulated pool.

A plan is made in four steps:

1. `slots` lists the sandboxes that the pool should have, the most valuable first.
2. The planner assigns existing sandboxes, and those that operations in progress will give, to slots in this order, as
   far as the limits allow.
3. For each slot that stays empty it begins the cheapest operation that fills it: a reset, a promotion or a creation.
4. A sandbox that fills no slot is kept while a request for it is likely. It is the first to be evicted if an operation
   of step 3 finds no room.

The planner keeps no state between two plans. So each plan corrects what has changed since the last one, and a test can
check a plan by its input alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
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


def plan(planner_input: PlannerInput) -> tuple[PlannerCommand, ...]:
    """The operations to begin now, the most urgent first. An empty plan means that there is nothing to do."""
    return _Planning(planner_input).commands()


def plan_until(planner_input: PlannerInput) -> tuple[tuple[PlannerCommand, ...], float]:
    """As `plan`, and when the next plan must come at the latest for announced demand; infinite if there is none."""
    planning = _Planning(planner_input)
    return planning.commands(), planning.next_announced_s


def unready(planner_input: PlannerInput) -> Mapping[str, int]:
    """The announced sandboxes that are not idle yet, by the group of their announcement, if they have one.

    Only those count that fit into the limits beside leased sandboxes, waiting requests and earlier announcements, by
    the same rules as in a plan. Whether their time has come does not matter.
    """
    planning = _Planning(planner_input, all_due=True)
    planning.assign()
    return {group: count for group, count in planning.unready.items() if group and count}


def plan_cold(planner_input: PlannerInput) -> tuple[PlannerCommand, ...]:
    """The plan of a pool that keeps no sandboxes: one creation for each request, and the end of all other sandboxes."""
    # Idle sandboxes count as returned ones that cannot be reset: the planner then destroys them.
    unused = tuple(Returned(each.sandbox, each.made_in, each.size) for each in planner_input.idle)
    returned = (*planner_input.returned, *unused)
    no_reset = replace(planner_input.abilities, reset=False)
    return plan(replace(planner_input, demand=Demand(), abilities=no_reset, idle=(), returned=returned))


class _Room:
    """The places, memory and disk that are left."""

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
    """The work on one plan: the sandboxes that are not assigned yet, and the commands so far."""

    def __init__(self, planner_input: PlannerInput, *, all_due: bool = False) -> None:
        self._input = planner_input
        self._commands: list[PlannerCommand] = []
        self._operations_left = planner_input.limits.at_once - sum(
            [operation.kind is not OperationKind.DESTROY for operation in planner_input.operations]
        )
        self._idle: dict[State, list[Idle]] = {}
        """Idle sandboxes that are not assigned, by state, longest idle first. Slots take the ones at the end, so that
        sandboxes that a state no longer needs get old and expire."""
        for idle in sorted(planner_input.idle, key=_SINCE):
            self._idle.setdefault(idle.state, []).append(idle)
        self._returned: dict[State, list[Returned]] = {}
        """Returned sandboxes that are not assigned, by the state to which a reset takes them."""
        for returned in planner_input.returned:
            self._returned.setdefault(returned.made_in, []).append(returned)
        self._coming, late = _coming_and_late(planner_input)
        """The sizes of the sandboxes that operations in progress will give, by state."""
        self._filled: defaultdict[State, list[tuple[Slot, Idle]]] = defaultdict(list)
        """Idle sandboxes that are assigned to slots, by state; those in the least valuable slots come last."""
        self._blocked: list[tuple[Size, int]] = []
        """Size and places of each operation that found no room. `_evict` makes room for them."""
        self._evicted: set[str] = set()
        self.unready: Counter[str] = Counter()
        """The slots without an idle sandbox after `assign`, by the group of their announcement."""
        # There are two budgets. Slots may use everything that idle sandboxes hold now, because these can be destroyed.
        # A new operation may use only what is free at this moment, because a destruction takes time.
        self._allowed = _Room(planner_input.limits)
        """The room for slots: all except leased sandboxes and late operations."""
        self._allowed.take(planner_input.leased_size, planner_input.leased)
        for size in late:
            self._allowed.take(size)
        self._free = _Room(planner_input.limits)
        """The room for new operations: all that no sandbox and no operation holds now."""
        self._free.take(planner_input.leased_size, planner_input.leased)
        for size in _held(planner_input):
            self._free.take(size)
        existing = {state: len(idle_here) for state, idle_here in self._idle.items()}
        for state, sizes in self._coming.items():
            existing[state] = existing.get(state, 0) + len(sizes)
        self._slots = Slots(planner_input, existing, all_due=all_due)

    @property
    def next_announced_s(self) -> float:
        """When the next announced sandboxes have to be begun."""
        return self._slots.next_announced_s

    def commands(self) -> tuple[PlannerCommand, ...]:
        """All commands of the plan."""
        self._fill(self.assign())
        self._end_old()
        self._evict()
        self._keep_returned()
        return tuple(self._commands)

    # Step 2: existing sandboxes are assigned to slots.

    def assign(self) -> list[Slot | Returned]:
        """Assign sandboxes to slots, as far as the limits allow, and return the work that is left, in order.

        The work is an empty slot for each missing sandbox, and each returned sandbox that fills a slot after a reset.
        """
        to_do: list[Slot | Returned] = []
        for group in self._slots.groups:
            if self._allowed.places < 1:
                break
            rest = [(slot, left) for slot in group if (left := self._match(slot, to_do)) and slot.make]
            if not rest:
                continue
            waiting = group[0].tier is Tier.WAITING
            # Waiting requests for different states share the free places evenly. The others are filled one by one.
            for slot in _round_robin(rest) if waiting else _one_by_one(rest):
                size = self._slots.size(slot.state)
                if self._allowed.fits(size):
                    self._allowed.take(size)
                    to_do.append(slot)
                    self.unready[slot.announced_as] += 1
                elif waiting and group is self._slots.groups[0]:
                    # The next request has to wait until leases end. All other slots stay empty: they would take the
                    # room that these leases free.
                    return to_do
                elif self._allowed.places < 1:
                    break
        return to_do

    def _match(self, slot: Slot, to_do: list[Slot | Returned]) -> int:
        """Assign sandboxes in exactly the slot's state to it; returns how many are missing."""
        state, left = slot.state, slot.places
        idle, coming = self._idle.get(state), self._coming.get(state)
        while left and idle and self._allowed.fits(idle[-1].size):
            self._allowed.take(idle[-1].size)
            self._filled[state].append((slot, idle.pop()))
            left -= 1
        not_idle = left
        while left and coming and self._allowed.fits(coming[-1]):
            self._allowed.take(coming.pop())
            left -= 1
        if left and self._reset_pays(state, self._slots.rebuild_s(state)):
            returned = self._returned[state]
            while left and returned and self._allowed.fits(returned[0].size):
                self._allowed.take(returned[0].size)
                to_do.append(returned.pop(0))
                left -= 1
        self.unready[slot.announced_as] += not_idle - left
        return left

    # Step 3: operations that fill the empty slots begin.

    def _fill(self, to_do: list[Slot | Returned]) -> None:
        """Begin the cheapest operation for each empty slot. `_fill_one` adds slots that have lost a sandbox at the end
        of `to_do`, so that this loop fills them, too."""
        for each in to_do:
            if self._operations_left <= 0:
                return
            if isinstance(each, Returned):
                self._begin(Reset(each.sandbox), NO_SIZE, places=0)
            else:
                self._fill_one(each, to_do)

    def _fill_one(self, slot: Slot, to_do: list[Slot | Returned]) -> None:
        """Look for a sandbox on a lower rung, the nearest first, while adding its missing stages beats a creation."""
        costs, state = self._input.costs, slot.state
        create_s, missing_s = self._slots.rebuild_s(state), 0.0
        for depth in range(state.depth - 1, 0, -1):
            missing_s += costs.stage_s(state.digests[depth])
            if missing_s >= create_s:
                break
            prefix = state.cut(depth)
            if idle := self._idle.get(prefix):
                return self._promote(idle.pop(0), state)
            if self._may_take_from_slot(slot, prefix):
                loser, taken = self._filled[prefix].pop()
                to_do.append(loser._replace(places=1))
                return self._promote(taken, state)
            # A sandbox that is not ready yet can be promoted only later. If requests for `prefix` itself are known,
            # one of these may take it first, so a waiting request does not rely on it.
            if slot.tier is Tier.WAITING and prefix in self._input.ladders:
                continue
            if coming := self._coming.get(prefix):
                coming.pop()  # a later plan promotes it, when it is ready
                return None
            if self._reset_pays(prefix, create_s - missing_s):
                return self._begin(Reset(self._returned[prefix].pop(0).sandbox), NO_SIZE, places=0)
        return self._begin(Create(state), self._slots.size(state))

    def _may_take_from_slot(self, slot: Slot, prefix: State) -> bool:
        """Whether a slot may take the sandbox of a less urgent slot, for which the planner then makes a new one.

        With images, a creation takes about the same time on every rung. So it saves no work in total, but it shortens
        the wait of a request that waits already. Without images it saves work: the replacement is created on the lower
        rung, with fewer stages.
        """
        filled = self._filled.get(prefix)
        if not filled or filled[-1][0].tier <= slot.tier:
            return False
        return slot.tier is Tier.WAITING or not self._input.abilities.images

    def _promote(self, idle: Idle, state: State) -> None:
        has, size = idle.size, self._slots.size(state)
        growth = Size(max(0, size.memory_bytes - has.memory_bytes), max(0, size.disk_bytes - has.disk_bytes))
        self._begin(Promote(idle.sandbox, state), growth, places=0)

    def _begin(self, command: PlannerCommand, size: Size, places: int = 1) -> None:
        """Begin an operation if there is room for it.

        Once one operation has found no room, none after it may take room. Otherwise small operations of little worth
        would keep a large, urgent one waiting for ever.
        """
        self._operations_left -= 1
        if not places and size == NO_SIZE:
            self._commands.append(command)
        elif not self._blocked and self._free.fits(size, places):
            self._free.take(size, places)
            self._commands.append(command)
        else:
            self._blocked.append((size, places))

    # Step 4: sandboxes that fill no slot are kept, demoted, evicted or destroyed.

    def _end_old(self) -> None:
        """Destroy returned sandboxes that cannot be reset, and end idle ones that have expired."""
        if not self._input.abilities.reset:
            for returned in self._input.returned:
                self._end(Destroy(returned.sandbox, "unusable"), returned.size)
            self._returned.clear()
        for state, idle_here in self._idle.items():
            # `ttl_s` is never shorter than `keep_at_least_s`. This check saves computing it in most plans.
            if not idle_here or self._input.now_s - idle_here[0].since_s <= self._input.tuning.keep_at_least_s:
                continue
            oldest_s = self._input.now_s - self._slots.ttl_s(state)
            while idle_here and idle_here[0].since_s < oldest_s:
                self._end_expired(idle_here.pop(0))

    def _end_expired(self, idle: Idle) -> None:
        """Demote an expired sandbox if requests for the state that it was made in are likely; otherwise destroy it."""
        useful = idle.made_in != idle.state and idle.made_in in self._slots.useful
        if useful and self._input.abilities.reset and self._operations_left > 0 and not self._blocked:
            self._begin(Demote(idle.sandbox), NO_SIZE, places=0)
        else:
            self._end(Destroy(idle.sandbox, "expired"), idle.size)

    def _evict(self) -> None:
        """Destroy sandboxes that fill no slot until the blocked operations have room; a later plan begins these.

        If even all candidates would not make enough room for an operation, none of them is destroyed for it: that
        would lose sandboxes and gain nothing.
        """
        if not self._blocked:
            return
        for operation in self._input.operations:
            if operation.kind is OperationKind.DESTROY:
                self._free.give(operation.size)
        candidates = eviction.in_order(self._candidates())
        for size, places in self._blocked:
            chosen: list[eviction.Evictable] = []
            while not self._free.fits(size, places):
                if not candidates:
                    return
                chosen.append(candidates.pop(0))
                self._free.give(chosen[-1].size)
            self._free.take(size, places)
            for each in chosen:
                self._evicted.add(each.sandbox)
                self._commands.append(Destroy(each.sandbox, "evicted", each.priority))

    def _candidates(self) -> Iterator[eviction.Evictable]:
        for state, idle in self._idle.items():
            worth = self._worth(state)
            for each in idle:
                yield eviction.Evictable(each.sandbox, each.clock + worth, each.size)
        for state, returned in self._returned.items():
            worth = self._input.clock + self._worth(state)
            for one in returned:
                yield eviction.Evictable(one.sandbox, worth, one.size)

    def _worth(self, state: State) -> float:
        """The eviction priority of a sandbox in a state, without the clock."""
        given, rebuild_s = self._input, self._slots.rebuild_s(state)
        past = given.demand.past(state, rebuild_s)
        frequency = 0 if past is None else past.arrivals
        return eviction.priority(0.0, frequency, rebuild_s, eviction.share(given.costs.size(state), given.limits))

    def _keep_returned(self) -> None:
        """Reset the returned sandboxes that fill no slot if requests for their state are likely, else destroy them."""
        for state, returned in self._returned.items():
            useful = state in self._slots.useful and self._reset_pays(state, self._slots.rebuild_s(state))
            for one in returned:
                if one.sandbox in self._evicted:
                    continue
                if not useful:
                    self._commands.append(Destroy(one.sandbox, "surplus"))
                elif self._operations_left > 0:
                    self._begin(Reset(one.sandbox), NO_SIZE, places=0)

    def _end(self, command: Destroy, size: Size) -> None:
        self._commands.append(command)
        self._free.give(size)

    def _reset_pays(self, made_in: State, create_s: float) -> bool:
        """Whether there is a returned sandbox to reset, and its reset takes less time than to replace it."""
        if not self._input.abilities.reset or not self._returned.get(made_in):
            return False
        return self._input.costs.reset_s(made_in) < create_s + self._input.costs.destroy_s()


def _one_by_one(slots: list[tuple[Slot, int]]) -> Iterator[Slot]:
    """All places of the first slot, then all places of the second, and so on."""
    for slot, count in slots:
        yield from repeat(slot, count)


def _round_robin(slots: list[tuple[Slot, int]]) -> Iterator[Slot]:
    """One place of each slot, then a second place of each slot, and so on."""
    for number in range(max([count for _, count in slots], default=0)):
        yield from (slot for slot, count in slots if count > number)


def _held(planner_input: PlannerInput) -> Iterator[Size]:
    """The sizes of everything in the pool except leased sandboxes."""
    for idle in planner_input.idle:
        yield idle.size
    for returned in planner_input.returned:
        yield returned.size
    for operation in planner_input.operations:
        yield operation.size


def _coming_and_late(planner_input: PlannerInput) -> tuple[dict[State, list[Size]], list[Size]]:
    """The sizes of the sandboxes that operations in progress will give, by state; and the sizes of late ones.

    An operation is late once it takes longer than the p95 of its kind. The planner does not count on it any more and
    begins another one in its place. If that one is late as well, the two together count as one coming sandbox:
    otherwise the planner would begin a third operation, and a fourth, on a substrate that is only slow.
    """
    coming: dict[State, list[Size]] = {}
    late: dict[tuple[OperationKind, State], list[Operation]] = {}
    for operation in planner_input.operations:
        if operation.kind is OperationKind.DESTROY:
            continue
        if planner_input.now_s - operation.since_s > _late_s(operation, planner_input):
            late.setdefault((operation.kind, operation.state), []).append(operation)
        else:
            coming.setdefault(operation.state, []).append(operation.size)
    late_sizes: list[Size] = []
    for same_kind in late.values():
        same_kind.sort(key=lambda operation: operation.since_s)
        unpaired: list[Operation] = []
        for operation in same_kind:
            # An operation replaces an earlier one if it began after that one was late. Half of the p95 is enough here,
            # because the p95 moves with every operation that ends.
            if unpaired and operation.since_s - unpaired[0].since_s > _late_s(operation, planner_input) / 2:
                late_sizes.append(unpaired.pop(0).size)
                coming.setdefault(operation.state, []).append(operation.size)
            else:
                unpaired.append(operation)
        late_sizes += [operation.size for operation in unpaired]
    return coming, late_sizes


def _late_s(operation: Operation, planner_input: PlannerInput) -> float:
    costs = planner_input.costs
    if operation.kind is OperationKind.RESET:
        return costs.estimate(Step.reset(operation.state)).p95_s
    from_image = planner_input.abilities.images and operation.kind is OperationKind.CREATE
    return costs.late_s(operation.state, images=from_image)
