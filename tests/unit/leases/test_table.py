"""The table of leases, against a model that is too simple to be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dutyfree.errors import CallerError, InvalidRequest, LeaseLost
from dutyfree.leases.table import (
    MAX_LABEL_CHARACTERS,
    MAX_LABEL_NAME_CHARACTERS,
    MAX_LABELS,
    MAX_NAME_CHARACTERS,
    Lease,
    LeaseTable,
    check_labels,
)

REMEMBERED = 6
REMEMBER_S = 40.0

sandboxes = st.sampled_from([f"box-{number}" for number in range(5)])
owners = st.sampled_from(["ann", "bob", ""])
keys = st.none() | st.sampled_from(["k1", "k2", "k3"])
times_s = st.integers(1, 20).map(float)
steps_s = st.integers(1, 6).map(float)


class Table(RuleBasedStateMachine):
    """Whatever happens in whatever order: no double lease, no lost one, tokens that grow, an end that is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(remembered=REMEMBERED, remember_s=REMEMBER_S)
        self.now_s = 0.0
        self.live: dict[str, Lease] = {}
        self.granted: list[Lease] = []
        self.withdrawn = 0
        self.ended: list[tuple[Lease, float]] = []
        """In the order in which they ended, with the time that the table knew then."""

    @property
    def remembered(self) -> list[Lease]:
        return [lease for lease, at_s in self.ended[-REMEMBERED:] if self.now_s - at_s < REMEMBER_S]

    @rule(sandbox=sandboxes, owner=owners, ttl_s=times_s, key=keys)
    def grant(self, sandbox: str, owner: str, ttl_s: float, key: str | None) -> None:
        known = [*self.live.values(), *self.remembered]
        taken = any(lease.sandbox == sandbox for lease in self.live.values())
        if taken or (key is not None and any((each.owner, each.key) == (owner, key) for each in known)):
            with pytest.raises(RuntimeError, match="already"):
                self.table.grant(sandbox, owner, self.now_s, ttl_s, key)
            return
        lease = self.table.grant(sandbox, owner, self.now_s, ttl_s, key)
        assert (lease.sandbox, lease.owner, lease.key) == (sandbox, owner, key)
        assert lease.expires_s == self.now_s + ttl_s
        assert all(lease.token > each.token and lease.id != each.id for each in self.granted)
        self.live[lease.id] = lease
        self.granted.append(lease)

    @rule(data=st.data(), ttl_s=times_s)
    def renew(self, data: st.DataObject, ttl_s: float) -> None:
        if not self.granted:
            return
        lease = data.draw(st.sampled_from([*self.live.values(), *self.granted]))
        if lease.id in self.live and self.now_s < self.live[lease.id].expires_s:
            renewed = self.table.renew(lease.id, lease.token, self.now_s, ttl_s)
            until_s = self.now_s + ttl_s
            assert renewed == replace(lease, expires_s=until_s, expires_at=until_s)
            self.live[lease.id] = renewed
        else:
            with pytest.raises(LeaseLost):
                self.table.renew(lease.id, lease.token, self.now_s, ttl_s)

    @rule(data=st.data(), wrong=st.booleans())
    def release(self, data: st.DataObject, wrong: bool) -> None:
        if not self.granted:
            return
        lease = data.draw(st.sampled_from([*self.live.values(), *self.granted]))
        if wrong:
            if lease.id in self.live or lease in self.remembered:
                with pytest.raises(LeaseLost):
                    self.table.release(lease.id, lease.token + 1)
            return
        released = self.table.release(lease.id, lease.token)
        assert released == self.live.pop(lease.id, None)
        if released is not None:
            self.ended.append((released, self.now_s))

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if not self.live:
            return
        lease = data.draw(st.sampled_from(list(self.live.values())))
        assert self.table.withdraw(lease.id, lease.token) == self.live.pop(lease.id)
        assert self.table.withdraw(lease.id, lease.token) is None
        assert lease.key is None or self.table.by_key(lease.owner, lease.key) is None
        self.withdrawn += 1

    @rule(step_s=steps_s)
    def reap(self, step_s: float) -> None:
        self.now_s += step_s
        due = sorted(
            (each for each in self.live.values() if each.expires_s <= self.now_s), key=lambda each: each.expires_s
        )
        over = self.table.expired(self.now_s)
        assert [each.expires_s for each in over] == [each.expires_s for each in due]
        assert set(over) == set(due)
        for each in over:
            del self.live[each.id]
            self.ended.append((each, self.now_s))
        assert self.table.expired(self.now_s) == ()

    @rule(step_s=steps_s)
    def check(self, step_s: float) -> None:
        self.now_s += step_s / 10
        for lease in self.granted:
            if lease.id in self.live and self.now_s < self.live[lease.id].expires_s:
                assert self.table.check(lease.id, lease.token, self.now_s) == self.live[lease.id]
                with pytest.raises(LeaseLost):
                    self.table.check(lease.id, lease.token - 1, self.now_s)
            else:
                with pytest.raises(LeaseLost):
                    self.table.check(lease.id, lease.token, self.now_s)

    @rule(owner=owners, key=st.sampled_from(["k1", "k2", "k3"]))
    def ask_again(self, owner: str, key: str) -> None:
        self.table.expired(-1.0)  # time never goes back
        for lease in self.live.values():
            if (lease.owner, lease.key) == (owner, key):
                assert self.table.by_key(owner, key) == lease
                return
        if any((lease.owner, lease.key) == (owner, key) for lease in self.remembered):
            with pytest.raises(LeaseLost):
                self.table.by_key(owner, key)
        elif not any((lease.owner, lease.key) == (owner, key) for lease, _ in self.ended):
            assert self.table.by_key(owner, key) is None

    @invariant()
    def every_view_agrees(self) -> None:
        live = list(self.live.values())
        assert len(self.table) == len(live)
        assert len({each.sandbox for each in live}) == len(live)
        assert len(live) + len(self.ended) + self.withdrawn == len(self.granted)
        for owner in ("ann", "bob", ""):
            theirs = tuple(each for each in live if each.owner == owner)
            assert {each.id for each in self.table.all() if each.owner == owner} == {each.id for each in theirs}
            assert self.table.active.get(owner, 0) == len(theirs)
        soonest = self.table.next_expiry_s
        assert (soonest is None) == (not live)
        assert soonest is None or soonest <= min(each.expires_s for each in live)


