"""Mounts as values: paths are normalised, and targets that would surprise are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.codec import SPEC
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Image, Mount, SandboxSpec
from dutyfree.model.mount import MAX_MOUNTS
from dutyfree.pool.wanted import plain
from dutyfree.substrates.process import ProcessSubstrate


def test_paths_are_normalised() -> None:
    mount = Mount(Path("/data//sets/./x/"), "/in//side/")
    assert (mount.source, mount.target) == ("/data/sets/x", "/in/side")
    assert mount == Mount("/data/sets/x", "/in/side")


@pytest.mark.parametrize("source", ["", "relative", "./x", "/a/../b", "/a\0b", "/" + "x" * 2000])
def test_a_source_must_be_an_absolute_path(source: str) -> None:
    with pytest.raises(InvalidRequest):
        Mount(source, "/data")


@pytest.mark.parametrize(
    "target", ["", "data", "/", "//", "/.", "/proc", "/proc/1/x", "/sys", "/dev", "/dev/shm/x", "/a/../b", "/.dutyfree"]
)
def test_targets_that_each_sandbox_has_for_itself_are_refused(target: str) -> None:
    with pytest.raises(InvalidRequest):
        Mount("/data", target)


@pytest.mark.parametrize("target", ["/process", "/device/x", "/data/proc", "/root/.cache/pip"])
def test_names_that_only_look_reserved_are_fine(target: str) -> None:
    assert Mount("/data", target).target == target


@pytest.mark.parametrize("targets", [("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/x", "/a"), ("/a-b", "/a/c", "/a")])
def test_targets_inside_each_other_are_refused(targets: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest):
        SandboxSpec(mounts=tuple(Mount("/data", target) for target in targets))


def test_targets_beside_each_other_are_fine() -> None:
    mounts = (Mount("/data", "/a"), Mount("/data", "/a-b"), Mount("/data", "/ab"))
    assert SandboxSpec(mounts=mounts).mounts == mounts


def test_their_number_is_bounded() -> None:
    mounts = tuple(Mount("/data", f"/data/{number}") for number in range(MAX_MOUNTS + 1))
    assert SandboxSpec(mounts=mounts[:-1]).mounts == mounts[:-1]
    with pytest.raises(InvalidRequest):
        SandboxSpec(mounts=mounts)


def test_anything_else_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        SandboxSpec(mounts=("/data:/data",))  # type: ignore[arg-type]


def test_a_spec_with_mounts_is_another_state_of_a_pool() -> None:
    image = Image()
    tops = [
        plain(SandboxSpec(image=image, mounts=mounts)).ladder.top
        for mounts in ((), (Mount("/a", "/x"),), (Mount("/b", "/x"),), (Mount("/a", "/y"),))
    ]
    assert len(set(tops)) == 4


def test_the_codec_keeps_mounts() -> None:
    spec = SandboxSpec(mounts=(Mount("/a", "/x"), Mount("/b c", "/y:z")))
    assert SPEC.decode(SPEC.encode(spec)) == spec


def test_a_substrate_without_mounts_refuses_them() -> None:
    with pytest.raises(Unsupported):
        ProcessSubstrate().check(SandboxSpec(mounts=(Mount("/a", "/x"),)))
