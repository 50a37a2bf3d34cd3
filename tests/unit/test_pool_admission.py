"""The queue: bounded, fair, and without surprises."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.pool.admission import LOOK_AHEAD, MAX_OVERTAKEN, MAX_RETRY_S, MIN_RETRY_S, FairQueue, Pace

CAPACITY, PER_OWNER = 8, 4
OWNERS = ("ann", "bob", "cyd")
FOREVER = float("inf")

owners = st.sampled_from(OWNERS)
shares = st.fixed_dictionaries({owner: st.integers(0, 3) for owner in OWNERS})


def anything(item: object) -> bool:
    return True


class Queue(RuleBasedStateMachine):
    """Against a model that looks at everything each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(CAPACITY, per_owner=PER_OWNER)
        self.now_s = 0.0
        self.numbers = itertools.count()
        self.clock = itertools.count()
        self.model: dict[int, tuple[str, float]] = {}
        """In the order in which they came."""
        self.turns: dict[str, int] = {}
        self.overtaken: Counter[str] = Counter()

    def line(self, owner: str) -> list[int]:
        return [item for item, (whose, _) in self.model.items() if whose == owner]

    def take(self, item: int) -> None:
        owner = self.model[item][0]
        if self.line(owner)[0] == item:
            self.overtaken[owner] = 0
        del self.model[item]
        if not self.line(owner):
            del self.turns[owner]
            del self.overtaken[owner]

    @rule(owner=owners, patience_s=st.integers(1, 50))
    def push(self, owner: str, patience_s: int) -> None:
        item = next(self.numbers)
        if len(self.model) >= CAPACITY or len(self.line(owner)) >= PER_OWNER:
            with pytest.raises(CapacityError) as caught:
                self.queue.push(item, owner, self.now_s + patience_s)
            assert caught.value.retry_after_s is not None
            assert MIN_RETRY_S <= caught.value.retry_after_s <= MAX_RETRY_S
            assert item not in self.queue
            return
        self.queue.push(item, owner, self.now_s + patience_s)
        self.model[item] = (owner, self.now_s + patience_s)
        self.turns.setdefault(owner, next(self.clock))

    @rule(active=shares, refused=st.sets(st.integers(0, 40)))
    def pop(self, active: dict[str, int], refused: set[int]) -> None:
        expected = None
        for owner in sorted(self.turns, key=lambda each: (active[each], self.turns[each])):
            looks = 1 if self.overtaken[owner] >= MAX_OVERTAKEN else 1 + LOOK_AHEAD
            good = [item for item in self.line(owner) if self.model[item][1] > self.now_s][:looks]
            found = [item for item in good if item not in refused]
            if found:
                expected = found[0]
                self.overtaken[owner] += 1
                self.turns[owner] = next(self.clock)
                break
        assert self.queue.pop(active, lambda item: item not in refused, now_s=self.now_s) == expected
        if expected is not None:
            self.take(expected)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.integers(0, 40))
        assert self.queue.remove(item) == (item in self.model)
        if item in self.model:
            self.take(item)

    @rule(step_s=st.integers(1, 20))
    def expire(self, step_s: int) -> None:
        self.now_s += step_s
        late = sorted((deadline_s, item) for item, (_, deadline_s) in self.model.items() if deadline_s <= self.now_s)
        assert self.queue.expire(self.now_s) == [item for _, item in late]
        for _, item in late:
            self.take(item)

    @invariant()
    def it_holds_what_it_should(self) -> None:
        assert list(self.queue) == list(self.model)
        assert len(self.queue) <= CAPACITY
        assert self.queue.waiting() == Counter(owner for owner, _ in self.model.values())
        soonest = self.queue.next_deadline_s
        assert (soonest is None) == (not self.model)
        assert soonest is None or soonest <= min(deadline_s for _, deadline_s in self.model.values())


Queue.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestQueue = Queue.TestCase


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 40), st.randoms(use_true_random=False))
def test_with_equal_demand_shares_differ_by_at_most_one(
    owners: int, each: int, places: int, chance: random.Random
) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue(owners * each)
    items = [(owner, number) for owner in range(owners) for number in range(each)]
    chance.shuffle(items)
    for item in items:
        queue.push(item, str(item[0]), FOREVER)
    active: Counter[str] = Counter()
    for _ in range(min(places, len(items))):
        served = queue.pop(active, anything)
        assert served is not None
        active[str(served[0])] += 1
    counts = [active[str(owner)] for owner in range(owners)]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=60), st.integers(1, 3))
def test_no_owner_starves_while_others_ask_without_end(greedy: list[str], hogs: int) -> None:
    """Leases end at once, others push again whenever they were served, and new owners come all the time."""
    queue: FairQueue[str] = FairQueue(1000)
    for number in range(hogs):
        for item in range(20):
            queue.push(f"hog {number} {item}", f"hog {number}", FOREVER)
    queue.push("patient", "patient", FOREVER)
    ahead = hogs
    for turn, name in enumerate(greedy):
        queue.push(f"{name} {turn}", f"{name}{turn}", FOREVER)
        if queue.pop({}, anything) == "patient":
            return
        ahead -= 1
        assert ahead >= 0
    assert ahead >= 0


