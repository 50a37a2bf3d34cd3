"""Costs: what is learnt from observations, what is guessed, and what a file may do."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.pool import costs as module
from dutyfree.pool.costs import (
    MAX_ENTRIES,
    PRIORS,
    UNKNOWN_SIZE,
    Costs,
    Estimate,
    Step,
    load_costs,
    load_costs_or_none,
    save_costs,
)
from dutyfree.pool.size import Size
from dutyfree.pool.state import State
from support.pool_model import MIB, ladder

ATTRS = ladder("b", "attrs", "deps")
CREATE = Step.create(ATTRS.top)


def test_before_anything_is_measured_a_stage_is_dearer_than_a_creation() -> None:
    costs = Costs()
    assert costs.estimate(CREATE) == PRIORS["create"]
    assert costs.stage_s("deps") > costs.create_s(ATTRS.top)
    costs.observe(CREATE, 50.0)
    assert costs.stage_s("deps") > costs.create_s(ATTRS.top)


def test_what_was_not_measured_is_taken_to_be_like_others_of_its_kind() -> None:
    costs = Costs()
    costs.observe(CREATE, 0.002)
    assert costs.create_s(State(("never",))) == pytest.approx(0.002)
    assert costs.estimate(Step.create(State(("never",)))).count == 0


def test_a_mean_is_the_plain_one_at_first_and_then_follows() -> None:
    costs = Costs()
    for seconds in (1.0, 2.0, 6.0):
        costs.observe(CREATE, seconds)
    assert costs.create_s(ATTRS.top) == pytest.approx(3.0)
    for _ in range(100):
        costs.observe(CREATE, 0.5)
    assert costs.create_s(ATTRS.top) == pytest.approx(0.5, rel=0.01)
    assert costs.estimate(CREATE).count == 103


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.0])
def test_the_percentile_rests_where_one_in_twenty_is_above(spread: float) -> None:
    numbers = random.Random(f"p95 {spread}")
    costs, above = Costs(), 0
    for number in range(6000):
        seconds = numbers.lognormvariate(0.0, spread)
        if number >= 1000:
            above += seconds > costs.estimate(CREATE).p95_s
        costs.observe(CREATE, seconds)
    assert 0.03 <= above / 5000 <= 0.07


def test_the_percentile_follows_when_times_change() -> None:
    costs = Costs()
    for _ in range(200):
        costs.observe(CREATE, 0.01)
    for _ in range(50):
        costs.observe(CREATE, 10.0)
    assert costs.estimate(CREATE).p95_s >= 9.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_estimates_stay_finite_and_in_order(durations: list[float]) -> None:
    costs = Costs()
    for seconds in durations:
        costs.observe(CREATE, seconds)
    estimate = costs.estimate(CREATE)
    assert min(durations) - 1e-6 <= estimate.mean_s <= max(durations) + 1e-6
    assert estimate.mean_s <= estimate.p95_s < 1e7
    assert estimate.count == len(durations)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="not the duration"):
        Costs().observe(CREATE, seconds)


def test_sums_along_a_ladder() -> None:
    costs = Costs()
    costs.observe(Step.create(ATTRS.rungs[0]), 1.0)
    costs.observe(Step.create(ATTRS.top), 2.0)
    costs.observe(Step.stage("attrs"), 10.0)
    costs.observe(Step.stage("deps"), 30.0)
    assert costs.stages_s(ATTRS, ATTRS.rungs[0]) == pytest.approx(40.0)
    assert costs.stages_s(ATTRS, ATTRS.rungs[1]) == pytest.approx(30.0)
    assert costs.stages_s(ATTRS, ATTRS.top) == 0
    assert costs.rebuild_s(ATTRS.top, images=True) == pytest.approx(2.0)
    assert costs.rebuild_s(ATTRS.top, images=False) == pytest.approx(41.0)
    assert costs.late_s(ATTRS.top, images=False) >= costs.rebuild_s(ATTRS.top, images=False)


def test_a_larger_size_counts_at_once_and_a_smaller_one_in_time() -> None:
    costs = Costs()
    assert costs.size(ATTRS.top) == UNKNOWN_SIZE
    costs.observe_size(ATTRS.top, Size(10 * MIB, MIB))
    costs.observe_size(ATTRS.top, Size(30 * MIB, MIB))
    assert costs.size(ATTRS.top) == Size(30 * MIB, MIB)
    costs.observe_size(ATTRS.top, Size(10 * MIB, MIB))
    assert 10 * MIB < costs.size(ATTRS.top).memory_bytes < 30 * MIB
    assert costs.size(State(("never",))).memory_bytes > 10 * MIB
    with pytest.raises(InvalidRequest):
        costs.observe_size(ATTRS.top, Size(memory_bytes=-1))


def test_the_least_recently_observed_are_forgotten() -> None:
    costs = Costs()
    costs.observe(CREATE, 123.0)
    for number in range(MAX_ENTRIES + 10):
        costs.observe(Step.stage(str(number)), 1.0)
        costs.observe_size(State((str(number),)), Size(1, 1))
    content = costs.as_dict()
    assert len(content["operations"]) == len(content["sizes"]) == MAX_ENTRIES
    assert costs.estimate(CREATE).count == 0
    assert costs.estimate(Step.stage(str(MAX_ENTRIES))).count == 1


def test_costs_outlive_the_process(tmp_path: Path) -> None:
    costs = Costs()
    for seconds in (1.0, 2.0, 0.0):
        costs.observe(CREATE, seconds)
    costs.observe(Step.destroy(), 0.25)
    costs.observe_size(ATTRS.top, Size(5, 6))
    path = tmp_path / "costs.json"
    assert load_costs(path).as_dict() == Costs().as_dict()
    save_costs(path, costs)
    save_costs(path, costs)
    again = load_costs(path)
    assert again.as_dict() == costs.as_dict()
    assert again.size(ATTRS.top) == Size(5, 6)
    assert [each.name for each in tmp_path.iterdir()] == ["costs.json"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.json"
    save_costs(path, Costs())
    before = path.read_bytes()

    class Unwritable(Costs):
        def as_dict(self) -> dict[str, Any]:
            return {"mean_s": float("nan")}

    with pytest.raises(ValueError, match="JSON"):
        save_costs(path, Unwritable())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["costs.json"]


def _file(**changes: Any) -> dict[str, Any]:
    costs = Costs()
    costs.observe(CREATE, 1.0)
    costs.observe_size(ATTRS.top, Size(1, 2))
    return costs.as_dict() | changes


OPERATION = {"kind": "create", "digest": "x", "mean_s": 1.0, "p95_s": 2.0, "count": 1}
SIZE = {"digests": ["b"], "memory_bytes": 1, "disk_bytes": 1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"format": 1}',
        b"9" * 5000,
        json.dumps(_file(version=2)),
        json.dumps(_file(more=1)),
        json.dumps(_file(operations=None)),
        json.dumps(_file(operations=[OPERATION | {"kind": "explode"}])),
        json.dumps(_file(operations=[OPERATION | {"kind": ["create"]}])),
        json.dumps(_file(operations=[OPERATION | {"digest": "x" * 10_000}])),
        json.dumps(_file(operations=[OPERATION | {"mean_s": -1}])),
        json.dumps(_file(operations=[OPERATION | {"mean_s": float("nan")}])),
        json.dumps(_file(operations=[OPERATION | {"mean_s": True}])),
        json.dumps(_file(operations=[OPERATION | {"p95_s": 1e300}])),
        json.dumps(_file(operations=[OPERATION | {"count": 1.5}])),
        json.dumps(_file(operations=[OPERATION | {"count": 10**400}])),
        json.dumps(_file(operations=[OPERATION] * (MAX_ENTRIES + 1))),
        json.dumps(_file(sizes=[SIZE | {"digests": []}])),
        json.dumps(_file(sizes=[SIZE | {"digests": ["x"] * 1000}])),
        json.dumps(_file(sizes=[SIZE | {"memory_bytes": -1}])),
        json.dumps(_file(sizes=[{}])),
    ],
)
def test_a_damaged_file_is_named_and_does_not_stop_a_pool(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRequest, match=str(path)):
        load_costs(path)
    costs, wrong = load_costs_or_none(path)
    assert str(path) in wrong
    assert costs.estimate(CREATE) == PRIORS["create"]


def test_a_file_that_is_too_long_or_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 100)
    path = tmp_path / "costs.json"
    path.write_bytes(b" " * 101)
    with pytest.raises(InvalidRequest, match="longer than 100 bytes"):
        load_costs(path)
    with pytest.raises(InvalidRequest, match="cannot read"):
        load_costs(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["format", "version", "operations", "sizes"]),
    JSON,
    st.sampled_from([None, "kind", "digest", "mean_s", "p95_s", "count", "digests", "memory_bytes", "disk_bytes"]),
)
def test_hostile_content_is_refused_or_read_and_nothing_else(key: str, value: Any, inner: str | None) -> None:
    content = _file()
    if inner is None:
        content[key] = value
    else:
        content["operations"] = [OPERATION | ({inner: value} if inner in OPERATION else {})]
        content["sizes"] = [SIZE | ({inner: value} if inner in SIZE else {})]
    try:
        costs = Costs.from_dict(content)
    except InvalidRequest:
        return
    assert isinstance(costs.estimate(CREATE), Estimate)
    assert Costs.from_dict(costs.as_dict()).as_dict() == costs.as_dict()
