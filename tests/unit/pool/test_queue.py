"""Which request comes next, who is refused, and when a refused caller should come back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dutyfree.errors import CapacityError
from dutyfree.pool.queue import MAX_RETRY_S, MIN_RETRY_S, Pace, Request, RequestQueue
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.node import SimulatedGoal

STATES = [State((name,)) for name in ("one", "two", "three")]


def request(
    state: int = 0, owner: str = "ann", since_s: float = 0.0, deadline_s: float = 1e9
) -> Request[SimulatedGoal]:
    goal = SimulatedGoal(Ladder(("base",), STATES[state]), images=True)
    return Request(goal, owner, 60.0, None, since_s, deadline_s)


def queue(capacity: int = 8, per_owner: int | None = None, **active: int) -> RequestQueue[SimulatedGoal]:
    return RequestQueue(capacity, per_owner, active)


def test_one_owner_is_served_in_order() -> None:
    waiting, requests = queue(), [request(since_s=float(number)) for number in range(5)]
    for each in requests:
        assert waiting.push(each) is None
    assert [waiting.pop(STATES[0], 10.0) for _ in range(6)] == [*requests, None]
    assert len(waiting) == 0


def test_the_owner_with_the_fewest_leases_comes_first() -> None:
    waiting = queue(ann=3, bob=1)
    ann, bob, eve = (request(owner=owner) for owner in ("ann", "bob", "eve"))
    for each in (ann, bob, eve):
        waiting.push(each)
    assert [waiting.pop(STATES[0], 1.0) for _ in range(3)] == [eve, bob, ann]


def test_owners_with_as_many_leases_take_turns() -> None:
    waiting = queue(16)
    for owner in ("ann",) * 4 + ("bob",) * 2:
        waiting.push(request(owner=owner))
    served = [waiting.pop(STATES[0], 1.0) for _ in range(6)]
    assert [each.owner for each in served if each is not None] == ["ann", "bob", "ann", "bob", "ann", "ann"]


def test_a_request_past_its_deadline_is_passed_over() -> None:
    waiting, late, early = queue(), request(deadline_s=1.0), request(deadline_s=9.0)
    waiting.push(late)
    waiting.push(early)
    assert waiting.pop(STATES[0], 2.0) is early
    assert waiting.pop(STATES[0], 2.0) is None
    assert waiting.remove(late)
    assert not waiting.remove(late)


def test_the_state_to_be_served_next_comes_first() -> None:
    waiting = queue(ann=2)
    for state, owner, since_s in ((0, "ann", 0.0), (1, "bob", 2.0), (2, "bob", 1.0)):
        waiting.push(request(state, owner, since_s))
    assert list(waiting.counts()) == [STATES[2], STATES[1], STATES[0]]
    assert waiting.next_state() == STATES[2]
    assert queue().next_state() is None


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    waiting = queue(2)
    for _ in range(2):
        waiting.push(request())
    with pytest.raises(CapacityError) as refused:
        waiting.push(request())
    assert refused.value.retry_after_s is not None
    assert MIN_RETRY_S <= refused.value.retry_after_s <= MAX_RETRY_S
    assert len(waiting) == 2


def test_an_owner_has_a_bound_of_its_own() -> None:
    waiting = queue(8, per_owner=1)
    waiting.push(request())
    with pytest.raises(CapacityError, match="'ann'"):
        waiting.push(request())
    waiting.push(request(owner="bob"))


def test_an_owner_cannot_fill_the_queue_against_the_others() -> None:
    waiting, requests = queue(4), [request() for _ in range(4)]
    for each in requests:
        waiting.push(each)
    first, second = request(owner="bob"), request(owner="bob")
    displaced = waiting.push(first)
    assert displaced is not None
    assert displaced[0] is requests[3]
    assert isinstance(displaced[1], CapacityError)
    assert waiting.push(second) is not None
    with pytest.raises(CapacityError):
        waiting.push(request(owner="bob"))  # two of four: bob would only change places with ann
    assert {each.owner for each in waiting.all()} == {"ann", "bob"}


def test_refused_callers_are_asked_back_one_after_the_other() -> None:
    pace = Pace()
    pace.served(0.0, others_wait=True)
    for number in range(1, 60):
        pace.served(number * 0.5, others_wait=True)
    times = [pace.refusal("full").retry_after_s for _ in range(4)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(0.5, rel=0.1)
    assert times[3] == pytest.approx(2.0, rel=0.1)
    pace.freed()
    assert pace.retry_after_s == pytest.approx(times[3], rel=0.01)


def test_idle_time_is_no_service_time() -> None:
    pace = Pace()
    pace.served(0.0, others_wait=True)
    pace.served(0.1, others_wait=False)
    before_s = pace.retry_after_s
    pace.served(1000.0, others_wait=True)
    assert pace.retry_after_s == before_s


@given(st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_nobody_is_starved(owners: list[str]) -> None:
    """Where each served request becomes a lease that stays, owners with few leases catch up with those with many."""
    active: Counter[str] = Counter()
    waiting: RequestQueue[SimulatedGoal] = RequestQueue(100, None, active)
    for owner in owners:
        waiting.push(request(owner=owner))
    left = Counter(owners)
    while (served := waiting.pop(STATES[0], 0.0)) is not None:
        assert active[served.owner] == min(active[owner] for owner in left if left[owner])
        active[served.owner] += 1
        left[served.owner] -= 1
    assert active == Counter(owners)


class Waiting(RuleBasedStateMachine):
    """The queue against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: RequestQueue[SimulatedGoal] = RequestQueue(6, 4, {})
        self.model: list[Request[SimulatedGoal]] = []

    @rule(state=st.integers(0, 2), owner=st.sampled_from(["ann", "bob"]))
    def push(self, state: int, owner: str) -> None:
        new = request(state, owner)
        try:
            displaced = self.queue.push(new)
        except CapacityError:
            return
        self.model.append(new)
        if displaced is not None:
            self.model.remove(displaced[0])

    @rule(state=st.integers(0, 2))
    def pop(self, state: int) -> None:
        served = self.queue.pop(STATES[state], 0.0)
        wanted = [each for each in self.model if each.state == STATES[state]]
        assert (served is None) == (not wanted)
        if served is not None:
            assert served is next(each for each in wanted if each.owner == served.owner)
            self.model.remove(served)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model:
            gone = data.draw(st.sampled_from(self.model))
            assert self.queue.remove(gone)
            self.model.remove(gone)

    @invariant()
    def both_agree(self) -> None:
        assert len(self.queue) == len(self.model) <= 6
        assert sorted(map(id, self.queue.all())) == sorted(map(id, self.model))
        assert self.queue.counts() == Counter(each.state for each in self.model)
        for state in STATES:
            assert self.queue.first(state) is next((each for each in self.model if each.state == state), None)


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
