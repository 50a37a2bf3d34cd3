"""Caches as values: names, owners and targets that would surprise are refused."""

from __future__ import annotations

import pytest

from dutyfree.codec import SPEC
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Cache, Mount, SandboxSpec
from dutyfree.model.cache import MAX_CACHES, owned_by
from dutyfree.pool.wanted import plain
from dutyfree.substrates.process import ProcessSubstrate


@pytest.mark.parametrize("name", ["", "Pip", "a/b", "../a", ".a", "a b", "a\n", "x" * 65, 3])
def test_names_are_plain_words(name: str) -> None:
    with pytest.raises(InvalidRequest):
        Cache(name, "/cache")


@pytest.mark.parametrize("target", ["", "cache", "/", "/proc/x", "/dev", "/a/../b"])
def test_targets_are_those_of_mounts(target: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cache's target|nothing can be mounted"):
        Cache("pip", target)


@pytest.mark.parametrize("size", [0, -1, "much", None])
def test_a_size_is_a_size(size: int) -> None:
    with pytest.raises(InvalidRequest):
        Cache("pip", "/cache", max_bytes=size)


def test_sizes_may_be_words() -> None:
    assert Cache("pip", "/cache//x/", max_bytes="1k") == Cache("pip", "/cache/x", max_bytes=1024)


@pytest.mark.parametrize(
    "caches",
    [
        (Cache("a", "/a"), Cache("a", "/b")),
        (Cache("a", "/a"), Cache("b", "/a")),
        (Cache("a", "/a"), Cache("b", "/a/b")),
        (Cache("a", "/data/x"),),
        (Cache("a", "/srv"), "b"),
        tuple(Cache(f"c{number}", f"/c/{number}") for number in range(MAX_CACHES + 1)),
    ],
)
def test_caches_that_cannot_be_together_are_refused(caches: tuple[Cache, ...]) -> None:
    with pytest.raises(InvalidRequest):
        SandboxSpec(mounts=(Mount("/usr", "/data"),), caches=caches)


def test_a_cache_without_an_owner_gets_that_of_the_lease() -> None:
    own, other = Cache("a", "/a"), Cache("b", "/b", max_bytes=7, owner="other")
    assert owned_by("team", [own, other]) == (Cache("a", "/a", owner="team"), other)
    assert owned_by("", [own]) == (own,)
    with pytest.raises(InvalidRequest):
        owned_by("x" * 257, [own])


def test_they_survive_json() -> None:
    spec = SandboxSpec(caches=(Cache("pip", "/cache", max_bytes=5, owner="tëam"), Cache("npm", "/npm")))
    assert SPEC.decode(SPEC.encode(spec)) == spec


def test_a_pool_keeps_sandboxes_with_other_caches_apart() -> None:
    specs = [
        SandboxSpec(),
        SandboxSpec(caches=(Cache("a", "/a"),)),
        SandboxSpec(caches=(Cache("a", "/b"),)),
        SandboxSpec(caches=(Cache("a", "/a", owner="x"),)),
        SandboxSpec(caches=(Cache("a", "/a", max_bytes=5),)),
    ]
    assert len({plain(spec).ladder.top for spec in specs}) == len(specs)


def test_a_substrate_without_caches_says_so() -> None:
    with pytest.raises(Unsupported, match="no caches"):
        ProcessSubstrate().check(SandboxSpec(caches=(Cache("a", "/a"),)))
