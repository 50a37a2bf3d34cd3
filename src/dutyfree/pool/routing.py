"""The router: which idle sandbox is closest to the wanted state, or whether a new one is ready sooner. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from dutyfree.pool.costs import Costs
from dutyfree.pool.planner_input import Abilities, Idle
from dutyfree.pool.state import Ladder, State

COLD_RUNG: Final = "cold"
"""The rung of a request that needs a new sandbox."""


class Policy(StrEnum):
    """How a sandbox is chosen for a request."""

    LOCALITY = "locality"
    """The sandbox with the shortest expected time until it is ready, by measured costs."""
    NO_LOCALITY = "no-locality"
    """The sandbox that has been idle longest, whatever its state. For comparisons with `LOCALITY`."""
    COLD = "cold"
    """Always a new sandbox. For comparisons, and for hosts without a pool."""


class Route(NamedTuple):
    """How a request is served."""

    sandbox: str | None
    """The idle sandbox to use. None: a new one is created."""
    evict: str | None
    """An idle sandbox to destroy first: the policy `no-locality` chose it, and it cannot serve the request."""
    missing: tuple[str, ...]
    """The names of the stages to add, in their order."""
    expected_s: float | None
    """The expected time until the sandbox is ready. None with the policy `cold`, which compares no times."""
    rung: str
    """The name of the rung on which the sandbox is now, or `COLD_RUNG`."""
    why: str
    """The reason, for logs."""


def route(
    ladder: Ladder,
    idle: Mapping[State, Sequence[Idle]],
    costs: Costs,
    abilities: Abilities,
    policy: Policy = Policy.LOCALITY,
    *,
    may_create: bool = True,
) -> Route:
    """How to serve a request for the top of a ladder. Looks at each rung once.

    `idle` has the sandboxes of each state, longest idle first; among sandboxes in the same state the first is used. If
    there is no room for another sandbox (`may_create` is False), an idle sandbox on any rung is used, even if its
    missing stages take longer than a creation: a creation would have to wait for room.
    """
    if policy is Policy.COLD:
        missing = () if abilities.images else ladder.names[1:]
        return Route(None, None, missing, None, COLD_RUNG, "the policy always creates a new sandbox")
    if policy is Policy.NO_LOCALITY:
        return _longest_idle(ladder, idle, costs, abilities)
    cold_s = costs.rebuild_s(ladder.top, images=abilities.images)
    names, digests = ladder.names, ladder.top.digests
    missing_s = 0.0
    for depth in range(len(names), 0, -1):
        if depth < len(names):
            missing_s += costs.stage_s(digests[depth])
            if may_create and missing_s >= cold_s:
                break  # on lower rungs even more stages are missing
        idle_here = idle.get(ladder.rungs[depth - 1])
        if idle_here:
            missing = names[depth:]
            why = f"{len(missing)} stages missing" if missing else "just what is wanted"
            return Route(idle_here[0].sandbox, None, missing, missing_s, names[depth - 1], why)
    return _creation(ladder, costs, abilities, "no idle sandbox would be ready sooner than a new one")


def _creation(ladder: Ladder, costs: Costs, abilities: Abilities, why: str, evict: str | None = None) -> Route:
    missing = () if abilities.images else ladder.names[1:]
    return Route(None, evict, missing, costs.rebuild_s(ladder.top, images=abilities.images), COLD_RUNG, why)


def _longest_idle(ladder: Ladder, idle: Mapping[State, Sequence[Idle]], costs: Costs, abilities: Abilities) -> Route:
    chosen: Idle | None = None
    for same_state in idle.values():
        oldest = same_state[0] if same_state else None
        if oldest and (chosen is None or (oldest.since_s, oldest.sandbox) < (chosen.since_s, chosen.sandbox)):
            chosen = oldest
    if chosen is None:
        return _creation(ladder, costs, abilities, "no sandbox is idle")
    state = chosen.state
    if not state.begins(ladder.top):
        return _creation(ladder, costs, abilities, "the longest idle sandbox is in another state", chosen.sandbox)
    missing, expected_s = ladder.missing(state), costs.stages_s(ladder, state)
    return Route(chosen.sandbox, None, missing, expected_s, ladder.name_of(state), "idle longest")
