"""The counters of a bill: every nanosecond of a sandbox is counted once, and as what it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dutyfree.errors import CapacityError, LinkFailed
from dutyfree.model import Bill, Phase, PhaseTime, Span, Timing
from dutyfree.pool.billing import Billing, SpanSink, Spent
from dutyfree.trace import now_ns

MS = 1_000_000


def span(phase: Phase, start_ms: int, end_ms: int, name: str = "") -> Span:
    return Span(phase, start_ms * MS, end_ms * MS, "s", name)


def times(bill: Bill) -> dict[str, tuple[int, int, int]]:
    """By phase: waited, in calls, background, in ms."""
    return {str(each.phase): tuple(ns // MS for ns in _columns(each)) for each in bill.phases}  # type: ignore[misc]


def _columns(each: PhaseTime) -> tuple[int, int, int]:
    return each.waited_ns, each.used_ns, each.background_ns


def bill_of(billing: Billing, **open_leases: Any) -> Bill:
    return billing.bill("cell", **{"ready_ns": [], **open_leases})


def test_what_a_sandbox_does_alone_is_background_until_a_lease_waits_for_it() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    sink(span(Phase.CREATE, 0, 30))
    sink(span(Phase.READY, 30, 40))
    assert times(bill_of(billing)) == {"create": (0, 0, 30), "ready": (0, 0, 10)}
    sink.lease(spent := Spent(), 20 * MS, 45 * MS)  # asked for when the creation was under way
    assert times(bill_of(billing)) == {"queue": (5, 0, 0), "create": (10, 0, 20), "ready": (10, 0, 0)}
    assert spent.wait_ns == spent.tax_ns == 25 * MS
    assert spent.is_cold
    sink.released()
    sink(span(Phase.RESET, 100, 103))
    sink.lease(again := Spent(), 200 * MS, 201 * MS)
    assert not again.is_cold
    assert times(bill_of(billing))["reset"] == (0, 0, 3)
    assert times(bill_of(billing))["queue"] == (6, 0, 0)


def test_steps_of_a_phase_are_not_counted_twice() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    for each in ((0, 10, "pull"), (10, 14, "start"), (0, 15, "")):
        sink(span(Phase.CREATE, *each))
    assert times(bill_of(billing)) == {"create": (0, 0, 15)}
    sink.lease(Spent(), 0, 20 * MS)
    assert times(bill_of(billing)) == {"queue": (5, 0, 0), "create": (15, 0, 0)}


@pytest.mark.parametrize("in_one_call", [True, False])
def test_an_action_is_work_and_tax_of_its_lease(in_one_call: bool) -> None:
    seen: list[Span] = []
    billing = Billing()
    sink = SpanSink(billing, seen.append)
    sink.lease(spent := Spent(), 0, 0)
    timing = Timing("s", 0, 10 * MS, 6 * MS)
    if in_one_call:
        sink.on_timing(timing)
    else:
        for each in timing.spans():
            sink(each)
    bill = bill_of(billing)
    assert (bill.actions, bill.work_ns, bill.tax_ns) == (1, 6 * MS, 4 * MS)
    assert times(bill) == {"dispatch": (0, 2, 0), "observe": (0, 2, 0)}
    assert (spent.work_ns, spent.tax_ns) == (6 * MS, 4 * MS)
    assert tuple(seen) == timing.spans()


def test_actions_of_stages_are_setup_and_bound_files_are_the_leases() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    with sink.setup("s"):
        sink.on_timing(Timing("s", 0, 10 * MS, 6 * MS))
    setup_ns = bill_of(billing).background_ns
    assert [str(each.phase) for each in bill_of(billing).phases] == ["setup"]
    sink.on_timing(Timing("s", 20 * MS, 22 * MS, MS))  # a file that is bound to the lease which begins
    sink.lease(spent := Spent(), 19 * MS, 23 * MS)
    with sink.setup("s"):  # the lease resets its sandbox
        sink.on_timing(Timing("s", 30 * MS, 40 * MS, 6 * MS))
    bill = bill_of(billing)
    assert (bill.work_ns, bill.actions, spent.work_ns) == (0, 0, 0)
    assert bill.background_ns == setup_ns
    assert times(bill)["queue"] == (2, 0, 0), "the rest of the wait was the file"
    assert times(bill)["setup"][1] >= 2


def test_an_action_that_ends_after_its_lease_is_work_and_no_setup() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    sink.lease(Spent(), 0, 0)
    start_ns = now_ns()
    sink.released()
    sink.on_timing(Timing("s", start_ns, start_ns + 10 * MS, 6 * MS))
    bill = bill_of(billing)
    assert (bill.actions, bill.work_ns) == (1, 6 * MS)
    assert "setup" not in times(bill)


def test_the_creations_of_forks_are_part_of_the_fork() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    sink.lease(Spent(), 0, 0)
    for each in (span(Phase.CREATE, 0, 4), span(Phase.READY, 4, 6), span(Phase.FORK, 0, 7), span(Phase.DESTROY, 9, 10)):
        sink(each)
    assert times(bill_of(billing)) == {"fork": (0, 7, 0), "destroy": (0, 1, 0)}


def test_without_a_pool_creation_and_destruction_belong_to_the_lease() -> None:
    billing = Billing()
    sink = SpanSink(billing, cold=True)
    sink(span(Phase.CREATE, 1, 3))
    sink.lease(Spent(), 0, 4 * MS)
    sink.released()
    sink(span(Phase.DESTROY, 9, 12))
    billing.creations += 1
    bill = bill_of(billing)
    assert times(bill) == {"queue": (2, 0, 0), "create": (2, 0, 0), "destroy": (3, 0, 0)}
    assert (bill.creation_ns, bill.destruction_ns) == (2 * MS, 3 * MS)


def test_failures_are_counted_by_party_and_cause_and_in_bounded_space() -> None:
    billing = Billing()
    for error in (LinkFailed("x"), LinkFailed("y"), CapacityError("z"), ValueError("a bug"), asyncio.CancelledError()):
        billing.failed("lease", error)
    found = {(each.party, each.cause): each.count for each in bill_of(billing).failures}
    assert found == {("link", "LinkFailed"): 2, ("capacity", "CapacityError"): 1, ("substrate", "ValueError"): 1}
    for number in range(1000):
        billing.failed("lease", type(f"Odd{number}", (Exception,), {})())
    assert len(bill_of(billing).failures) <= 257
    assert sum(each.count for each in bill_of(billing).failures) == 1004


def test_the_spans_that_a_sandbox_keeps_are_bounded() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    for number in range(1000):
        sink(span(Phase.RESET, 2 * number, 2 * number + 1))
    assert len(sink._life) <= 16
    assert times(bill_of(billing)) == {"reset": (0, 0, 1000)}


def test_the_bill_of_a_stretch_is_the_difference_and_never_negative() -> None:
    billing = Billing()
    sink = SpanSink(billing)
    sink(span(Phase.CREATE, 0, 30))
    billing.creations += 1
    earlier = bill_of(billing)
    sink.lease(Spent(), 10 * MS, 40 * MS)  # moves 20 ms of the creation from the background to the lease
    billing.leased("cold", Spent())
    sink.on_timing(Timing("s", 40 * MS, 50 * MS, 6 * MS))
    billing.failed("lease", LinkFailed("x"))
    later = bill_of(billing, ready_ns=[])
    between = later - earlier
    assert (between.leases, between.actions, between.work_ns, between.creations) == (1, 1, 6 * MS, 0)
    assert times(between) == {"queue": (10, 0, 0), "create": (20, 0, 0), "dispatch": (0, 2, 0), "observe": (0, 2, 0)}
    assert between.creation_ns == 30 * MS, "what it would cost cold is known from earlier creations"
    assert between.cold_ns == 34 * MS
    assert [each.count for each in between.failures] == [1]
    nothing = later - later
    assert (nothing.leases, nothing.phases, nothing.failures) == (0, (), ())


def test_a_bill_prints_nothing_empty_and_says_what_is_unknown() -> None:
    billing = Billing()
    assert "none yet" in str(bill_of(billing))
    assert "projections" not in str(bill_of(billing))
    assert "no failures" in bill_of(billing).summary
    billing.failed("lease", LinkFailed("x"))
    billing.failed("create", CapacityError("x"))
    text = str(bill_of(billing))
    assert (
        "  failures     1 x CapacityError (capacity) in create\n               1 x LinkFailed (link) in lease" in text
    )
    assert max(map(len, text.splitlines())) <= 80
    billing.leased("hit", Spent())
    assert "unknown: this host has made no sandbox yet" in str(bill_of(billing))
    billing.creations += 1
    assert "none was destroyed yet" in str(bill_of(billing))
