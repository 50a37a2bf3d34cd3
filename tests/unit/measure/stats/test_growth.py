"""Lines through lengths, and where they cross."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.measure.design.study import Arm, Condition, Grid, Study
from dutyfree.measure.results.records import Results, Trial, TrialOutcome
from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.examined import Examined
from dutyfree.measure.stats.findings import Crossover, Growth
from dutyfree.measure.stats.growth import Lengths, by_length, crossovers, growth, weights_at
from dutyfree.measure.stats.metrics import NS_PER_MS
from dutyfree.model import Phase

LENGTHS = (1, 10, 50, 150)


def measured(lines: dict[str, tuple[float, float]], *, noise: float = 0.1, blocks: int = 40, seed: int = 1) -> Results:
    """Arms by (fixed, per action) in milliseconds, with noise that the arms of a block share and noise of their own."""
    numbers, trials = random.Random(seed), []
    for length in LENGTHS:
        for block in range(blocks):
            mood = numbers.lognormvariate(0, noise)
            for arm, (fixed_ms, per_action_ms) in lines.items():
                wall_ns = round(
                    (fixed_ms + length * per_action_ms) * mood * numbers.lognormvariate(0, noise) * NS_PER_MS
                )
                number = len(trials)
                condition = Condition(arm, "T1", length)
                ledger = {Phase.CREATE: wall_ns}
                trials.append(
                    Trial(
                        number,
                        number,
                        length * blocks + block,
                        condition,
                        TrialOutcome.COMPLETED,
                        wall_ns,
                        None,
                        ledger,
                    )
                )
    arms = tuple(Arm(arm, arm) for arm in lines)
    study = Study("lines", arms, (Grid(blocks, ("T1",), lengths=LENGTHS),))
    return Results(study, {}, {}, tuple(trials), planned=len(trials))


def found_in(results: Results) -> tuple[list[Growth], tuple[Crossover, ...]]:
    completed: dict[Condition, list[Trial]] = {}
    for trial in results.trials:
        completed.setdefault(trial.condition, []).append(trial)
    examined = Examined(completed, completed, {}, {}, {}, {})
    lengths = by_length(completed)
    lines = [line for each in lengths if (line := growth(each, 1, examined)) is not None]
    return lines, crossovers(lengths, 1, examined)


def test_the_line_is_found_and_its_intervals_hold_the_truth() -> None:
    held = []
    for seed in range(40):
        (line,), _ = found_in(measured({"cell": (200.0, 7.0)}, seed=seed))
        for estimate, truth in ((line.fixed, 200.0 * 1.01), (line.per_action, 7.0 * 1.01)):  # the noise has mean 1.01
            assert estimate.low is not None
            assert estimate.high is not None
            held.append(estimate.low <= truth <= estimate.high)
    assert np.mean(held) >= 0.88
    assert line.lengths == LENGTHS
    assert line.worst_misfit < 0.1


def test_two_arms_cross_where_their_lines_do() -> None:
    """Quick to start and slow to act, against the reverse: (1000 - 100) / (20 - 5) = 60 actions."""
    held = []
    for seed in range(40):
        _, (crossing,) = found_in(measured({"exec": (100.0, 20.0), "guest": (1000.0, 5.0)}, seed=seed))
        assert (crossing.short_arm, crossing.long_arm) == ("exec", "guest")
        assert crossing.length is not None
        assert crossing.length.low is not None
        assert crossing.length.high is not None
        held.append(crossing.length.low <= 60 <= crossing.length.high)
    assert np.mean(held) >= 0.88
    assert crossing.length.value == pytest.approx(60, rel=0.2)


def test_arms_that_never_meet_do_not_cross() -> None:
    _, (crossing,) = found_in(measured({"slow": (300.0, 9.0), "fast": (100.0, 3.0)}))
    assert crossing.length is None
    assert (crossing.short_arm, crossing.long_arm) == ("fast", "slow")


def test_arms_that_are_alike_may_not_cross_and_say_so() -> None:
    sure = 0
    for seed in range(40):
        _, (crossing,) = found_in(measured({"one": (300.0, 9.0), "other": (300.0, 9.0)}, noise=0.3, seed=seed))
        if crossing.length is not None:
            doubted = Code.MAY_NOT_CROSS in {each.code for each in crossing.caveats}
            assert doubted == (crossing.length.high is None or crossing.length.low == 1.0)
            sure += not doubted
    assert sure <= 4  # one in twenty is wrong, as of any 95 %


def test_a_crossing_outside_of_what_was_measured_says_so() -> None:
    """(1000 - 100) / (20 - 5) = 60 actions: measured on either side of it, and then not."""
    whole = measured({"exec": (100.0, 20.0), "guest": (1000.0, 5.0)}, noise=0.02)
    for kept, told in (({10, 150}, False), ({1, 10, 50}, True), ({150}, None)):
        trials = tuple(trial for trial in whole.trials if trial.condition.length in kept)
        _, found = found_in(replace(whole, trials=trials))
        said = [Code.EXTRAPOLATED in {each.code for each in crossing.caveats} for crossing in found]
        assert said == ([] if told is None else [told])
    early = measured({"exec": (100.0, 20.0), "guest": (160.0, 5.0)}, noise=0.002)  # at 4 actions
    _, (crossing,) = found_in(replace(early, trials=tuple(t for t in early.trials if t.condition.length > 1)))
    assert "4 actions are beyond the shortest trajectory measured, 10" in [each.text for each in crossing.caveats]


def test_stragglers_that_decide_a_mean_are_a_caveat_of_its_line() -> None:
    results = measured({"cell": (200.0, 7.0)})
    slow = tuple(
        replace(trial, wall_ns=trial.wall_ns * 20) if trial.condition.length == 10 and trial.number % 40 == 0 else trial
        for trial in results.trials
    )
    for trials, told in ((results.trials, False), (slow, True)):
        (line,), _ = found_in(replace(results, trials=trials))
        assert all((Code.STRAGGLERS in {c.code for c in one.caveats}) is told for one in (line.fixed, line.per_action))


def test_what_does_not_grow_in_a_line_carries_a_caveat() -> None:
    results = measured({"cell": (200.0, 7.0)})
    bent = tuple(
        replace(trial, wall_ns=trial.wall_ns * 3) if trial.condition.length == 50 else trial for trial in results.trials
    )
    (line,), _ = found_in(replace(results, trials=bent))
    assert Code.NOT_A_LINE in {each.code for each in line.caveats}


def test_one_length_alone_is_no_line() -> None:
    results = measured({"cell": (200.0, 7.0)})
    short = tuple(trial for trial in results.trials if trial.condition.length == 1)
    lines, crossings = found_in(replace(results, trials=short))
    assert lines == []
    assert crossings == ()


@given(
    st.dictionaries(st.integers(0, 500), st.floats(1.0, 1e6), min_size=2, max_size=5),
    st.integers(1, 1000),
)
def test_a_length_that_was_measured_is_its_own_mean(means: dict[int, float], other: int) -> None:
    lengths = Lengths(Condition("cell", "T1"), {length: {0: (means[length], 1)} for length in sorted(means)})
    for length, mean in means.items():
        assert float(weights_at(lengths, length) @ lengths.means_ms()) == pytest.approx(mean)
    between = float(weights_at(lengths, other) @ lengths.means_ms())
    if min(means) <= other <= max(means):
        assert min(means.values()) * (1 - 1e-9) <= between <= max(means.values()) * (1 + 1e-9)


@given(st.floats(0.0, 1e4), st.floats(0.01, 1e3), st.integers(1, 1000))
def test_what_lies_on_a_line_is_found_on_it_at_any_length(fixed: float, per_action: float, length: int) -> None:
    blocks = {each: {0: (fixed + each * per_action, 1)} for each in LENGTHS}
    lengths = Lengths(Condition("cell", "T1"), blocks)
    found = float(weights_at(lengths, length) @ lengths.means_ms())
    assert found == pytest.approx(fixed + length * per_action, rel=1e-6)
