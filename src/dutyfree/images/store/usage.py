"""The disk space of a store, split by what needs it; the parts add up to the total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """The disk space of one named image."""

    name: str
    own_bytes: int
    """Layers that no other name needs: untagging the image makes them removable."""
    shared_bytes: int
    """Layers that other names need, too."""

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.shared_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Every layer is counted once, in the first of named, cached, caches, held and unreachable that it belongs to."""

    layers: int
    named_bytes: int
    """Layers of named images: each image's own bytes, and `shared_bytes` once."""
    cached_bytes: int
    """Layers that only cached stages need."""
    caches_bytes: int
    """The present versions of caches that sandboxes share."""
    held_bytes: int
    """Layers that only running sandboxes, builds and imports hold."""
    unreachable_bytes: int
    """Layers that the next prune removes."""
    shared_bytes: int
    """The part of `named_bytes` that more than one name needs."""
    in_use_bytes: int
    """All layers that are held now, including named and cached ones."""
    images: tuple[ImageUsage, ...]

    @property
    def total_bytes(self) -> int:
        return self.named_bytes + self.cached_bytes + self.caches_bytes + self.held_bytes + self.unreachable_bytes


def account(
    sizes_bytes: Mapping[str, int],
    named: Mapping[str, Iterable[str]],
    cached: Iterable[Iterable[str]],
    held: Collection[str],
    caches: Collection[str] = (),
) -> Usage:
    """Compute the usage from the layers' sizes. Missing layers count as 0 bytes."""
    reached = {name: set(layers) & sizes_bytes.keys() for name, layers in named.items()}
    names = Counter(layer for layers in reached.values() for layer in layers)
    stages = {layer for layers in cached for layer in layers}

    def total(layers: Iterable[str]) -> int:
        return sum(sizes_bytes[layer] for layer in layers)

    unnamed = sizes_bytes.keys() - names.keys()
    rest = unnamed - stages - set(caches)
    return Usage(
        layers=len(sizes_bytes),
        named_bytes=total(names),
        cached_bytes=total(unnamed & stages),
        caches_bytes=total((unnamed - stages) & set(caches)),
        held_bytes=total(rest & set(held)),
        unreachable_bytes=total(rest - set(held)),
        shared_bytes=total(layer for layer, count in names.items() if count > 1),
        in_use_bytes=total(set(held) & sizes_bytes.keys()),
        images=tuple(
            ImageUsage(
                name,
                own_bytes=total(layer for layer in layers if names[layer] == 1),
                shared_bytes=total(layer for layer in layers if names[layer] > 1),
            )
            for name, layers in sorted(reached.items())
        ),
    )
