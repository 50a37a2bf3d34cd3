"""Which substrate is to run a rollout: the cheapest whose wall is strong enough for those who wrote the code.

Pure: candidates with what they were measured to cost go in, a decision that can be checked by hand comes out. For each
candidate

    life = acquire + actions x overhead of an action + work x slowdown
    cost = second x life + gib_second x memory x life + failure rate x (all that + lost_rollout)

and the least cost wins, among those whose isolation is at least what the trust class takes. A wall is never traded
for speed. Cost is a line in the number of actions, so that where two candidates change places is known exactly.
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
"""Of a trajectory; the instrument measures none that is longer."""
MOST_CANDIDATES: Final = 64
TERMS: Final = ("acquire", "actions", "work", "memory", "failure")
"""Of a cost; they add up to it."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """A substrate, and what it costs here."""

    name: str
    substrate: str
    isolation: Isolation
    acquire_s: float
    """From the request until the first action can run."""
    action_overhead_s: float = 0.0
    """What the substrate adds to each action's own time."""
    slowdown: float = 1.0
    """How many times as long the same work takes inside as on the fastest of all."""
    memory_bytes: int = 0
    """That one sandbox holds; 0 where nobody knows, and then it counts for nothing."""
    failure_rate: float = 0.0
    """The share of rollouts that the infrastructure fails."""
    emulated: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """For the substrate's constructor, as `--option` takes them; the action path is one."""

    def __post_init__(self) -> None:
        _within(f"{self.name}: acquire_s", self.acquire_s)
        _within(f"{self.name}: action_overhead_s", self.action_overhead_s)
        _within(f"{self.name}: slowdown", self.slowdown)
        _within(f"{self.name}: memory_bytes", self.memory_bytes)
        _within(f"{self.name}: failure_rate", self.failure_rate, most=1.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """What things cost, in any one currency; by default in seconds of a rollout."""

    second: float = 1.0
    """A second for which a rollout takes its place, and whatever waits for it."""
    gib_second: float = 0.1
    """A GiB of memory, held for a second. Clouds that sell both sell a GiB for about a tenth of a core."""
    lost_rollout: float = 0.0
    """What is lost with a rollout that fails, beside its time and memory: the model's tokens, for one."""

    def __post_init__(self) -> None:
        for name in ("second", "gib_second", "lost_rollout"):
            _within(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one rollout costs on a candidate. The five terms add up to `total`."""

    candidate: Candidate
    life_s: float
    acquire: float
    actions: float
    work: float
    memory: float
    failure: float
    total: float
    fixed: float
    """The part that is paid once: `fixed + actions x per_action` is `total`, too."""
    per_action: float
    """With the work that comes with an action."""

    def at(self, actions: float) -> float:
        """The cost of a rollout of another length, with as much work for each action."""
        return self.fixed + actions * self.per_action


@dataclass(frozen=True, slots=True)
class Excluded:
    """A candidate that may not be taken, whatever it would cost."""

    cost: Cost
    reason: str


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where two candidates cost the same: in shorter rollouts `short` is cheaper, in longer ones `long`."""

    actions: float
    short: str
    long: str


@dataclass(frozen=True, slots=True)
class Reign:
    """From `first` to `last` actions, both included, this candidate is the cheapest."""

    name: str
    first: int
    last: int | None
    """None: as far as one looks, which is `MOST_ACTIONS`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Who was chosen, and all that it takes to check it."""

    trust: Trust
    actions: int
    work_s: float
    weights: Weights
    eligible: tuple[Cost, ...]
    """Cheapest first; never empty."""
    excluded: tuple[Excluded, ...]
    crossovers: tuple[Crossover, ...]
    """Of any two that are eligible, shortest first; each action has as much work as in the question."""
    reigns: tuple[Reign, ...]
    """Who is cheapest at which length, shortest first."""
    why: str

    @property
    def chosen(self) -> Candidate:
        """The cheapest that is eligible."""
        return self.eligible[0].candidate


def choose(
    candidates: Sequence[Candidate],
    trust: Trust,
    expected_actions: int,
    expected_work_s: float,
    weights: Weights | None = None,
    *,
    accept_emulated: bool = False,
) -> Decision:
    """The cheapest candidate that `trust` allows, for a rollout of so many actions and so much work.

    Work is what commands take on the fastest of all. Of two that cost the same, the stronger wall wins, then the one
    that was named first. An emulated processor's wall counts for no more than a container's unless `accept_emulated`
    says so: makers of emulators (QEMU's TCG) do not promise that code which attacks stays inside.

    Raises InvalidRequest for numbers or names that cannot be, and Unsupported if no candidate is allowed.
    """
    weights = weights if weights is not None else Weights()
    _check(candidates, expected_actions, expected_work_s)
    costs = [cost_of(each, expected_actions, expected_work_s, weights) for each in candidates]
    refused = {each.name: _refusal(each, trust, accept_emulated) for each in candidates}
    eligible = [cost for cost in costs if not refused[cost.candidate.name]]
    excluded = tuple(Excluded(cost, why) for cost in costs if (why := refused[cost.candidate.name]))
    if not eligible:
        raise _nobody(trust, excluded)
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
    """What a rollout of so many actions, at least one, and so much work costs on a candidate, term by term."""
    gib, failing = candidate.memory_bytes / _GIB, candidate.failure_rate
    overhead_s, slow_work_s = actions * candidate.action_overhead_s, work_s * candidate.slowdown
    life_s = candidate.acquire_s + overhead_s + slow_work_s
    paid = weights.second * life_s + weights.gib_second * gib * life_s
    failure = failing * (paid + weights.lost_rollout)
    of_a_second = (weights.second + weights.gib_second * gib) * (1 + failing)
    return Cost(
        candidate,
        life_s,
        acquire=weights.second * candidate.acquire_s,
        actions=weights.second * overhead_s,
        work=weights.second * slow_work_s,
        memory=weights.gib_second * gib * life_s,
        failure=failure,
        total=paid + failure,
        fixed=of_a_second * candidate.acquire_s + failing * weights.lost_rollout,
        per_action=of_a_second * (overhead_s + slow_work_s) / actions,
    )


def _refusal(candidate: Candidate, trust: Trust, accept_emulated: bool) -> str:
    """Why this candidate may not be taken; empty if it may."""
    least = trust.least_isolation
    if candidate.isolation < least:
        return f"its wall is {candidate.isolation.label}; {trust} takes {least.label} or stronger"
    if candidate.emulated and least > Isolation.CONTAINER and not accept_emulated:
        return f"its processor is emulated, which is no wall for {trust} code"
    return ""


def _nobody(trust: Trust, excluded: Sequence[Excluded]) -> Unsupported:
    told = "; ".join(f"{each.cost.candidate.name}: {each.reason}" for each in excluded)
    return Unsupported(
        f"nothing here is a wall for the trust class {str(trust)!r} ({told})",
        hint="gvisor is one for `untrusted`, a microvm or vm on a machine with KVM for `hostile`",
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
    if not 0 <= value <= most:  # what is not a number is not within anything either
        raise InvalidRequest(f"{name} is {value!r:.40}; it must lie between 0 and {most:g}")
