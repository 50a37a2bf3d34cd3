"""The ledger is exact: checked instant by instant against the obvious slow way."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.model import Phase, Span
from dutyfree.trace import account

instants = st.integers(0, 40)
spans = st.builds(Span, phase=st.sampled_from(Phase), start_ns=instants, end_ns=instants)
intervals = st.tuples(instants, instants).map(sorted)


def owner(covering: list[tuple[int, Span]]) -> Phase:
    """The phase that has an instant: latest start, then earliest end, then first reported."""
    if not covering:
        return Phase.UNATTRIBUTED
    return min(covering, key=lambda item: (-item[1].start_ns, item[1].end_ns, item[0]))[1].phase


@given(st.lists(spans, max_size=12), intervals)
def test_each_instant_has_exactly_one_owner(given_spans: list[Span], interval: list[int]) -> None:
    start_ns, end_ns = interval
    expected = dict.fromkeys(Phase, 0)
    for instant in range(start_ns, end_ns):
        covering = [(i, span) for i, span in enumerate(given_spans) if span.start_ns <= instant < span.end_ns]
        expected[owner(covering)] += 1
    assert dict(account(given_spans, start_ns, end_ns).by_phase) == expected


@given(st.lists(st.builds(Span, st.sampled_from(Phase), st.integers(), st.integers())), st.integers(), st.integers())
def test_the_parts_add_up_to_the_whole(given_spans: list[Span], one: int, other: int) -> None:
    ledger = account(given_spans, min(one, other), max(one, other))
    assert sum(ledger.by_phase.values()) == ledger.wall_ns == abs(one - other)
    assert ledger.tax_ns + ledger.execute_ns == ledger.wall_ns
    assert all(value >= 0 for value in ledger.by_phase.values())


@given(st.lists(spans, max_size=12, unique_by=lambda span: (span.start_ns, span.end_ns)), st.randoms())
def test_the_order_of_reports_does_not_matter(given_spans: list[Span], shuffler: random.Random) -> None:
    shuffled = list(given_spans)
    shuffler.shuffle(shuffled)
    assert account(given_spans, 5, 35) == account(shuffled, 5, 35)


@given(st.lists(spans, max_size=12), instants, instants, instants)
def test_two_halves_make_the_whole(given_spans: list[Span], a: int, b: int, c: int) -> None:
    start_ns, middle_ns, end_ns = sorted((a, b, c))
    whole = account(given_spans, start_ns, end_ns)
    first, second = account(given_spans, start_ns, middle_ns), account(given_spans, middle_ns, end_ns)
    assert all(whole.by_phase[phase] == first.by_phase[phase] + second.by_phase[phase] for phase in Phase)


def test_a_gap_is_visible() -> None:
    ledger = account([Span(Phase.CREATE, 0, 10), Span(Phase.EXECUTE, 15, 20)], 0, 30)
    assert ledger.by_phase[Phase.CREATE] == 10
    assert (ledger.execute_ns, ledger.unattributed_ns, ledger.tax_ns) == (5, 15, 25)


def test_the_innermost_of_nested_spans_wins() -> None:
    nested = [Span(Phase.READY, 2, 4), Span(Phase.SETUP, 1, 6), Span(Phase.CREATE, 0, 10)]
    ledger = account(nested, 0, 10)
    assert [ledger.by_phase[phase] for phase in (Phase.CREATE, Phase.SETUP, Phase.READY)] == [5, 3, 2]


def test_of_overlapping_actions_the_latest_started_wins() -> None:
    ledger = account([Span(Phase.DISPATCH, 0, 10), Span(Phase.EXECUTE, 5, 15)], 0, 15)
    assert (ledger.by_phase[Phase.DISPATCH], ledger.execute_ns) == (5, 10)


def test_what_lies_outside_is_clipped() -> None:
    ledger = account([Span(Phase.EXECUTE, -100, 100), Span(Phase.CREATE, 200, 300)], 0, 10)
    assert (ledger.execute_ns, ledger.tax_ns) == (10, 0)


def test_an_interval_that_runs_backwards_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        account([], 10, 9)
