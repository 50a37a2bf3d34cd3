"""Which sandboxes a pool should have: slots for sandboxes in states, in the order of their worth. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from dutyfree.pool import eviction, keepalive
from dutyfree.pool.arrivals import Past
from dutyfree.pool.demand import Announced
from dutyfree.pool.planner_input import PlannerInput
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.spreading import Entry, spread
from dutyfree.pool.state import State, rungs_of

_WORTH: Final = attrgetter("worth")
_GROUP: Final = attrgetter("group")
MARGIN: Final = 2.0
"""The planner assumes that a creation takes this many times its mean when many run at the same time."""


class Tier(IntEnum):
    """Why a slot exists. A smaller number is more urgent: a waiting request is certain, a predicted one is not."""

    WAITING = 0
    """A request for the state waits."""
    ANNOUNCED = 1
    """A caller has announced requests for the state."""
    EXPECTED = 2
    """Past arrivals make a request for the state likely."""
    SHARED = 3
    """Past arrivals make a request likely for one of several states that begin with this one."""


class Slot(NamedTuple):
    """A number of sandboxes that the pool should have in one state."""

    state: State
    places: int
    """The number of sandboxes."""
    tier: Tier
    worth: float = 0.0
    """For each sandbox: the seconds of waiting that it saves each second, for each part of the pool that it takes."""
    make: bool = True
    """Whether missing sandboxes are created now. If False, the planner only keeps the ones that exist."""
    announced_as: str = ""
    """The group of the announcement to which it belongs."""


class Slots:
    """All slots of a plan, in order; and the `useful` states, which are worth keeping beyond the number of slots.

    `existing` has the number of idle or coming sandboxes in each state. Slots that these fill are worth
    `Tuning.hysteresis` times as much. Otherwise two states of almost the same worth would replace each other again and
    again, and each replacement costs a creation.

    With `all_due`, announced sandboxes have slots that are made now, even if their time is far away.
    """

    def __init__(self, planner_input: PlannerInput, existing: Mapping[State, int], *, all_due: bool = False) -> None:
        self._input = planner_input
        self._existing = existing
        self._all_due = all_due
        self._rebuilds: dict[State, float] = {}
        self._sizes: dict[State, Size] = {}
        self.next_announced_s = inf
        """When the next announced sandboxes have to be begun: a plan that comes later would miss that moment."""
        self.useful: set[State] = set()
        """States in which a sandbox would save time for a likely request."""
        self.groups = [*self._waiting(), *self._announced()]
        """Groups of slots. Groups of waiting and announced requests come first, in the order in which the requests
        are served; then the predicted ones by worth. Within a group, slots that an existing sandbox can fill, perhaps
        after a reset, come before slots that need a creation."""
        requested = [slot for group in self.groups for slot in group]
        not_leased = planner_input.limits.sandboxes - planner_input.leased
        # Predictions get only the places that waiting and announced requests leave free.
        if sum([slot.places for slot in requested if slot.make]) < not_leased:
            predicted = self._expected()
            predicted += self._shared([*requested, *predicted])
            predicted.sort(key=_WORTH, reverse=True)
            self.groups += [[slot] for slot in predicted]

    def rebuild_s(self, state: State) -> float:
        """The expected time of a creation in a state."""
        known = self._rebuilds.get(state)
        if known is None:
            known = self._rebuilds[state] = self._input.costs.rebuild_s(state, images=self._input.abilities.images)
        return known

    def size(self, state: State) -> Size:
        """The expected size of a sandbox in a state, cut to the limits: into an empty pool it always fits."""
        known = self._sizes.get(state)
        if known is None:
            known = self._sizes[state] = self._input.limits.clamp(self._input.costs.size(state))
        return known

    def ttl_s(self, state: State) -> float:
        """How long a sandbox that fills no slot is kept in a state."""
        rebuild_s = self.rebuild_s(state)
        past = self._input.demand.past(state, rebuild_s)
        return keepalive.ttl_s(past, rebuild_s, self._input.costs.size(state), self._input.tuning)

    def _waiting(self) -> list[list[Slot]]:
        """The slots of waiting requests: a group for the request that is served next, then a group for all others.

        The first group comes before everything else, whatever has to be evicted: otherwise a request for a rare state
        could wait for ever. The others share one group, so that the planner gives out existing and returned sandboxes
        before it creates any. With one group each, the second request in the queue could destroy a sandbox that the
        third one can use.
        """
        places = self._input.limits.sandboxes - self._input.leased
        left = {state: count for state, count in self._input.waiting.items() if count > 0}
        if not left or places < 1:
            return []
        self.useful.update(left)
        first = next(iter(left))
        left[first] -= 1
        others = [Slot(state, min(count, places), Tier.WAITING) for state, count in left.items() if count]
        return [group for group in ([Slot(first, 1, Tier.WAITING)], others) if group]

    def _announced(self) -> list[list[Slot]]:
        """The slots of announced requests, each in a group of its own, in the order in which they are prepared.

        Announcements come by their times, and the entries of one announcement as `spread` orders them. If not all of
        them fit, the pool prepares the first ones, and the sandboxes of later ones make room.
        """
        given = self._input
        announced = given.demand.open(given.now_s)
        states = [each.announcement.state for each in announced]
        leads = {state: self._lead_times(state) for state in dict.fromkeys(states)}
        # An announcement is due once its time is closer than the creations that have to end before: all sandboxes of
        # earlier announcements and its own, `at_once` at a time, and one that is late.
        due, before = len(announced) if self._all_due else 0, 0
        for number, each in enumerate(announced[due:], start=1):
            before += each.left
            late_s, each_s, _ = leads[each.announcement.state]
            begin_s = each.announcement.at_s - late_s - each_s * before
            if begin_s <= given.now_s:
                due = number  # all earlier announcements are due, too
            else:
                self.next_announced_s = min(self.next_announced_s, begin_s)
        found = self._due(announced[:due])
        for each in announced[due:]:
            state = each.announcement.state
            if each.announcement.at_s - given.now_s <= leads[state][2]:
                found.append([Slot(state, min(each.left, given.limits.sandboxes), Tier.ANNOUNCED, make=False)])
        self.useful.update([slot.state for group in found for slot in group])
        return found

    def _due(self, announced: list[Announced]) -> list[list[Slot]]:
        """The slots of announced sandboxes that are made now."""
        most, places = self._input.limits.sandboxes, self._places(announced)
        found: list[list[Slot]] = []
        for group, members in groupby(announced, key=_GROUP):
            entries = [Entry(each.announcement.state, each.announcement.count, each.arrived) for each in members]
            for state, count in spread(entries, places, group.in_a_row):
                found.append([Slot(state, min(count, most), Tier.ANNOUNCED, announced_as=group.name)])
            places = max(0, places - sum([each.announced - each.arrived for each in entries]))
        return found

    def _places(self, announced: list[Announced]) -> int:
        """How many of these sandboxes fit into the pool beside the leased ones, if each has their mean size."""
        given, limits = self._input, self._input.limits
        places = max(0, limits.sandboxes - given.leased)
        if limits.memory_bytes is None and limits.disk_bytes is None:
            return places
        count = sum([each.left for each in announced])
        total = sum([self.size(each.announcement.state) * each.left for each in announced], NO_SIZE)
        for limit, taken, wanted in (
            (limits.memory_bytes, given.leased_size.memory_bytes, total.memory_bytes),
            (limits.disk_bytes, given.leased_size.disk_bytes, total.disk_bytes),
        ):
            if limit is not None and wanted:
                places = min(places, max(0, limit - taken) * count // wanted)
        return places

    def _lead_times(self, state: State) -> tuple[float, float, float]:
        """In seconds: the p95 of a creation; the time for each of many creations; how long keeping a sandbox pays."""
        given, rebuild_s = self._input, self.rebuild_s(state)
        late_s = given.costs.late_s(state, images=given.abilities.images)
        each_s = MARGIN * rebuild_s / given.limits.at_once
        return late_s, each_s, keepalive.worth_s(rebuild_s, given.costs.size(state), given.tuning)

    def _expected(self) -> list[Slot]:
        """The slots of predicted requests, for each state that was requested lately."""
        given = self._input
        found: list[Slot] = []
        for state in given.demand.recent(given.now_s - given.tuning.keep_at_most_s):
            if state in given.ladders:
                found += self._newsvendor(state, self.rebuild_s(state), Tier.EXPECTED, 0)
        return found

    def _shared(self, above: list[Slot]) -> list[Slot]:
        """The slots on lower rungs, for predicted requests that the slots further up (`above`) do not serve already."""
        saved = self._saved_below()
        if not saved:
            return []
        covered = dict.fromkeys(saved, 0)
        self._cover(covered, [slot for slot in above if slot.tier is not Tier.WAITING])
        found: list[Slot] = []
        for state in sorted(saved, key=lambda state: -state.depth):
            slots = self._newsvendor(state, saved[state], Tier.SHARED, covered[state])
            self._cover(covered, slots)
            found += slots
        return found

    def _cover(self, covered: dict[State, int], slots: list[Slot]) -> None:
        """Add the sandboxes of these slots to the count of every state that they begin with."""
        counts: dict[State, int] = {}
        for slot in slots:
            counts[slot.state] = counts.get(slot.state, 0) + slot.places
        making = {slot.state for slot in slots if slot.make}
        for state, count in counts.items():
            # A slot that is not made now covers requests only with sandboxes that exist.
            count = count if state in making else min(count, self._existing.get(state, 0))
            ladder = self._input.ladders.get(state)
            for prefix in ladder.rungs if ladder is not None else rungs_of(state):
                if prefix in covered:
                    covered[prefix] += count

    def _saved_below(self) -> dict[State, float]:
        """For each lower rung, the seconds that a sandbox there saves a request, on average over its requests.

        Rungs that save nothing are left out. With images, these are most: a creation takes about the same time on
        every rung, and running the missing stages inside a sandbox is rarely faster. Without images, every rung saves
        the creation and its stages.
        """
        given = self._input
        sums: dict[State, tuple[float, int]] = {}
        for top in given.demand.recent(given.now_s - given.tuning.keep_at_most_s):
            ladder = given.ladders.get(top)
            if ladder is None or top.depth == 1:
                continue
            rebuild_s = self.rebuild_s(top)
            past = given.demand.past(top, rebuild_s, exact=True)
            arrivals = past.arrivals if past is not None else 0
            missing_s = 0.0
            for depth in range(top.depth - 1, 0, -1):
                missing_s += given.costs.stage_s(top.digests[depth])
                if missing_s >= rebuild_s:
                    break  # on lower rungs even more stages are missing
                total_s, count = sums.get(ladder.rungs[depth - 1], (0.0, 0))
                sums[ladder.rungs[depth - 1]] = total_s + arrivals * (rebuild_s - missing_s), count + arrivals
        return {state: total_s / count for state, (total_s, count) in sums.items()}

    def _newsvendor(self, state: State, saved_s: float, tier: Tier, covered: int) -> list[Slot]:
        """The slots for the predicted requests of one wave, without the first `covered` ones.

        The newsvendor quantile gives their number. The n-th sandbox is of use only in waves of at least n requests, so
        each further slot is worth less: its worth is multiplied by the share of waves that were that large.
        """
        given, costs, tuning = self._input, self._input.costs, self._input.tuning
        lead_s, size = self.rebuild_s(state), costs.size(state)
        past = given.demand.past(state, lead_s, exact=tier is Tier.EXPECTED)
        if past is None or not keepalive.lives(past, lead_s, size, tuning, given.now_s):
            return []
        self.useful.add(state)
        sizes = past.likely(given.now_s - past.last_s)
        needed = max(sizes.quantile(tuning.quantile), past.concurrent_creations(lead_s))
        needed = min(needed, covered + given.limits.sandboxes)
        if needed <= covered:
            return []
        each = saved_s / eviction.share(size, given.limits) / (past.gap_s or tuning.keep_unknown_s)
        existing = covered + self._existing.get(state, 0)
        make = self._is_due(past, lead_s, needed - existing)
        slots: list[Slot] = []
        done = covered
        for upto, chance in (*sizes.steps, (needed, 0.0)):
            upto = min(upto, needed)
            # The sandboxes up to `existing` exist already: they form a slot of their own, with the hysteresis.
            if done < existing < upto:
                slots.append(Slot(state, existing - done, tier, each * chance * tuning.hysteresis, make))
                done = existing
            if done < upto:
                worth = each * chance * (tuning.hysteresis if done < existing else 1.0)
                slots.append(Slot(state, upto - done, tier, worth, make))
                done = upto
        return slots

    def _is_due(self, past: Past, rebuild_s: float, missing: int) -> bool:
        """Whether the predicted requests may come before the missing sandboxes are ready, unless these begin now.

        Beginning later is better if there is time: a lease may end until then, and its sandbox can be used again.
        """
        if past.gap_s is None:
            return False  # a single burst is no pattern
        lead_s = MARGIN * rebuild_s * (1 + max(0, missing) / self._input.limits.at_once)
        return past.soon(self._input.now_s - past.last_s, lead_s)