def test_the_owner_with_the_fewest_leases_comes_first() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("rich 1", "rich 2", "poor 1", "poor 2"):
        queue.push(item, item.split()[0], FOREVER)
    active = {"rich": 2}
    served = []
    while (item := queue.pop(active, anything)) is not None:
        served.append(item)
        owner = item.split()[0]
        active[owner] = active.get(owner, 0) + 1
    assert served == ["poor 1", "poor 2", "rich 1", "rich 2"]


def test_who_cannot_be_served_now_is_overtaken_but_not_for_ever() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for item in range(60):
        queue.push(item, "ann", FOREVER)
    queue.push(100, "bob", FOREVER)
    assert queue.pop({"ann": 0, "bob": 5}, lambda item: item == 100) == 100
    served = []
    while (item := queue.pop({}, lambda item: item != 0)) is not None:
        served.append(item)
    assert served == list(range(1, MAX_OVERTAKEN + 1))
    assert queue.pop({}, anything) == 0


def test_looking_ahead_is_bounded() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for item in range(60):
        queue.push(item, "ann", FOREVER)
    asked: list[int] = []

    def refuse(item: int) -> bool:
        asked.append(item)
        return False

    assert queue.pop({}, refuse) is None
    assert asked == list(range(1 + LOOK_AHEAD))


def test_what_is_late_is_not_served() -> None:
    queue: FairQueue[str] = FairQueue(10)
    queue.push("late", "ann", 5.0)
    queue.push("early", "ann", 9.0)
    assert queue.pop({}, anything, now_s=5.0) == "early"
    assert queue.pop({}, anything, now_s=5.0) is None
    assert queue.expire(5.0) == ["late"]


def test_a_full_queue_asks_back_one_after_the_other() -> None:
    queue: FairQueue[int] = FairQueue(4)
    for item in range(4):
        queue.push(item, "ann", FOREVER)
    for turn in range(200):  # one request is served every tenth of a second
        assert queue.pop({}, anything, now_s=turn / 10) == turn
        queue.push(turn + 4, "ann", FOREVER)
    hints = []
    for item in range(1000, 1005):
        with pytest.raises(CapacityError) as caught:
            queue.push(item, "bob", FOREVER)
        assert caught.value.retry_after_s is not None
        assert caught.value.hint
        hints.append(caught.value.retry_after_s)
    assert hints == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], rel=0.01)
    queue.pop({}, anything)
    queue.pop({}, anything)
    assert queue.retry_after_s == pytest.approx(0.4, rel=0.01)


def test_time_in_which_nobody_waited_is_not_held_against_the_pace() -> None:
    pace = Pace()
    for turn in range(100):
        pace.served(turn * 100.0, others_wait=True)
        pace.served(turn * 100.0 + 0.2, others_wait=False)
    assert pace.retry_after_s == pytest.approx(0.2, rel=0.01)


def test_the_hint_is_bounded_however_many_are_refused() -> None:
    pace = Pace()
    hints = [pace.refusal("full").retry_after_s for _ in range(1000)]
    assert max(filter(None, hints)) == MAX_RETRY_S
    for _ in range(100):
        pace.freed()
    assert pace.retry_after_s == 1.0


def test_one_owner_cannot_fill_the_queue_against_the_others() -> None:
    displaced: list[str] = []
    refused: list[CapacityError] = []

    def tell(item: str, error: CapacityError) -> None:
        displaced.append(item)
        refused.append(error)

    queue: FairQueue[str] = FairQueue(6, on_displaced=tell)
    for number in range(6):
        queue.push(f"hog {number}", "hog", FOREVER)
    with pytest.raises(CapacityError):
        queue.push("hog 6", "hog", FOREVER)
    for number in range(3):
        queue.push(f"ann {number}", "ann", FOREVER)
    assert displaced == ["hog 5", "hog 4", "hog 3"]
    assert all(error.retry_after_s for error in refused)
    with pytest.raises(CapacityError):  # they have the same share now
        queue.push("ann 3", "ann", FOREVER)
    assert queue.waiting() == {"hog": 3, "ann": 3}
    assert "hog 5" not in queue


def test_an_item_waits_once() -> None:
    queue: FairQueue[str] = FairQueue(6)
    queue.push("one", "ann", FOREVER)
    with pytest.raises(RuntimeError, match="already"):
        queue.push("one", "bob", FOREVER)
    assert queue.remove("one")
    assert not queue.remove("one")
    queue.push("one", "bob", 3.0)
    assert queue.remove("one")
    queue.push("one", "bob", 5.0)
    assert queue.expire(4.0) == []
    assert queue.expire(5.0) == ["one"]


def test_memory_stays_bounded() -> None:
    queue: FairQueue[int] = FairQueue(10)
    for item in range(5_000):
        queue.push(item, f"owner {item}", 1e9)
        assert queue.pop({}, anything) == item
    assert len(queue._deadlines) <= 100
    assert not queue._lines


def test_a_queue_without_places_refuses_everything() -> None:
    with pytest.raises(CapacityError):
        FairQueue[str](0).push("one", "ann", FOREVER)
    with pytest.raises(InvalidRequest):
        FairQueue[str](-1)
    with pytest.raises(InvalidRequest):
        FairQueue[str](1, per_owner=0)
