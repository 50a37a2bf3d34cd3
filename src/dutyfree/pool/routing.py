"""Which idle sandbox is closest to what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dutyfree.pool.costs import Costs
from dutyfree.pool.planner_input import Abilities, Idle
from dutyfree.pool.state import Ladder, State

COLD_RUNG: Final = "cold"
"""The rung of a request for which a sandbox has to be created."""


class Policy(StrEnum):
    """How a sandbox is chosen for a request."""

    LOCALITY = "locality"
    """The one that is expected to be ready first, by measured costs."""
    NO_LOCALITY = "no-locality"
    """The one that was idle for longest, whatever is in it: a control arm."""
    COLD = "cold"
    """Always a new one: the other control arm."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a request is served."""

    sandbox: str | None
    """The idle one to take; none: a new one is to be created."""
    evict: str | None
    """The idle one that is to be ended first: a policy chose it, and it cannot serve."""
    missing: tuple[str, ...]
    """The names of the stages to be added before it can be handed over, in their order."""
    expected_s: float
    """Until it is ready."""
    rung: str
    """Where the sandbox stands now: the name of a rung, or `COLD_RUNG`."""
    why: str
    """For people."""


def route(
    ladder: Ladder,
    idle: Mapping[State, Sequence[Idle]],
    costs: Costs,
    abilities: Abilities,
    policy: Policy = Policy.LOCALITY,
    *,
    may_create: bool = True,
) -> Route:
    """The way to serve somebody who wants the top of a ladder. Pure; looks at each rung once.

    `idle` has the sandboxes of a state longest idle first, which is the order in which equals are taken. Where there is
    no room for another sandbox (`may_create` is False), whatever is idle on a rung is taken before a creation is asked
    for, dear as its missing stages may be.
    """
    if policy is Policy.COLD:
        return _creation(ladder, costs, abilities, "always a new one")
    if policy is Policy.NO_LOCALITY:
        return _longest_idle(ladder, idle, costs, abilities)
    cold = _creation(ladder, costs, abilities, "nothing that is idle is closer")
    names, digests = ladder.names, ladder.top.digests
    missing_s = 0.0
    for depth in range(len(names), 0, -1):
        if depth < len(names):
            missing_s += costs.stage_s(digests[depth])
            if may_create and missing_s >= cold.expected_s:
                break  # and further down more is missing
        there = idle.get(ladder.rungs[depth - 1])
        if there:
            missing = names[depth:]
            why = f"{len(missing)} stages missing" if missing else "just what is wanted"
            return Route(there[0].sandbox, None, missing, missing_s, names[depth - 1], why)
    return cold


def _creation(ladder: Ladder, costs: Costs, abilities: Abilities, why: str, evict: str | None = None) -> Route:
    missing = () if abilities.images else ladder.names[1:]
    return Route(None, evict, missing, costs.rebuild_s(ladder.top, images=abilities.images), COLD_RUNG, why)


def _longest_idle(ladder: Ladder, idle: Mapping[State, Sequence[Idle]], costs: Costs, abilities: Abilities) -> Route:
    chosen: Idle | None = None
    for there in idle.values():
        if there and (chosen is None or (there[0].since_s, there[0].sandbox) < (chosen.since_s, chosen.sandbox)):
            chosen = there[0]
    if chosen is None:
        return _creation(ladder, costs, abilities, "nothing is idle")
    state = chosen.state
    if not state.begins(ladder.top):
        return _creation(ladder, costs, abilities, "idle for longest, and of no use", chosen.sandbox)
    missing, expected_s = ladder.missing(state), costs.stages_s(ladder, state)
    return Route(chosen.sandbox, None, missing, expected_s, ladder.name_of(state), "idle for longest")
