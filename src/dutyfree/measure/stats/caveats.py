"""Caveats: reasons to doubt a number. The meaning of a code never changes; the text is made for each number."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.design.study import Condition
from dutyfree.measure.stats.estimate import Caveat

FEW_SANDBOXES: Final = 12
"""With fewer sandboxes an interval has a caveat."""
RESIDUE_LIMIT: Final = 0.02
FLOOR_LIMIT: Final = 0.05
LATENESS_LIMIT: Final = 0.10
LATENESS_LIMIT_MS: Final = 1.0
"""A smaller delay does not count as late: no trial starts at exactly the planned microsecond."""
MISFIT_LIMIT: Final = 0.10


class Code(StrEnum):
    """All kinds of caveats."""

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
    NOT_INTERLEAVED = "not-interleaved"
    BELOW_ZERO = "below-zero"


def few_sandboxes(n: int) -> Caveat:
    """There are too few sandboxes to rely on the interval's 95 %."""
    return Caveat(Code.FEW_SANDBOXES, f"only {n} sandbox{'' if n == 1 else 'es'}; intervals need {FEW_SANDBOXES}")


def few_blocks(n: int) -> Caveat:
    """There are too few blocks to rely on the interval's 95 %."""
    return Caveat(Code.FEW_SANDBOXES, f"only {n} block{'' if n == 1 else 's'}; intervals need {FEW_SANDBOXES}")


def no_bound(what: str, n: int, needed: int) -> Caveat:
    """The sample is too small for a distribution-free bound."""
    return Caveat(Code.NO_BOUND, f"{n} sandboxes give {what} no 95 % bound; that takes {needed}")


def clustered(n: int, effective: int) -> Caveat:
    """Sandboxes that ran at once are not independent, so that the sample is effectively smaller."""
    return Caveat(Code.CLUSTERED, f"sandboxes that ran at once resemble each other: {n} count as {effective}")


def few_waves(waves: int) -> Caveat:
    """There are too few waves to know how much waves differ."""
    count = "one wave" if waves == 1 else f"{waves} waves"
    return Caveat(Code.CLUSTERED, f"measured in {count}: the interval does not include how much waves differ")


def stragglers(n: int) -> Caveat:
    """The sample is so skewed that the interval of its mean may be too narrow."""
    return Caveat(Code.STRAGGLERS, f"a few slow values among {n} dominate this mean; its interval may be too narrow")


def of_mean(by_block: NDArray[np.float64]) -> tuple[Caveat, ...]:
    """The caveats of a mean and its interval.

    A skewed sample needs at least 25 times the square of its skewness in values (Cochran's rule).
    """
    n = len(by_block)
    if n < FEW_SANDBOXES:
        return (few_blocks(n),)
    spread = float(by_block.std())
    skewness = float(np.mean((by_block - by_block.mean()) ** 3)) / spread**3 if spread > 0 else 0.0
    return (stragglers(n),) if n < 25 * skewness**2 else ()


def residue(over: int, n: int, most: float) -> Caveat:
    """Too much of the time is covered by no span."""
    return Caveat(
        Code.RESIDUE, f"{over} of {n} trials have over {RESIDUE_LIMIT:.0%} of their time unattributed, up to {most:.1%}"
    )


def drift(change: float, p_value: float) -> Caveat:
    """The condition became slower or faster while it was measured."""
    trend = "slower" if change > 0 else "faster"
    return Caveat(Code.DRIFT, f"became {abs(change):.1%} {trend} from its first trial to its last (p = {p_value:.1g})")


def emulated(arm: str) -> Caveat:
    """The sandbox's processor was emulated in software."""
    return Caveat(Code.EMULATED, f"{arm} ran on an emulated processor; on a real one it is many times faster")


def fewer_trials(attempted: int, others: int, why: str) -> Caveat:
    """The arm has fewer trials than the arms that it is compared with."""
    return Caveat(Code.FEWER_TRIALS, f"{attempted} trials, not {others}: {why}")


def cut_short(ran: int, planned: int, why: str) -> Caveat:
    """The study did not run all of its trials."""
    return Caveat(Code.CUT_SHORT, f"{ran} of {planned} planned trials were run: {why or 'the study was cut short'}")


def failures(failed: int, attempted: int) -> Caveat:
    """Some trials failed and have no time; those that completed may be faster than the failed ones would have been."""
    return Caveat(Code.FAILURES, f"{failed} of {attempted} trials failed and are not in this number")


def nothing_completed(condition: Condition, attempted: int) -> Caveat:
    """No trial completed, so that there is no number."""
    setting = f"{condition.workload}, length {condition.length}, {condition.warmth}, {condition.concurrency} at once"
    return Caveat(Code.NOTHING_COMPLETED, f"none of the {attempted} trials on {condition.arm} completed ({setting})")


