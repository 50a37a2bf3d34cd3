"""The reasons to doubt a number, each with a code that never changes its meaning and a text made for the occasion."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.design.study import Condition
from dutyfree.measure.stats.estimate import Caveat

FEW_SANDBOXES: Final = 12
"""Below so many an interval is shown with a caveat."""
RESIDUE_LIMIT: Final = 0.02
FLOOR_LIMIT: Final = 0.05
LATENESS_LIMIT: Final = 0.10
LATENESS_LIMIT_MS: Final = 1.0
"""Nobody begins on the microsecond: below this no one is called late."""
MISFIT_LIMIT: Final = 0.10


class Code(StrEnum):
    """Every caveat that there is."""

    FEW_SANDBOXES = "few-sandboxes"
    NO_BOUND = "no-bound"
    CLUSTERED = "clustered"
    STRAGGLERS = "stragglers"
    RESIDUE = "residue"
    DRIFT = "drift"
    EMULATED = "emulated"
    FEWER_TRIALS = "fewer-trials"
    CUT_SHORT = "cut-short"
    FAILURES = "failures"
    NOTHING_COMPLETED = "nothing-completed"
    NOT_COLD = "not-cold"
    NOT_EVICTED = "not-evicted"
    FLOOR_VISIBLE = "floor-visible"
    NO_FLOOR = "no-floor"
    OVERLOAD = "overload"
    UNBALANCED_BLOCKS = "unbalanced-blocks"
    NOT_A_LINE = "not-a-line"
    MAY_NOT_CROSS = "may-not-cross"
    EXTRAPOLATED = "extrapolated"
    ONE_LENGTH = "one-length"
    UNAVAILABLE = "unavailable"
    DIFFERENT_HOSTS = "different-hosts"
    DIFFERENT_ARMS = "different-arms"
    DIFFERENT_STUDIES = "different-studies"
    DIFFERENT_ACTIONS = "different-actions"
    ROUNDED = "rounded"


def few_sandboxes(n: int) -> Caveat:
    """The interval stands on so few sandboxes that its 95 % is a hope."""
    return Caveat(Code.FEW_SANDBOXES, f"only {n} sandbox{'' if n == 1 else 'es'}; intervals need {FEW_SANDBOXES}")


def few_blocks(n: int) -> Caveat:
    """The same, of an interval by blocks."""
    return Caveat(Code.FEW_SANDBOXES, f"only {n} block{'' if n == 1 else 's'}; intervals need {FEW_SANDBOXES}")


def no_bound(what: str, n: int, needed: int) -> Caveat:
    """There is no distribution-free bound at this size of the sample."""
    return Caveat(Code.NO_BOUND, f"{n} sandboxes give {what} no 95 % bound; that takes {needed}")


def clustered(n: int, effective: int) -> Caveat:
    """Sandboxes that ran at once are alike, so that they count for less."""
    return Caveat(Code.CLUSTERED, f"sandboxes that ran at once resemble each other: {n} tell as much as {effective}")


def few_waves(waves: int) -> Caveat:
    """How much one wave differs from another is not known."""
    told = "one wave" if waves == 1 else f"{waves} waves"
    return Caveat(Code.CLUSTERED, f"measured in {told}: the interval does not know how much waves differ")


def stragglers(n: int) -> Caveat:
    """Means of so skewed a sample are too sure of themselves."""
    return Caveat(Code.STRAGGLERS, f"a few slow ones among {n} decide this mean; its interval may be too narrow")


def of_mean(by_block: NDArray[np.float64]) -> tuple[Caveat, ...]:
    """What there is to doubt about a mean and its interval.

    Skewed samples need to be large: 25 times the square of their skewness, by Cochran's rule.
    """
    n = len(by_block)
    if n < FEW_SANDBOXES:
        return (few_blocks(n),)
    spread = float(by_block.std())
    skewness = float(np.mean((by_block - by_block.mean()) ** 3)) / spread**3 if spread > 0 else 0.0
    return (stragglers(n),) if n < 25 * skewness**2 else ()


def residue(over: int, n: int, most: float) -> Caveat:
    """Time that no span covers."""
    return Caveat(
        Code.RESIDUE, f"{over} of {n} trials have over {RESIDUE_LIMIT:.0%} of their time unattributed, up to {most:.1%}"
    )


def drift(change: float, p_value: float) -> Caveat:
    """The condition did not stay the same while it was measured."""
    trend = "slower" if change > 0 else "faster"
    return Caveat(Code.DRIFT, f"became {abs(change):.1%} {trend} from its first trial to its last (p = {p_value:.1g})")


def emulated(arm: str) -> Caveat:
    """Its processor is a program."""
    return Caveat(Code.EMULATED, f"{arm} ran on an emulated processor; on a real one it is many times faster")


def fewer_trials(attempted: int, others: int, why: str) -> Caveat:
    """The number stands on less than those beside it."""
    return Caveat(Code.FEWER_TRIALS, f"{attempted} trials, not {others}: {why}")


def cut_short(ran: int, planned: int, why: str) -> Caveat:
    """The study is not whole."""
    return Caveat(Code.CUT_SHORT, f"{ran} of {planned} planned trials were run: {why or 'the study was cut short'}")


def failures(failed: int, attempted: int) -> Caveat:
    """Some trials gave no time; those that did may be the lucky ones."""
    return Caveat(Code.FAILURES, f"{failed} of {attempted} trials failed and are not in this number")


def nothing_completed(condition: Condition, attempted: int) -> Caveat:
    """There is no number."""
    told = f"{condition.workload}, length {condition.length}, {condition.warmth}, {condition.concurrency} at once"
    return Caveat(Code.NOTHING_COMPLETED, f"none of the {attempted} trials on {condition.arm} completed ({told})")


def not_cold(found: int) -> Caveat:
    """Trials that were to be cold were not, and are left out."""
    return Caveat(Code.NOT_COLD, f"{found} of the trials turned out not to be cold; they count as failed")


def not_evicted() -> Caveat:
    """What "cold" means here."""
    return Caveat(Code.NOT_EVICTED, "cold means a new sandbox; the machine's page cache was not evicted before it")


def floor_visible(share: float) -> Caveat:
    """The instrument sees itself."""
    return Caveat(Code.FLOOR_VISIBLE, f"{share:.0%} of it is the instrument's own floor, which is not subtracted")


def no_floor() -> Caveat:
    """Nobody measured what the instrument itself takes."""
    return Caveat(Code.NO_FLOOR, "no trial of a null substrate completed: the instrument's own floor is not known")


def overload(late: float) -> Caveat:
    """Trials arrive faster than they are served; how late they begin depends on how long that goes on."""
    return Caveat(Code.OVERLOAD, f"overloaded: the median trial began late by {late:.0%} of its own duration")


def unbalanced_blocks(paired: int, blocks: int) -> Caveat:
    """Some blocks could not be compared."""
    return Caveat(Code.UNBALANCED_BLOCKS, f"only {paired} of {blocks} blocks have a completed trial of both")


def not_a_line(misfit: float) -> Caveat:
    """The model `fixed + length x per action` does not hold here."""
    return Caveat(Code.NOT_A_LINE, f"time does not grow in a line with length: the fit is off by up to {misfit:.0%}")


def may_not_cross() -> Caveat:
    """The lines are too alike to say where they meet, or whether."""
    return Caveat(Code.MAY_NOT_CROSS, "the two may as well not cross at all, as far as these trials tell")


def extrapolated(length: float, lengths: Sequence[int]) -> tuple[Caveat, ...]:
    """Nothing so long, or so short, was measured."""
    if lengths[0] <= length <= lengths[-1]:
        return ()
    side, end = ("longest", lengths[-1]) if length > lengths[-1] else ("shortest", lengths[0])
    return (Caveat(Code.EXTRAPOLATED, f"{length:,.0f} actions are beyond the {side} trajectory measured, {end}"),)


def one_length(length: int) -> Caveat:
    """What is paid once and what for each action could not be told apart by comparing lengths."""
    told = f"only trajectories of {length} action{'' if length == 1 else 's'} were measured"
    return Caveat(Code.ONE_LENGTH, f"{told}: what an action takes is read off within them")


def unavailable(arm: str, why: str) -> Caveat:
    """An arm that could not take part."""
    return Caveat(Code.UNAVAILABLE, f"{arm} could not run here: {why}")


def different_hosts(facts: Sequence[str]) -> Caveat:
    """Two results of two machines: what differs may be the machine."""
    return Caveat(Code.DIFFERENT_HOSTS, f"the machines differ ({'; '.join(facts)}); so a difference may be theirs")


def different_arms(arm: str, facts: Sequence[str]) -> Caveat:
    """The same name, but not the same thing."""
    return Caveat(Code.DIFFERENT_ARMS, f"{arm} is not the same on both sides ({'; '.join(facts)})")


def different_studies(what: Sequence[str]) -> Caveat:
    """The two were not asked the same."""
    return Caveat(Code.DIFFERENT_STUDIES, f"the studies differ in: {', '.join(what)}")


def different_actions(workload: str, names: Sequence[str]) -> Caveat:
    """The same workload's name, but other actions."""
    return Caveat(Code.DIFFERENT_ACTIONS, f"{workload} has actions that only one side ran: {', '.join(names)}")


def rounded(text: str) -> Caveat:
    """An input that was published rounded."""
    return Caveat(Code.ROUNDED, text)
