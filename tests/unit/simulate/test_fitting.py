"""Contention that was put into a run is found in it, and none where there is none."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.simulate import fitting
from dutyfree.simulate.clock import NO_CONTENTION, Clock, Contention, Processor
from dutyfree.simulate.fitting import FEW, Took, fit

CORES = 2.0


def run(contention: Contention, seed: int, works: int = 600) -> tuple[list[Took], list[float]]:
    """Works that come in bursts to shared cores: as they were measured, and what each is alone."""
    numbers, clock = random.Random(seed), Clock()
    processor = Processor(clock, contention)
    took: list[Took] = []
    alone_s: list[float] = []

    def end(begun_s: float, number: int) -> None:
        took.append(Took("create", str(number), clock.now_s - begun_s, clock.now_s))

    def begin(number: int) -> None:
        processor.start(alone_s[number], end, clock.now_s, number)

    at_s = 0.0
    while len(alone_s) < works:
        for _ in range(numbers.randint(1, 8)):
            alone_s.append(numbers.lognormvariate(-5.5, 0.4))
            clock.after(at_s + numbers.random() * 0.005, begin, len(alone_s) - 1)
        at_s += 0.1
    clock.run()
    return took, alone_s


@pytest.mark.parametrize("capacity", [1.0, CORES])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_contention_is_found(capacity: float, exponent: float, seed: int) -> None:
    """As the speed of each operation beside others: a lower capacity and a higher exponent can mean the same."""
    real = Contention(capacity, exponent)
    took, alone_s = run(real, seed)
    found, alone = fit(took, CORES)
    for count in (1, 2, 4, 6):
        assert found.speed(count) == pytest.approx(real.speed(count), rel=0.25)
    assert fmean(each.seconds for each in alone) == pytest.approx(fmean(alone_s), rel=0.1)
    for each in alone:
        assert each.seconds == pytest.approx(alone_s[int(each.digest)], rel=0.4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_none_is_found_where_there_is_none(seed: int) -> None:
    took, _ = run(NO_CONTENTION, seed)
    assert fit(took, CORES) == (NO_CONTENTION, took)


def test_nothing_is_fitted_without_times_or_of_a_few() -> None:
    took, _ = run(Contention(CORES, 1.0), 1)
    untimed = [Took(each.operation, each.digest, each.seconds) for each in took]
    assert fit(untimed, CORES) == (NO_CONTENTION, untimed)
    assert fit(took[: FEW - 1], CORES) == (NO_CONTENTION, took[: FEW - 1])


def test_of_many_the_last_say_how_much_it_is_and_all_are_freed_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    took, alone_s = run(Contention(CORES, 1.0), 1)
    monkeypatch.setattr(fitting, "MANY", 300)
    found, alone = fit(took, CORES)
    assert found == fit(took[-300:], CORES)[0]
    assert len(alone) == len(took)
    assert fmean(each.seconds for each in alone) == pytest.approx(fmean(alone_s), rel=0.1)


MOMENTS = st.floats(0, 1e6, allow_subnormal=False)
OPERATIONS = st.builds(
    Took, st.sampled_from(["create", "reset"]), st.just(""), MOMENTS.map(lambda each: each / 1e3), MOMENTS | st.none()
)


@given(st.lists(OPERATIONS, max_size=60), st.floats(0.5, 64))
def test_whatever_was_recorded_something_sane_comes_of_it(took: list[Took], cores: float) -> None:
    found, alone = fit(took, cores)
    assert 0 <= found.exponent <= 2
    assert len(alone) == len(took)
    assert sum(each.seconds for each in alone) <= sum(each.seconds for each in took) * (1 + 1e-9)
    assert all(each.seconds >= 0 for each in alone)
