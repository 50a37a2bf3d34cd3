"""Layers as values: drawn by Hypothesis, and written as trees."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from dutyfree.images.trees.layers import copy_tree
from support.layer_trees import OWNERSHIP

# A layer as a value: what each name is in it. Directories carry a mode, which tells whose attributes won.
Layer = dict[str, "str | Directory | None"]


"""Text is a file, None a deletion."""


class Directory:
    def __init__(self, content: Layer, mode: int, opaque: bool = False) -> None:
        self.content, self.mode, self.opaque = content, mode, opaque

    def __repr__(self) -> str:
        return f"Directory({self.content}, {self.mode:o}{', opaque' if self.opaque else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and vars(self) == vars(other)


SHORT_NAMES = st.sampled_from("abc")


THINGS = st.one_of(st.sampled_from(["1", "2", "3"]), st.none())


LAYERS = st.recursive(
    st.dictionaries(SHORT_NAMES, THINGS, max_size=3),
    lambda below: st.dictionaries(
        SHORT_NAMES,
        st.one_of(THINGS, st.builds(Directory, below, st.sampled_from([0o700, 0o755, 0o711]), st.booleans())),
        max_size=3,
    ),
    max_leaves=10,
)


def write_layer(layer: Layer, at: Path) -> None:
    for name, thing in layer.items():
        path = at / name
        if thing is None:
            os.mknod(path, stat.S_IFCHR, 0)
        elif isinstance(thing, str):
            path.write_text(thing)
        else:
            path.mkdir(mode=thing.mode)
            write_layer(thing.content, path)
            if thing.opaque:
                os.setxattr(path, OWNERSHIP.opaque_xattr, b"y")


def written(layers: Sequence[Layer], place: Path) -> list[Path]:
    trees = []
    for number, layer in enumerate(layers):
        raw, tree = place / f"{number}-raw", place / f"{number}"
        raw.mkdir()
        write_layer(layer, raw)
        copy_tree(raw, tree)
        trees.append(tree)
    return trees
