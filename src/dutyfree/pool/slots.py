"""What would be good to have: places for sandboxes in states, in the order of their worth. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from dutyfree.pool import eviction, keepalive
from dutyfree.pool.arrivals import Past
from dutyfree.pool.planner_input import PlannerInput
from dutyfree.pool.size import Size
from dutyfree.pool.state import State, rungs_of

_WORTH: Final = attrgetter("worth")
MARGIN: Final = 2.0
"""Announced demand is prepared for as if creations, many at once, took this many times what they do on average."""


class Tier(IntEnum):
    """Why something should be there; the first reason outweighs all others."""

    WAITING = 0
    """Somebody waits for it."""
    ANNOUNCED = 1
    """Somebody said that they would come."""
    EXPECTED = 2
    """Somebody will, going by the past."""
    SHARED = 3
    """Somebody will, for one of several states that begin with it."""


class Slot(NamedTuple):
    """So many sandboxes in a state."""

    state: State
    places: int
    tier: Tier
    worth: float = 0.0
    """Of each: seconds of waiting that it saves, in a second, for each part of the pool that it takes."""
    make: bool = True
    """Whether they are to be made now; otherwise those that are there are to be kept."""


class Slots:
    """All that would be good to have, most worth first; also what `useful` states there are, beyond any number.

    `existing` says how many there are in each state: what exists is worth `Tuning.hysteresis` times as much, so that
    nothing is destroyed for the sake of something that is hardly better.
    """

    def __init__(self, view: PlannerInput, existing: Mapping[State, int]) -> None:
        self._view = view
        self._existing = existing
        self._rebuilds: dict[State, float] = {}
        self._sizes: dict[State, Size] = {}
        self.next_announced_s = inf
        """When the next announced sandboxes have to be begun: a plan that comes later would miss that moment."""
        self.useful: set[State] = set()
        """States in which a sandbox saves time for somebody who can be expected."""
        self.groups = [*self._waiting(), *self._announced()]
        """In their order: those that are asked for as they are to be served, the others by their worth. Within a group
        what is there, or costs just a reset, comes before what has to be made."""
        asked = [slot for group in self.groups for slot in group]
        if sum([slot.places for slot in asked if slot.make]) < view.limits.sandboxes - view.leased:
            guessed = self._expected()
            guessed += self._shared([*asked, *guessed])
            guessed.sort(key=_WORTH, reverse=True)
            self.groups += [[slot] for slot in guessed]

    def rebuild_s(self, state: State) -> float:
        """The expected time of a creation in a state."""
        known = self._rebuilds.get(state)
        if known is None:
            known = self._rebuilds[state] = self._view.costs.rebuild_s(state, images=self._view.abilities.images)
        return known

    def size(self, state: State) -> Size:
        """What a sandbox is expected to take; alone, it always fits."""
        known = self._sizes.get(state)
        if known is None:
            known = self._sizes[state] = self._view.limits.clamp(self._view.costs.size(state))
        return known

    def ttl_s(self, state: State) -> float:
        """How long a sandbox that fills no slot is kept in a state."""
        rebuild_s = self.rebuild_s(state)
        past = self._view.demand.past(state, rebuild_s)
        return keepalive.ttl_s(past, rebuild_s, self._view.costs.size(state), self._view.tuning)

    def _waiting(self) -> list[list[Slot]]:
        """First one for whoever is next, so that nobody starves; then those for all others.

        That one comes before all others, whatever has to make room for it. The others are better served by what has
        just been given back than by giving everything up for the second in the queue.
        """
        places = self._view.limits.sandboxes - self._view.leased
        left = {state: count for state, count in self._view.waiting.items() if count > 0}
        if not left or places < 1:
            return []
        self.useful.update(left)
        first = next(iter(left))
        left[first] -= 1
        others = [Slot(state, min(count, places), Tier.WAITING) for state, count in left.items() if count]
        return [group for group in ([Slot(first, 1, Tier.WAITING)], others) if group]

    def _announced(self) -> list[list[Slot]]:
        """Strictly in their order: where not all of them fit, those are ready that come first, and what is there for
        those who come last makes room for them."""
        view = self._view
        announced = view.demand.announced(view.now_s)
        leads = {state: self._leads(state) for state in {state: None for state, _, _ in announced}}
        soon, before = 0, 0
        for number, (state, count, at_s) in enumerate(announced, start=1):
            before += count
            late_s, each_s, _ = leads[state]
            begin_s = at_s - late_s - each_s * before
            if begin_s <= view.now_s:
                soon = number  # and with it all that comes before it
            else:
                self.next_announced_s = min(self.next_announced_s, begin_s)
        found: list[list[Slot]] = []
        for number, (state, count, at_s) in enumerate(announced):
            if number < soon or at_s - view.now_s <= leads[state][2]:
                slot = Slot(state, min(count, view.limits.sandboxes), Tier.ANNOUNCED, make=number < soon)
                found.append([slot])
                self.useful.add(state)
        return found

    def _leads(self, state: State) -> tuple[float, float, float]:
        """How long one takes that is late, each one among many, and how long before it is needed one is kept."""
        view, rebuild_s = self._view, self.rebuild_s(state)
        late_s = view.costs.late_s(state, images=view.abilities.images)
        each_s = MARGIN * rebuild_s / view.limits.at_once
        return late_s, each_s, keepalive.worth_s(rebuild_s, view.costs.size(state), view.tuning)

    def _expected(self) -> list[Slot]:
        """The newsvendor's at the top of each ladder that somebody came for lately."""
        view = self._view
        found: list[Slot] = []
        for state in view.demand.recent(view.now_s - view.tuning.keep_at_most_s):
            if state in view.ladders:
                found += self._newsvendor(state, self.rebuild_s(state), Tier.EXPECTED, 0)
        return found

    def _shared(self, above: list[Slot]) -> list[Slot]:
        """The newsvendor's on lower rungs, as far as slots further up do not cover them."""
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
        """Count what there is, or will be, for the states that these begin with."""
        counts: dict[State, int] = {}
        for slot in slots:
            counts[slot.state] = counts.get(slot.state, 0) + slot.places
        making = {slot.state for slot in slots if slot.make}
        for state, count in counts.items():
            count = count if state in making else min(count, self._existing.get(state, 0))
            ladder = self._view.ladders.get(state)
            for prefix in ladder.rungs if ladder is not None else rungs_of(state):
                if prefix in covered:
                    covered[prefix] += count

    def _saved_below(self) -> dict[State, float]:
        """What a sandbox on a lower rung saves, on average over those who come by it; rungs that save nothing are out.

        Where sandboxes are created from images, few do: a creation costs the same on every rung, and a stage carried
        out inside has to be cheaper than that. Elsewhere all do.
        """
        view = self._view
        sums: dict[State, tuple[float, int]] = {}
        for top in view.demand.recent(view.now_s - view.tuning.keep_at_most_s):
            ladder = view.ladders.get(top)
            if ladder is None or top.depth == 1:
                continue
            rebuild_s = self.rebuild_s(top)
            past = view.demand.past(top, rebuild_s, exact=True)
            arrivals = past.arrivals if past is not None else 0
            missing_s = 0.0
            for depth in range(top.depth - 1, 0, -1):
                missing_s += view.costs.stage_s(top.digests[depth])
                if missing_s >= rebuild_s:
                    break
                total_s, count = sums.get(ladder.rungs[depth - 1], (0.0, 0))
                sums[ladder.rungs[depth - 1]] = total_s + arrivals * (rebuild_s - missing_s), count + arrivals
        return {state: total_s / count for state, (total_s, count) in sums.items()}

    def _newsvendor(self, state: State, saved_s: float, tier: Tier, covered: int) -> list[Slot]:
        """Slots from `covered` to what the demand over the time of a refill needs, in runs of the same worth."""
        view, costs, tuning = self._view, self._view.costs, self._view.tuning
        lead_s, size = self.rebuild_s(state), costs.size(state)
        past = view.demand.past(state, lead_s, exact=tier is Tier.EXPECTED)
        if past is None or not keepalive.lives(past, lead_s, size, tuning, view.now_s):
            return []
        self.useful.add(state)
        sizes = past.likely(view.now_s - past.last_s)
        needed = max(sizes.quantile(tuning.quantile), past.under_way(lead_s))
        needed = min(needed, covered + view.limits.sandboxes)
        if needed <= covered:
            return []
        each = saved_s / eviction.share(size, view.limits) / (past.gap_s or tuning.keep_unknown_s)
        existing = covered + self._existing.get(state, 0)
        make = self._soon(past, lead_s, needed - existing)
        slots: list[Slot] = []
        done = covered
        for upto, chance in (*sizes.steps, (needed, 0.0)):
            upto = min(upto, needed)
            if done < existing < upto:
                slots.append(Slot(state, existing - done, tier, each * chance * tuning.hysteresis, make))
                done = existing
            if done < upto:
                worth = each * chance * (tuning.hysteresis if done < existing else 1.0)
                slots.append(Slot(state, upto - done, tier, worth, make))
                done = upto
        return slots

    def _soon(self, past: Past, rebuild_s: float, missing: int) -> bool:
        """Whether those who are to be expected can come before what is missing is there, if it is not begun now.

        Until then, what has just been leased may be given back, and nothing has to be made.
        """
        if past.gap_s is None:
            return False  # once is no pattern
        lead_s = MARGIN * rebuild_s * (1 + max(0, missing) / self._view.limits.at_once)
        return past.soon(self._view.now_s - past.last_s, lead_s)
