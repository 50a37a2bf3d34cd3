"""Trajectories: as long as asked, the same for the same seed, and of the mix that the workload states."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads import catalogue
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import ActionKind, ScriptedAction, Workload
from dutyfree.model import Action

shares = st.floats(0.01, 100.0)
kinds = st.sampled_from(ActionKind)


@st.composite
def workloads(choose: st.DrawFn) -> Workload:
    """Any workload that has a menu."""
    menu = [
        ScriptedAction(f"menu-{number}", kind, Action("ls"), weight=weight)
        for number, (kind, weight) in enumerate(choose(st.lists(st.tuples(kinds, shares), min_size=1, max_size=8)))
    ]
    opening = [
        ScriptedAction(f"opening-{number}", kind, Action("ls"))
        for number, kind in enumerate(choose(st.lists(kinds, max_size=5)))
    ]
    mix = {kind: choose(shares) for kind in {each.kind for each in menu}}
    return Workload(choose(st.text(max_size=5)), opening=tuple(opening), menu=tuple(menu), mix=mix)


@given(workloads(), st.integers(1, 60), st.integers())
def test_length_opening_and_menu(workload: Workload, length: int, seed: int) -> None:
    drawn = draw(workload, length, seed)
    assert len(drawn) == length
    assert drawn[: len(workload.opening)] == workload.opening[:length]
    assert all(each in workload.menu for each in drawn[len(workload.opening) :])


@given(workloads(), st.integers(1, 60), st.integers(1, 60), st.integers())
def test_a_shorter_one_is_the_beginning_of_a_longer_one(workload: Workload, one: int, other: int, seed: int) -> None:
    short, long = sorted((one, other))
    assert draw(workload, long, seed)[:short] == draw(workload, short, seed)


@given(workloads(), st.integers())
def test_the_order_in_which_the_mix_is_written_does_not_matter(workload: Workload, seed: int) -> None:
    turned = dict(reversed(list(workload.mix.items())))
    same = Workload(workload.name, "", (), workload.opening, workload.menu, turned)
    assert draw(same, 20, seed) == draw(workload, 20, seed)


@pytest.mark.parametrize("name", catalogue.BUILT_IN)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_mix_and_the_weights_are_kept(name: str, seed: int) -> None:
    workload = catalogue.find(name)
    length = 20_000
    drawn = draw(workload, length + len(workload.opening), seed)[len(workload.opening) :]
    total = sum(workload.mix.values())
    for kind, share in workload.mix.items():
        offered = [each for each in workload.menu if each.kind is kind]
        of_kind = [each for each in drawn if each.kind is kind]
        assert len(of_kind) / length == pytest.approx(share / total, abs=0.02)
        names = Counter(each.name for each in of_kind)
        weights = sum(each.weight for each in offered)
        for each in offered:
            assert names[each.name] / len(of_kind) == pytest.approx(each.weight / weights, abs=0.03)


def test_seeds_and_names_make_a_difference() -> None:
    workload = catalogue.find("T2")
    renamed = Workload("other", "", (), workload.opening, workload.menu, workload.mix)
    assert draw(workload, 50, 1) != draw(workload, 50, 2)
    assert draw(workload, 50, 1) != draw(renamed, 50, 1)


def test_what_was_drawn_once_is_drawn_for_ever() -> None:
    """Results of different versions are of the same trajectories only if this never changes."""
    assert [action.name for action in draw(catalogue.find("T0"), 8, 1)] == PINNED


PINNED = ["hello", "echo", "true", "false", "pipe", "where", "echo", "echo"]


def test_lengths_that_cannot_be() -> None:
    only = Workload("only", opening=catalogue.find("T0").opening)
    assert draw(only, 1, 1) == only.opening
    with pytest.raises(InvalidRequest, match="at least one action"):
        draw(only, 0, 1)
    with pytest.raises(InvalidRequest, match="no menu"):
        draw(only, 2, 1)
