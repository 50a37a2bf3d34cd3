"""Checks a store for damage: returns all problems as text, and raises none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import staging
from dutyfree.images.store.caches import Caches, is_cache_file
from dutyfree.images.store.layers import LayerInfo, Layers
from dutyfree.images.store.layout import Layout, is_hex
from dutyfree.images.store.names import Names, is_name_file
from dutyfree.images.store.stages import Stages, is_stage_file
from dutyfree.images.trees.layers import measure
from dutyfree.images.trees.pack import pack

_AT_ROOT = ("store.json", "lock", "draft.json")


def problems(layout: Layout, layers: Layers, names: Names, caches: Caches, stages: Stages) -> Iterator[str]:
    """All problems that can be found without reading the files of layers. The caller must hold the store's lock."""
    yield from _unknown_files(layout)
    for layer in layers.all():
        try:
            layers.info(layer)
        except InvalidRequest as error:
            yield error.message
    images, damaged_names = names.all()
    yield from (error.message for error in damaged_names)
    for named in images:
        yield from _missing(layers, named.image.layers, f"image {named.name!r}")
    versions, damaged_caches = caches.all()
    yield from (f"the entry of a cache, {str(path)!r}, is damaged" for path in damaged_caches)
    for version in versions:
        yield from _missing(layers, [version.layer], f"cache {version.name!r}")
    cached, damaged_stages = stages.all()
    yield from (f"the entry of stage {stage} is damaged" for stage in damaged_stages)
    for stage in cached:
        yield from _missing(layers, stage.image.layers, f"stage {stage.digest}")
    for left in staging.leftovers(layout.staging):
        yield f"a dead process left {str(left)!r}"


def _missing(layers: Layers, wanted: Iterable[str], who: str) -> Iterator[str]:
    yield from (f"{who} needs layer {layer}, which is missing" for layer in wanted if not layers.has(layer))


def _unknown_files(layout: Layout) -> Iterator[str]:
    known = {*_AT_ROOT, *(directory.name for directory in layout.directories)}
    files = [path for path in layout.root.iterdir() if path.name not in known]
    files += [path for path in layout.layers.iterdir() if not is_hex(path.name)]
    files += [path for path in layout.names.iterdir() if not is_name_file(path)]
    files += [path for path in layout.caches.iterdir() if not is_cache_file(path)]
    files += [path for path in layout.stages.iterdir() if not is_stage_file(path)]
    yield from (f"{str(path)!r} does not belong to the store" for path in sorted(files))


def changes(tree: Path, info: LayerInfo, ownership: Ownership) -> Iterator[str]:
    """Problems in the files of a layer: entries that are missing or added, or a changed digest."""
    try:
        size = measure(tree)
        digest = pack(tree, None, ownership) if info.canonical else info.digest
    except (DutyfreeError, OSError) as error:
        yield f"layer {info.digest} cannot be read: {error}"
        return
    if size.entries != info.entries:
        yield f"layer {info.digest} has {size.entries} entries, not {info.entries}"
    if digest != info.digest:
        yield f"layer {info.digest} was changed: its digest is now {digest}"
