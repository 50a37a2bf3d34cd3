"""Stage digests: what can change a stage's result changes its digest and all after it; nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dutyfree.images.recipes import digests
from dutyfree.model.limits import Network
from dutyfree.model.recipe import FileInput, GitInput, Stage

PARENT = digests.base_digest("host", {})
COMMITS = st.text("0123456789abcdef", min_size=40, max_size=40)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
LINES = WORDS.filter(str.strip)
TARGETS = st.from_regex(r"/[a-z]{1,4}", fullmatch=True)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)
FILES = st.builds(FileInput, source=WORDS, target=TARGETS)
GITS = st.builds(GitInput, url=st.from_regex(r"[a-z]{1,6}", fullmatch=True), commit=COMMITS, target=TARGETS)
STAGES = st.builds(
    Stage,
    name=NAMES,
    run=st.lists(LINES, max_size=3).map(tuple),
    files=st.lists(FILES, max_size=2).map(tuple),
    git=st.lists(GITS, max_size=2).map(tuple),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,3}", fullmatch=True), WORDS, max_size=3),
    cwd=st.none() | TARGETS,
    network=st.sampled_from(Network),
    timeout_s=st.floats(1, 1000),
)


def fingerprints(stage: Stage) -> list[str]:
    """Stand-ins for the contents of its files."""
    return [f"content-{number}" for number, _ in enumerate(stage.files)]


def digest(stage: Stage, parent: str = PARENT) -> str:
    return digests.stage_digest(parent, stage, fingerprints(stage))


def content(stage: Stage) -> tuple[Any, ...]:
    """All of a stage that matters."""
    return (
        *(stage.run, dict(stage.env), stage.cwd, stage.network),
        [each.target for each in stage.files],
        [(each.target, each.commit) for each in stage.git],
    )


@given(STAGES, STAGES)
def test_the_same_digest_if_and_only_if_the_same_content(one: Stage, other: Stage) -> None:
    assert (digest(one) == digest(other)) == (content(one) == content(other))


@given(STAGES, STAGES)
def test_one_field_is_enough(one: Stage, other: Stage) -> None:
    for name in ("run", "env", "cwd", "network"):
        mixed = replace(one, **{name: getattr(other, name)})
        assert (digest(mixed) == digest(one)) == (getattr(one, name) == getattr(other, name)), name


@given(STAGES, NAMES, st.floats(1, 1000), WORDS, st.data())
def test_names_times_and_places_do_not_matter(
    stage: Stage, name: str, timeout_s: float, source: str, data: st.DataObject
) -> None:
    elsewhere = replace(
        stage,
        name=name,
        timeout_s=timeout_s,
        files=tuple(replace(each, source=source) for each in stage.files),
        git=tuple(replace(each, url="elsewhere") for each in stage.git),
        env=dict(data.draw(st.permutations(list(stage.env.items())))),
    )
    assert digest(elsewhere) == digest(stage)


@given(st.lists(STAGES, min_size=1, max_size=4), STAGES, st.integers(0, 3))
def test_a_common_prefix_is_shared_and_all_after_a_change_is_not(
    stages: list[Stage], other: Stage, position: int
) -> None:
    position %= len(stages)
    assume(content(stages[position]) != content(other))
    changed = [*stages[:position], other, *stages[position + 1 :]]
    first, second = chain(stages), chain(changed)
    assert first[: position + 1] == second[: position + 1]
    assert all(one != two for one, two in zip(first[position + 1 :], second[position + 1 :], strict=True))


def chain(stages: list[Stage]) -> list[str]:
    found = [PARENT]
    for stage in stages:
        found.append(digest(stage, found[-1]))
    return found


WHOLE = Stage(
    "whole",
    run=("a", "b"),
    files=(FileInput("x", "/x"), FileInput("y", "/y")),
    git=(GitInput("u", "0" * 40, "/g"),),
    env={"A": "1"},
    cwd="/x",
)


@pytest.mark.parametrize(
    "change",
    [
        lambda stage: replace(stage, run=("b", "a")),
        lambda stage: replace(stage, run=("a\nb",)),
        lambda stage: replace(stage, run=("a", "b ")),
        lambda stage: replace(stage, env={"A": "2"}),
        lambda stage: replace(stage, env={"A": "1", "B": ""}),
        lambda stage: replace(stage, cwd=None),
        lambda stage: replace(stage, network=Network.HOST),
        lambda stage: replace(stage, files=stage.files[::-1]),
        lambda stage: replace(stage, files=()),
        lambda stage: replace(stage, git=(GitInput("u", "1" * 40, "/g"),)),
        lambda stage: replace(stage, git=(GitInput("u", "0" * 40, "/h"),)),
    ],
)
def test_these_changes_matter(change: Callable[[Stage], Stage]) -> None:
    assert digest(change(WHOLE)) != digest(WHOLE)


def test_contents_of_files_matter_each_in_its_place() -> None:
    one = digests.stage_digest(PARENT, WHOLE, ["p", "q"])
    assert one != digests.stage_digest(PARENT, WHOLE, ["q", "p"])
    assert one != digests.stage_digest(PARENT, WHOLE, ["p", "p"])
    with pytest.raises(ValueError, match="shorter"):
        digests.stage_digest(PARENT, WHOLE, ["p"])


def test_parents_and_bases_matter() -> None:
    assert digest(WHOLE, digests.base_digest("tar", {"a": "1"})) != digest(
        WHOLE, digests.base_digest("dir", {"a": "1"})
    )
    assert digests.base_digest("tar", {"a": "1"}) != digests.base_digest("tar", {"a": "2"})


def test_digests_stay_what_they_are_from_release_to_release() -> None:
    # Whoever changes these values throws away everybody's cache: then VERSION must grow, and this test follow.
    assert digests.VERSION == 1
    assert (
        digests.stage_digest(PARENT, WHOLE, ["p", "q"])
        == "sha256:0294a9acb268e054a4e09c86a413c9597cd1ebcb12150fc9f0f00f3e0b4da5fc"
    )