def not_cold(found: int) -> Caveat:
    """Trials that should have been cold were not; their times are not used."""
    return Caveat(Code.NOT_COLD, f"{found} trials were not cold; they count as failed")


def not_evicted() -> Caveat:
    """Cold trials started with a warm page cache."""
    return Caveat(Code.NOT_EVICTED, "cold means a new sandbox; the machine's page cache was not evicted before it")


def floor_visible(share: float) -> Caveat:
    """The instrument's own time is a visible part of the number."""
    return Caveat(Code.FLOOR_VISIBLE, f"{share:.0%} of it is the instrument's own floor, which is not subtracted")


def no_floor() -> Caveat:
    """The instrument's own time was not measured."""
    return Caveat(Code.NO_FLOOR, "no trial of a null substrate completed: the instrument's own floor is not known")


def overload(late: float) -> Caveat:
    """Trials arrive faster than they are served; the longer that lasts, the later they begin."""
    return Caveat(Code.OVERLOAD, f"overloaded: the median trial began late by {late:.0%} of its own duration")


def unbalanced_blocks(paired: int, blocks: int) -> Caveat:
    """Some blocks have completed trials of only one of the two arms."""
    return Caveat(Code.UNBALANCED_BLOCKS, f"only {paired} of {blocks} blocks have a completed trial of both")


def not_a_line(misfit: float) -> Caveat:
    """The model `fixed + length x per action` does not hold here."""
    return Caveat(Code.NOT_A_LINE, f"time does not grow in a line with length: the fit is off by up to {misfit:.0%}")


def may_not_cross() -> Caveat:
    """The two lines are so similar that they may not cross at all."""
    return Caveat(Code.MAY_NOT_CROSS, "these trials do not show whether the two cross at all")


def extrapolated(length: float, lengths: Sequence[int]) -> tuple[Caveat, ...]:
    """No trajectory as long, or as short, was measured."""
    if lengths[0] <= length <= lengths[-1]:
        return ()
    side, end = ("longest", lengths[-1]) if length > lengths[-1] else ("shortest", lengths[0])
    return (Caveat(Code.EXTRAPOLATED, f"{length:,.0f} actions are beyond the {side} trajectory measured, {end}"),)


def one_length(length: int) -> Caveat:
    """Only one length was measured, so that fixed and per-action time cannot be separated by comparing lengths."""
    measured = f"only trajectories of {length} action{'' if length == 1 else 's'} were measured"
    return Caveat(Code.ONE_LENGTH, f"{measured}: the time per action is taken from within them")


def unavailable(arm: str, why: str) -> Caveat:
    """An arm that could not be measured."""
    return Caveat(Code.UNAVAILABLE, f"{arm} could not run here: {why}")


def different_hosts(facts: Sequence[str]) -> Caveat:
    """The two results are from different machines, which may explain a difference."""
    return Caveat(Code.DIFFERENT_HOSTS, f"the machines differ ({'; '.join(facts)}), which may explain a difference")


def different_arms(arm: str, facts: Sequence[str]) -> Caveat:
    """An arm has the same name but different facts in the two results."""
    return Caveat(Code.DIFFERENT_ARMS, f"{arm} is not the same on both sides ({'; '.join(facts)})")


def different_studies(what: Sequence[str]) -> Caveat:
    """The two results are of different studies."""
    return Caveat(Code.DIFFERENT_STUDIES, f"the studies differ in: {', '.join(what)}")


def different_actions(workload: str, names: Sequence[str]) -> Caveat:
    """A workload has the same name but different actions in the two results."""
    return Caveat(Code.DIFFERENT_ACTIONS, f"{workload} has actions that only one side ran: {', '.join(names)}")


def below_zero(what: str) -> Caveat:
    """The interval of a time, or of the gap between two, reaches below zero."""
    return Caveat(Code.BELOW_ZERO, f"the trials allow for less than zero, so that the interval begins there: {what}")


def rounded(text: str) -> Caveat:
    """An input that was published rounded."""
    return Caveat(Code.ROUNDED, text)


def not_interleaved(machine: float | None) -> Caveat:
    """Two runs at different times; `machine` is the change of the reference between them, None if it is not known."""
    if machine is None:
        known = "no reference shows how much the machine changed between them"
    else:
        trend = "slower" if machine > 1 else "faster"
        known = f"the machine itself was {abs(machine - 1):.1%} {trend} in the second"
    return Caveat(Code.NOT_INTERLEAVED, f"the runs were not interleaved: {known}")
