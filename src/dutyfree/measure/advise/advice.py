"""Advice: the decision, its evidence, the sizes of pools, and the caveats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Any, Final

from dutyfree.choose.decision import Candidate, Decision, Weights, choose, cost_of
from dutyfree.choose.trust import Trust
from dutyfree.measure.advise import sizes
from dutyfree.measure.advise.evidence import Evidence, Gathered, beyond, gather
from dutyfree.measure.advise.sizes import DEFAULT_MISS_COST, Announced, Unannounced
from dutyfree.measure.design.study import Warmth
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats import doubts
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.stats.examined import examine
from dutyfree.measure.stats.findings import Setting
from dutyfree.model import Isolation

ASSUMPTIONS: Final = (
    "each action has the same amount of work, at any length of the rollout",
    "a rollout fails as often as a trial of the study did, at any length",
    "no rollout waits for a sandbox to be destroyed",
)
ASSUMED_OF_REQUESTS: Final = "unannounced requests are independent; a sandbox that is taken is replaced at once"


class Code(StrEnum):
    """Caveats that only advice has; the others are those of the study."""

    NO_MEMORY = "no-memory"
    UNENFORCED = "unenforced"
    TOO_CLOSE = "too-close"
    NO_LEAD = "no-lead"


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asks."""

    trust: Trust = Trust.MODEL
    actions: int = 50
    work_s: float = 60.0
    """The total time of the rollout's commands on the fastest arm."""
    workload: str | None = None
    length: int | None = None
    """The length of the trials to use; None: `evidence.gather` chooses."""
    warmth: Warmth = Warmth.COLD
    weights: Weights = field(default_factory=Weights)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """The memory of a sandbox, by arm: a study does not measure it."""
    accept_emulated: bool = False
    prompts: int | None = None
    group: int = 8
    rate_per_s: float | None = None
    miss_cost: float = DEFAULT_MISS_COST


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer, with everything that is needed to check it."""

    study: str
    setting: Setting
    """The setting of the trials that the numbers are made from."""
    fastest: str
    decision: Decision
    evidence: tuple[Evidence, ...]
    """In the order of the study's arms."""
    left_out: Mapping[str, str]
    announced: Announced | None
    unannounced: Unannounced | None
    caveats: tuple[Caveat, ...]
    """Caveats of the study and of the decision; those of one arm are in its evidence."""
    assumptions: tuple[str, ...]
    kind: str = "advice"

    def of(self, arm: str) -> Evidence:
        """The evidence of an arm that is not left out."""
        return next(each for each in self.evidence if each.candidate.name == arm)

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        content: dict[str, Any] = _plain(asdict(self))
        return {"chosen": self.decision.chosen.name} | content


def advise(results: Results, question: Question) -> Advice:
    """Choose an arm for a rollout, from a study's results.

    Raises InvalidRequest if the study has no trials for the question, Unsupported if none of its arms has a wall that
    the trust class allows.
    """
    examined = examine(results)
    gathered = gather(
        results,
        examined,
        workload=question.workload,
        length=question.length,
        warmth=question.warmth,
        actions=question.actions,
        memory_bytes=question.memory_bytes,
    )
    evidence = tuple(replace(each, caveats=tuple(_of_arm(each))) for each in gathered.arms)
    decision = choose(
        [each.candidate for each in evidence],
        question.trust,
        question.actions,
        question.work_s,
        question.weights,
        accept_emulated=question.accept_emulated,
    )
    chosen = next(each for each in evidence if each.candidate.name == decision.chosen.name)
    unannounced = _unannounced(chosen, decision, question)
    of_study = doubts.of_study(results, examined.failures)
    found = (*of_study, *beyond(gathered, question.actions), *_of_decision(decision, gathered, question))
    return Advice(
        study=results.study.name,
        setting=gathered.setting,
        fastest=gathered.fastest,
        decision=decision,
        evidence=evidence,
        left_out=gathered.left_out,
        announced=_announced(chosen, question),
        unannounced=unannounced,
        caveats=tuple(dict.fromkeys(found)),
        assumptions=ASSUMPTIONS if unannounced is None else (*ASSUMPTIONS, ASSUMED_OF_REQUESTS),
    )


def _announced(chosen: Evidence, question: Question) -> Announced | None:
    if question.prompts is None:
        return None
    rate = chosen.failures
    return sizes.announced(question.prompts, question.group, rate.value, 1.0 if rate.high is None else rate.high)


def _unannounced(chosen: Evidence, decision: Decision, question: Question) -> Unannounced | None:
    if question.rate_per_s is None or chosen.lead is None:
        return None
    life_s = decision.eligible[0].life_s
    return sizes.unannounced(question.rate_per_s, chosen.lead.value, life_s, question.miss_cost)


def _of_arm(evidence: Evidence) -> Iterator[Caveat]:
    """The caveats of an arm, each once."""
    estimates = (evidence.acquire, evidence.action_overhead, evidence.slowdown, evidence.failures)
    own = (each for estimate in estimates for each in estimate.caveats)
    yield from dict.fromkeys((*evidence.caveats, *own))
    if evidence.unenforced:
        yield Caveat(Code.UNENFORCED, f"its sandboxes do not enforce: {', '.join(evidence.unenforced)}")


def _of_decision(decision: Decision, gathered: Gathered, question: Question) -> Iterator[Caveat]:
    eligible = [cost.candidate.name for cost in decision.eligible]
    unknown = [name for name in eligible if name not in question.memory_bytes]
    if unknown and question.weights.gib_second:
        text = "a study does not measure the memory of a sandbox; it counts as zero here"
        yield Caveat(Code.NO_MEMORY, f"{text} (for {', '.join(unknown)})")
    by_name = {each.candidate.name: each for each in gathered.arms}
    best, *others = (by_name[name] for name in eligible)
    least_and_most = {each.candidate.name: _bounds(each, decision) for each in (best, *others)}
    _, most = least_and_most[best.candidate.name]
    close = [other.candidate.name for other in others if most > least_and_most[other.candidate.name][0]]
    if close:
        costs = ", ".join(f"{name} ({_range(*least_and_most[name])})" for name in (best.candidate.name, *close))
        yield Caveat(Code.TOO_CLOSE, f"these may change places, within the intervals of the measurement: {costs}")
    if question.rate_per_s is not None and best.lead is None:
        yield Caveat(Code.NO_LEAD, f"no cold trial of {best.candidate.name}: how long it takes to refill is not known")


def _bounds(evidence: Evidence, decision: Decision) -> tuple[float, float]:
    """The lowest and the highest cost of a rollout: every input at the low or the high end of its interval.

    Cost grows with each input. A bound that the sample cannot give counts as zero, or as infinite.
    """

    def total(candidate: Candidate) -> float:
        return cost_of(candidate, decision.actions, decision.work_s, decision.weights).total

    terms = {
        "acquire_s": evidence.acquire,
        "action_overhead_s": evidence.action_overhead,
        "slowdown": evidence.slowdown,
        "failure_rate": evidence.failures,
    }
    low: dict[str, Any] = {name: max(0.0, each.low or 0.0) for name, each in terms.items()}
    high: dict[str, Any] = {name: each.high for name, each in terms.items()}
    most = inf if None in high.values() else total(replace(evidence.candidate, **high))
    return total(replace(evidence.candidate, **low)), most


def _range(least: float, most: float) -> str:
    return "no bound" if most == inf else f"{least:,.3f} to {most:,.3f}"


def _plain(value: Any) -> Any:
    match value:
        case Isolation():
            return value.label
        case StrEnum():
            return str(value)
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