Table.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestTable = Table.TestCase


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    table = LeaseTable()
    lease = table.grant("box", "ann", 10.0, 5.0)
    assert table.check(lease.id, lease.token, 14.999) == lease
    assert table.expired(14.999) == ()
    with pytest.raises(LeaseLost, match="expired"):
        table.check(lease.id, lease.token, 15.0)
    with pytest.raises(LeaseLost):
        table.renew(lease.id, lease.token, 15.0, 5.0)
    with pytest.raises(RuntimeError):
        table.grant("box", "bob", 15.0, 5.0)
    assert table.expired(15.0) == (lease,)
    assert table.grant("box", "bob", 15.0, 5.0).token > lease.token


def test_a_renewal_moves_the_end_either_way() -> None:
    table = LeaseTable()
    later, sooner = table.grant("a", "ann", 0.0, 5.0), table.grant("b", "ann", 0.0, 5.0)
    table.renew(later.id, later.token, 1.0, 9.0)
    table.renew(sooner.id, sooner.token, 1.0, 2.0)
    assert [each.id for each in table.expired(3.0)] == [sooner.id]
    assert table.expired(9.999) == ()
    assert [each.expires_s for each in table.expired(10.0)] == [10.0]


def test_late_calls_get_the_reason_why_the_lease_ended() -> None:
    table = LeaseTable()
    first = table.grant("a", "ann", 0.0, 5.0, "k")
    assert table.release(first.id, first.token) == first
    assert table.release(first.id, first.token) is None
    with pytest.raises(LeaseLost, match="was released") as caught:
        table.by_key("ann", "k")
    assert isinstance(caught.value, CallerError)
    table.grant("a", "ann", 0.0, 5.0, "other")
    table.expired(5.0)
    with pytest.raises(LeaseLost, match="has expired"):
        table.by_key("ann", "other")
    assert table.by_key("bob", "k") is None


def test_a_key_can_be_used_again_once_it_is_forgotten() -> None:
    table = LeaseTable(remembered=2, remember_s=100.0)
    first = table.grant("a", "ann", 0.0, 5.0, "k")
    table.release(first.id, first.token)
    table.expired(99.0)
    with pytest.raises(LeaseLost):
        table.by_key("ann", "k")
    table.expired(100.0)
    assert table.by_key("ann", "k") is None
    assert table.release(first.id, first.token) is None
    again = table.grant("a", "ann", 100.0, 5.0, "k")
    table.release(again.id, again.token)
    for number in range(2):
        other = table.grant("a", "ann", 101.0, 5.0, f"other {number}")
        table.release(other.id, other.token)
    assert table.by_key("ann", "k") is None


