"""Layers of any shape: archives bring them back unchanged, and merges have the effect of what was merged."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.images.trees.layers import copy_tree, merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.images.trees.unpack import unpack
from dutyfree.removal import remove_tree
from support.layer_trees import IS_ROOT, OWNERSHIP, described
from support.layer_values import LAYERS, Directory, Layer, written

NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"dir", b"x" * 120, "é".encode()]),
    st.binary(min_size=1, max_size=12).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..") and name[:4] != b".wh."
    ),
)
MODES = st.sampled_from([0, 0o444, 0o555, 0o644, 0o755, 0o1777, 0o4755])
TIMES = st.integers(-(2**31) * 10**9, 2**33 * 10**9)
LEAVES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=1200), MODES, TIMES),
    st.tuples(st.just("symlink"), st.binary(min_size=1, max_size=200).filter(lambda t: b"\0" not in t), TIMES),
    st.just(("fifo",)),
    st.just(("whiteout",)),
    st.just(("hard",)),
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=4),
    lambda below: st.dictionaries(
        NAMES, st.one_of(LEAVES, st.tuples(st.just("dir"), below, MODES, TIMES, st.booleans())), max_size=4
    ),
    max_leaves=12,
)


def make(content: dict[bytes, tuple[object, ...]], at: Path, files: list[Path]) -> None:
    for name, node in content.items():
        path = at / os.fsdecode(name)
        match node:
            case ("file", bytes(data), int(mode), int(time_ns)):
                path.write_bytes(data)
                path.chmod(mode)
                os.utime(path, ns=(time_ns, time_ns))
                files.append(path)
            case ("symlink", bytes(target), int(time_ns)):
                path.symlink_to(os.fsdecode(target))
                os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
            case ("fifo",):
                os.mkfifo(path)
            case ("whiteout",):
                os.mknod(path, stat.S_IFCHR, 0)
            case ("hard",) if files:
                os.link(files[0], path)
            case ("dir", dict(below), int(mode), int(time_ns), bool(opaque)):
                path.mkdir()
                make(below, path, files)
                if opaque:
                    os.setxattr(path, OWNERSHIP.opaque_xattr, b"y")
                os.utime(path, ns=(time_ns, time_ns))
                path.chmod(mode | (0 if IS_ROOT else 0o500))


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="test-trees-"))
    yield place
    remove_tree(place)


@settings(max_examples=150, deadline=None)
@given(content=TREES)
def test_any_tree_survives_the_way_there_and_back(places: Path, content: dict[bytes, tuple[object, ...]]) -> None:
    source, target = (Path(tempfile.mkdtemp(dir=places)) for _ in range(2))
    make(content, source, [])
    buffer = io.BytesIO()
    digest = pack(source, buffer, OWNERSHIP)
    unpack(io.BytesIO(buffer.getvalue()), target, OWNERSHIP)
    assert pack(target, None, OWNERSHIP) == digest
    copy = target.with_suffix(".copy")
    copy_tree(source, copy)
    assert pack(copy, None, OWNERSHIP) == digest
    if IS_ROOT:
        assert described(target) == described(source) == described(copy)


def seen_through(lower: Layer, upper: Layer) -> Layer:
    """What shows when one layer is laid over what is seen already."""
    seen = dict(lower)
    for name, thing in upper.items():
        below = seen.pop(name, None)
        if isinstance(thing, Directory):
            shines = isinstance(below, Directory) and not thing.opaque
            seen[name] = Directory(seen_through(below.content if shines else {}, thing.content), thing.mode)
        elif thing is not None:
            seen[name] = thing
    return seen


def seen(layers: Sequence[Layer]) -> Layer:
    shown: Layer = {}
    for layer in layers:
        shown = seen_through(shown, layer)
    return shown


def read_layer(at: Path) -> Layer:
    layer: Layer = {}
    for path in at.iterdir():
        if path.is_file():
            layer[path.name] = path.read_text()
        elif path.is_dir():
            opaque = OWNERSHIP.opaque_xattr in os.listxattr(path)
            layer[path.name] = Directory(read_layer(path), stat.S_IMODE(path.stat().st_mode), opaque)
        else:
            layer[path.name] = None
    return layer


def has_marks(layer: Layer) -> bool:
    return any(
        thing is None or (isinstance(thing, Directory) and (thing.opaque or has_marks(thing.content)))
        for thing in layer.values()
    )


@settings(max_examples=250, deadline=None)
@given(layers=st.lists(LAYERS, min_size=1, max_size=4), kept=st.integers(0, 3), link=st.booleans())
def test_a_merge_has_the_effect_of_what_was_merged(places: Path, layers: list[Layer], kept: int, link: bool) -> None:
    kept = min(kept, len(layers) - 1)
    place = Path(tempfile.mkdtemp(dir=places))
    trees = written(layers, place)
    merge_trees(trees, place / "whole", bottom=True, ownership=OWNERSHIP, link=link)
    merge_trees(trees[kept:], place / "part", bottom=False, ownership=OWNERSHIP, link=link)
    whole, part = read_layer(place / "whole"), read_layer(place / "part")
    assert whole == seen(layers)
    assert not has_marks(whole)
    assert seen([*layers[:kept], part]) == seen(layers)
