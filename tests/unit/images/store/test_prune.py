"""What to remove from a store, decided from values: nothing that is needed ever goes, and the sums add up."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dutyfree.images.store.prune import Plan, StageUse, plan
from dutyfree.images.store.usage import account

NOW_S = 1_000_000.0
LAYERS = [f"layer{number}" for number in range(8)]
SUBSETS = st.lists(st.sampled_from(LAYERS), max_size=5).map(tuple)
SIZES = st.dictionaries(st.sampled_from(LAYERS), st.integers(0, 1000))
STAGES = st.lists(
    st.builds(StageUse, st.uuids().map(str), SUBSETS, st.floats(0, NOW_S + 10)),
    max_size=6,
    unique_by=lambda s: s.digest,
)
STORES = st.tuples(SIZES, st.lists(SUBSETS, max_size=3), STAGES, st.sets(st.sampled_from(LAYERS), max_size=3))
Facts = tuple[dict[str, int], list[tuple[str, ...]], list[StageUse], set[str]]
AGES = st.none() | st.floats(0, NOW_S)
LIMITS = st.none() | st.integers(0, 5000)


def decide(facts: Facts, older_than_s: float | None, keep_bytes: int | None) -> Plan:
    sizes, named, stages, held = facts
    return plan(sizes, named, stages, held, now_s=NOW_S, older_than_s=older_than_s, keep_bytes=keep_bytes)


@given(STORES, AGES, LIMITS)
def test_what_a_name_a_hold_or_a_kept_stage_reaches_stays(
    facts: Facts, older_than_s: float | None, keep_bytes: int | None
) -> None:
    sizes, named, stages, held = facts
    decided = decide(facts, older_than_s, keep_bytes)
    removed = set(decided.layers)
    kept_stages = [stage for stage in stages if stage.digest not in decided.stages]
    assert removed <= sizes.keys()
    assert not removed & {layer for layers in named for layer in layers}
    assert not removed & held
    assert not removed & {layer for stage in kept_stages for layer in stage.layers}


@given(STORES, AGES, LIMITS)
def test_all_that_nothing_reaches_goes(facts: Facts, older_than_s: float | None, keep_bytes: int | None) -> None:
    sizes, named, stages, held = facts
    decided = decide(facts, older_than_s, keep_bytes)
    kept_stages = [stage for stage in stages if stage.digest not in decided.stages]
    reached = {layer for layers in (held, *named, *(stage.layers for stage in kept_stages)) for layer in layers}
    assert set(decided.layers) == sizes.keys() - reached


@given(STORES, AGES, LIMITS)
def test_the_sizes_add_up(facts: Facts, older_than_s: float | None, keep_bytes: int | None) -> None:
    sizes = facts[0]
    decided = decide(facts, older_than_s, keep_bytes)
    assert decided.freed_bytes == sum(sizes[layer] for layer in decided.layers)
    assert decided.freed_bytes + decided.kept_bytes == sum(sizes.values())


@given(STORES, AGES, st.integers(0, 5000))
def test_the_limit_is_met_or_nothing_removable_is_left(
    facts: Facts, older_than_s: float | None, keep_bytes: int
) -> None:
    sizes, named, _stages, held = facts
    decided = decide(facts, older_than_s, keep_bytes)
    bound = {layer for layers in (held, *named) for layer in layers} & sizes.keys()
    assert decided.kept_bytes <= keep_bytes or decided.kept_bytes == sum(sizes[layer] for layer in bound)


@given(STORES, AGES, LIMITS)
def test_the_order_of_what_is_given_does_not_matter(
    facts: Facts, older_than_s: float | None, keep_bytes: int | None
) -> None:
    sizes, named, stages, held = facts
    shuffled = (dict(reversed(sizes.items())), named[::-1], stages[::-1], held)
    assert decide(facts, older_than_s, keep_bytes) == decide(shuffled, older_than_s, keep_bytes)


@given(STORES, AGES)
def test_old_and_broken_stages_go_and_no_others(facts: Facts, older_than_s: float | None) -> None:
    sizes, _named, stages, _held = facts
    gone = {
        stage.digest
        for stage in stages
        if (older_than_s is not None and NOW_S - stage.used_s > older_than_s) or not set(stage.layers) <= sizes.keys()
    }
    assert set(decide(facts, older_than_s, None).stages) == gone


@given(STORES, LIMITS)
@example(({"layer0": 5, "layer1": 5}, [], [], set()), 0)
def test_pruning_again_finds_nothing(facts: Facts, keep_bytes: int | None) -> None:
    sizes, named, stages, held = facts
    first = decide(facts, None, keep_bytes)
    left = {layer: size for layer, size in sizes.items() if layer not in first.layers}
    stages = [stage for stage in stages if stage.digest not in first.stages]
    again = decide((left, named, stages, held), None, keep_bytes)
    assert (again.layers, again.stages, again.freed_bytes) == ((), (), 0)


def test_the_least_recently_used_go_first_and_a_shared_prefix_with_the_last_of_them() -> None:
    sizes = {"base": 100, "old": 10, "new": 10}
    stages = [
        StageUse("base", ("base",), 1.0),  # the least recently used of all, but its layer stays for the others
        StageUse("old", ("base", "old"), 2.0),
        StageUse("new", ("base", "new"), 3.0),
    ]
    assert plan(sizes, [], stages, (), now_s=9.0, keep_bytes=120).stages == ()
    some = plan(sizes, [], stages, (), now_s=9.0, keep_bytes=110)
    assert (some.stages, some.layers, some.kept_bytes) == (("old",), ("old",), 110)
    everything = plan(sizes, [], stages, (), now_s=9.0, keep_bytes=109)
    assert (everything.stages, everything.freed_bytes) == (("base", "new", "old"), 120)


@given(SIZES, st.dictionaries(st.sampled_from("abc"), SUBSETS), st.lists(SUBSETS), st.sets(st.sampled_from(LAYERS)))
def test_usage_adds_up(
    sizes: dict[str, int], named: dict[str, tuple[str, ...]], cached: list[tuple[str, ...]], held: set[str]
) -> None:
    usage = account(sizes, named, cached, held)
    assert usage.total_bytes == sum(sizes.values())
    assert usage.named_bytes == sum(image.own_bytes for image in usage.images) + usage.shared_bytes
    for image in usage.images:
        layers = set(named[image.name]) & sizes.keys()
        others = {layer for name, rest in named.items() if name != image.name for layer in rest}
        assert image.total_bytes == sum(sizes[layer] for layer in layers)
        assert image.own_bytes == sum(sizes[layer] for layer in layers - others)
    without = plan(sizes, named.values(), [StageUse(str(n), each, 0) for n, each in enumerate(cached)], held, now_s=0)
    if all(set(layers) <= sizes.keys() for layers in cached):
        assert usage.unreachable_bytes == without.freed_bytes