def test_a_table_may_remember_nothing() -> None:
    table = LeaseTable(remembered=0)
    for end in (table.release, table.withdraw):
        lease = table.grant("a", "ann", 0.0, 5.0, "k")
        assert end(lease.id, lease.token) == lease
        assert end(lease.id, lease.token) is None
        assert table.by_key("ann", "k") is None


def test_memory_stays_bounded_whatever_is_renewed_and_released() -> None:
    table = LeaseTable(remembered=10)
    kept = table.grant("kept", "ann", 0.0, 1e6)
    for number in range(5_000):
        lease = table.grant("box", "ann", float(number), 1e6, f"key {number}")
        table.renew(kept.id, kept.token, float(number), 1e6)
        table.release(lease.id, lease.token)
    assert len(table._expiries) < 100
    assert len(table._ended) == len(table._by_key) == 10
    assert table.active == {"ann": 1}


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
def test_times_that_make_no_sense_are_refused(ttl_s: float) -> None:
    table = LeaseTable()
    with pytest.raises(InvalidRequest, match="ttl_s"):
        table.grant("box", "ann", 0.0, ttl_s)
    assert len(table) == 0


def test_names_are_bounded() -> None:
    table = LeaseTable()
    with pytest.raises(InvalidRequest, match="owner"):
        table.grant("box", "x" * (MAX_NAME_CHARACTERS + 1), 0.0, 1.0)
    with pytest.raises(InvalidRequest, match="key"):
        table.grant("box", "ann", 0.0, 1.0, "x" * (MAX_NAME_CHARACTERS + 1))


def test_ids_of_two_tables_can_be_told_apart() -> None:
    one = LeaseTable(prefix="run1").grant("box", "ann", 0.0, 1.0)
    two = LeaseTable(prefix="run2").grant("box", "ann", 0.0, 1.0)
    assert one.id != two.id


def test_a_lease_without_an_end_never_expires() -> None:
    table = LeaseTable()
    lease = table.grant("box", "ann", 0.0, float("inf"))
    assert table.next_expiry_s is None
    assert lease.expires_at is None
    assert table.expired(1e12) == ()
    assert table.get(lease.id, 1e12) == lease


def test_ids_and_tokens_differ_between_tables_of_one_machine() -> None:
    first, second = LeaseTable.of_this_machine(), LeaseTable.of_this_machine()
    leases = [table.grant("box", "", 0.0, 60.0) for table in (first, second)]
    assert leases[0].id != leases[1].id
    assert leases[0].token < leases[1].token


def test_an_expiry_is_also_given_by_the_wall_clock() -> None:
    lease = LeaseTable(wall_offset_s=1e9).grant("box", "", 5.0, 60.0)
    assert (lease.expires_s, lease.expires_at) == (65.0, 1e9 + 65.0)


def test_a_lease_keeps_labels_that_others_cannot_change() -> None:
    table, given = LeaseTable(wall_offset_s=1e9), {"task": "17"}
    lease = table.grant("box", "", 5.0, 60.0, labels=check_labels(given))
    given["task"] = "18"
    assert (lease.started_at, dict(lease.labels)) == (1e9 + 5.0, {"task": "17"})
    assert lease.has_labels({})
    assert lease.has_labels({"task": "17"})
    assert not lease.has_labels({"task": "17", "step": "1"})
    changed = table.set_labels(lease.id, lease.token, 6.0, check_labels({"step": "1"}))
    assert table.get(lease.id, 6.0) == changed
    assert table.renew(lease.id, lease.token, 7.0, 60.0).labels == {"step": "1"}
    assert isinstance(hash(lease), int)
    with pytest.raises(LeaseLost):
        table.set_labels(lease.id, lease.token + 1, 6.0, check_labels({}))


@pytest.mark.parametrize(
    "labels",
    [
        {str(number): "" for number in range(MAX_LABELS + 1)},
        {"x" * (MAX_LABEL_NAME_CHARACTERS + 1): ""},
        {"": "x"},
        {"a": "x" * (MAX_LABEL_CHARACTERS + 1)},
        {"a": 1},
        {1: "a"},
        ["a"],
    ],
)
def test_labels_are_bounded_texts(labels: Any) -> None:
    with pytest.raises(InvalidRequest, match="label"):
        check_labels(labels)
