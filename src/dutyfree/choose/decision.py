"""Which substrate should run a rollout: the cheapest one whose isolation is strong enough for the code.

Pure: candidates with measured costs go in, a decision that a reader can check by hand comes out. For each candidate

    life = acquire + actions x overhead of an action + work x slowdown
    cost = second x life + gib_second x memory x life + failure rate x (all that + lost_rollout)

Of the candidates whose isolation is strong enough for the trust class, the one with the least cost wins. Isolation is
never traded for speed. The cost is linear in the number of actions, so the number of actions at which two candidates
cost the same can be computed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import floor, inf
from typing import Final

from dutyfree.choose.trust import Trust
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Isolation

MOST_ACTIONS: Final = 10_000
"""The most actions of a trajectory. The benchmark measures no longer ones."""
MOST_CANDIDATES: Final = 64
TERMS: Final = ("acquire", "actions", "work", "memory", "failure")
"""The terms of a cost; their sum is the total."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """A substrate with its measured costs."""

    name: str
    substrate: str
    isolation: Isolation
    acquire_s: float
    """The time from the request until the first action can run."""
    action_overhead_s: float = 0.0
    """The time that the substrate adds to each action."""
    slowdown: float = 1.0
    """The time of the same work inside, divided by its time on the fastest candidate."""
    memory_bytes: int = 0
    """The memory of one sandbox. 0 if it was not measured: then memory does not count."""
    failure_rate: float = 0.0
    """The share of rollouts that the infrastructure fails."""
    emulated: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the substrate's constructor, in the form of `--option`; for example the action path."""

    def __post_init__(self) -> None:
        _within(f"{self.name}: acquire_s", self.acquire_s)
        _within(f"{self.name}: action_overhead_s", self.action_overhead_s)
        _within(f"{self.name}: slowdown", self.slowdown)
        _within(f"{self.name}: memory_bytes", self.memory_bytes)
        _within(f"{self.name}: failure_rate", self.failure_rate, most=1.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """Prices, all in the same unit; by default in seconds of a rollout."""

    second: float = 1.0
    """The price of one second of a rollout, with everything that waits for it."""
    gib_second: float = 0.1
    """The price of 1 GiB of memory for one second. In clouds, 1 GiB costs about a tenth of a core."""
    lost_rollout: float = 0.0
    """The price of a failed rollout in addition to its time and memory; for example the model's tokens."""

    def __post_init__(self) -> None:
        for name in ("second", "gib_second", "lost_rollout"):
            _within(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one rollout on a candidate. `total` is the sum of the five terms."""

    candidate: Candidate
    life_s: float
    acquire: float
    actions: float
    work: float
    memory: float
    failure: float
    total: float
    fixed: float
    """The part of `total` that does not depend on the number of actions: `total = fixed + actions x per_action`."""
    per_action: float
    """The cost of one action, with its share of the work."""

    def at(self, actions: float) -> float:
        """The cost of a rollout of another length, with as much work for each action."""
        return self.fixed + actions * self.per_action


@dataclass(frozen=True, slots=True)
class Excluded:
    """A candidate that the trust class does not allow, whatever its cost."""

    cost: Cost
    reason: str


@dataclass(frozen=True, slots=True)
class Crossover:
    """The number of actions at which two candidates cost the same. `short` is cheaper below, `long` above."""

    actions: float
    short: str
    long: str


@dataclass(frozen=True, slots=True)
class Reign:
    """The range of actions, from `first` to `last` inclusive, in which a candidate is the cheapest."""

    name: str
    first: int
    last: int | None
    """None: up to `MOST_ACTIONS`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen candidate, and all numbers that a reader needs to check the choice."""

    trust: Trust
    actions: int
    work_s: float
    weights: Weights
    eligible: tuple[Cost, ...]
    """Cheapest first; never empty."""
    excluded: tuple[Excluded, ...]
    crossovers: tuple[Crossover, ...]
    """The crossovers of all pairs of eligible candidates, fewest actions first. The work of each action is constant."""
    reigns: tuple[Reign, ...]
    """The cheapest candidate for each number of actions, fewest actions first."""
    why: str
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """By name: why a candidate that the trust class allows, or may allow, could not be used on this machine."""

    @property
    def chosen(self) -> Candidate:
        """The cheapest eligible candidate."""
        return self.eligible[0].candidate

    @property
    def passed_over(self) -> dict[str, str]:
        """Why each other candidate was not chosen, by its name: first what did not work, then what is not allowed,
        then what costs more."""
        best = self.eligible[0].total
        costlier = {each.candidate.name: f"costs {each.total:,.3f}, not {best:,.3f}" for each in self.eligible[1:]}
        return {**self.unavailable, **{each.cost.candidate.name: each.reason for each in self.excluded}, **costlier}

    @property
    def explanation(self) -> str:
        """`why`, and why each other candidate was passed over."""
        others = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
        return f"{self.why}. Passed over: {others}" if others else self.why


def choose(
    candidates: Sequence[Candidate],
    trust: Trust,
    expected_actions: int,
    expected_work_s: float,
    weights: Weights | None = None,
    *,
    accept_emulated: bool = False,
) -> Decision:
    """Choose the cheapest candidate that `trust` allows, for a rollout with these actions and this work.

    The work is the time that the commands take on the fastest candidate. If two candidates cost the same, the one with
    the stronger isolation wins, then the first one. A virtual machine on an emulated processor counts no more than a
    container unless `accept_emulated` is set: the developers of emulators (QEMU's TCG) do not promise that hostile code
    cannot break out.

    Raises InvalidRequest for invalid numbers or names, and Unsupported if no candidate is allowed.
    """
    weights = weights if weights is not None else Weights()
    _check(candidates, expected_actions, expected_work_s)
    costs = [cost_of(each, expected_actions, expected_work_s, weights) for each in candidates]
    refused = {each.name: refusal(each, trust, accept_emulated) for each in candidates}
    eligible = [cost for cost in costs if not refused[cost.candidate.name]]
    excluded = tuple(Excluded(cost, why) for cost in costs if (why := refused[cost.candidate.name]))
    if not eligible:
        raise none_allowed(trust, {each.cost.candidate.name: each.reason for each in excluded})
    eligible.sort(key=lambda cost: (cost.total, -cost.candidate.isolation))
    crossovers = tuple(_crossovers(eligible))
    return Decision(
        trust,
        expected_actions,
        expected_work_s,
        weights,
        tuple(eligible),
        excluded,
        crossovers,
        tuple(_reigns(eligible, crossovers)),
        _why(eligible, trust),
    )


def cost_of(candidate: Candidate, actions: int, work_s: float, weights: Weights) -> Cost:
    """The cost of a rollout on a candidate, term by term. `actions` is at least 1."""
    gib, failing = candidate.memory_bytes / _GIB, candidate.failure_rate
    overhead_s, slow_work_s = actions * candidate.action_overhead_s, work_s * candidate.slowdown
    life_s = candidate.acquire_s + overhead_s + slow_work_s
    paid = weights.second * life_s + weights.gib_second * gib * life_s
    failure = failing * (paid + weights.lost_rollout)
    # A failed rollout is repeated: each second is paid once more with the probability of a failure.
    price_of_second = (weights.second + weights.gib_second * gib) * (1 + failing)
    return Cost(
        candidate,
        life_s,
        acquire=weights.second * candidate.acquire_s,
        actions=weights.second * overhead_s,
        work=weights.second * slow_work_s,
        memory=weights.gib_second * gib * life_s,
        failure=failure,
        total=paid + failure,
        fixed=price_of_second * candidate.acquire_s + failing * weights.lost_rollout,
        per_action=price_of_second * (overhead_s + slow_work_s) / actions,
    )


def refusal(candidate: Candidate, trust: Trust, accept_emulated: bool) -> str:
    """Why the trust class does not allow this candidate; empty if it does."""
    least = trust.least_isolation
    if candidate.isolation < least:
        return f"its wall is {candidate.isolation.label}; {trust} takes {least.label} or stronger"
    if candidate.emulated and least > Isolation.CONTAINER and not accept_emulated:
        return f"its processor is emulated, which is no wall for {trust} code"
    return ""


def none_allowed(trust: Trust, refused: Mapping[str, str]) -> Unsupported:
    """The error if no candidate is left; `refused` has the reason for each."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    return Unsupported(
        f"no substrate that works here isolates strongly enough for the trust class {str(trust)!r} ({reasons})",
        hint="use gvisor for `untrusted`, a microvm or vm on a machine with KVM for `hostile`",
    )


def _cheapest_at(eligible: Sequence[Cost], actions: int) -> Cost:
    return min(eligible, key=lambda cost: (cost.at(actions), -cost.candidate.isolation))


def _crossovers(eligible: Sequence[Cost]) -> list[Crossover]:
    found = []
    for one, other in combinations(eligible, 2):
        gap, gain = other.fixed - one.fixed, one.per_action - other.per_action
        at = gap / gain if gain else inf
        if 1 <= at <= MOST_ACTIONS:
            short, long = (one, other) if gap > 0 else (other, one)
            found.append(Crossover(at, short.candidate.name, long.candidate.name))
    return sorted(found, key=lambda each: each.actions)


def _reigns(eligible: Sequence[Cost], crossovers: Sequence[Crossover]) -> list[Reign]:
    starts = sorted({1, *(first for each in crossovers if (first := floor(each.actions) + 1) <= MOST_ACTIONS)})
    found: list[Reign] = []
    for index, first in enumerate(starts):
        last = starts[index + 1] - 1 if index + 1 < len(starts) else None
        name = _cheapest_at(eligible, first).candidate.name
        begun = found.pop().first if found and found[-1].name == name else first
        found.append(Reign(name, begun, last))
    return found


def _why(eligible: Sequence[Cost], trust: Trust) -> str:
    best = eligible[0]
    wall = f"{trust} takes {trust.least_isolation.label} or stronger"
    if len(eligible) == 1:
        return f"{best.candidate.name} is the only one with a wall that will do: {wall}"
    second = eligible[1]
    most = max(TERMS, key=lambda term: float(getattr(second, term) - getattr(best, term)))
    saved = f", most of it saved on {most}" if second.total > best.total else ""
    return (
        f"{best.candidate.name} costs the least of {len(eligible)} with a wall that will do ({wall}): "
        f"{best.total:,.3f} against {second.total:,.3f} of {second.candidate.name}{saved}"
    )


def _check(candidates: Sequence[Candidate], actions: int, work_s: float) -> None:
    names = [each.name for each in candidates]
    if not 1 <= len(names) <= MOST_CANDIDATES:
        raise InvalidRequest(f"there are {len(names)} candidates; there can be 1 to {MOST_CANDIDATES}")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"two candidates are called {twice!r}")
    if not 1 <= actions <= MOST_ACTIONS:
        raise InvalidRequest(f"a rollout has 1 to {MOST_ACTIONS} actions, not {actions}")
    _within("work", work_s)


def _within(name: str, value: float, most: float = 1e18) -> None:
    if not 0 <= value <= most:  # also refuses NaN
        raise InvalidRequest(f"{name} is {value!r:.40}; it must lie between 0 and {most:g}")
