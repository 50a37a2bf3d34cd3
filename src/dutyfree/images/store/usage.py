"""What a store takes, by who needs it: sums that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """What one name reaches."""

    name: str
    own_bytes: int
    """Layers that no other name reaches: untagging it makes them removable."""
    shared_bytes: int
    """Layers that other names reach, too."""

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.shared_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Every layer is counted once, in the first of named, cached, held and unreachable that it belongs to."""

    layers: int
    named_bytes: int
    """What names reach: every image's own bytes, and `shared_bytes` once."""
    cached_bytes: int
    """What only the cache of stages reaches."""
    held_bytes: int
    """What only sandboxes, builds and imports that are under way keep."""
    unreachable_bytes: int
    """What the next prune removes."""
    shared_bytes: int
    """The part of `named_bytes` that more than one name reaches."""
    in_use_bytes: int
    """What is held at this moment, whatever else reaches it."""
    images: tuple[ImageUsage, ...]

    @property
    def total_bytes(self) -> int:
        return self.named_bytes + self.cached_bytes + self.held_bytes + self.unreachable_bytes


def account(
    sizes_bytes: Mapping[str, int],
    named: Mapping[str, Iterable[str]],
    cached: Iterable[Iterable[str]],
    held: Collection[str],
) -> Usage:
    """Share the layers' sizes out among those who reach them. Layers that are missing count for nothing."""
    reached = {name: set(layers) & sizes_bytes.keys() for name, layers in named.items()}
    names = Counter(layer for layers in reached.values() for layer in layers)
    stages = {layer for layers in cached for layer in layers}

    def total(layers: Iterable[str]) -> int:
        return sum(sizes_bytes[layer] for layer in layers)

    unnamed = sizes_bytes.keys() - names.keys()
    return Usage(
        layers=len(sizes_bytes),
        named_bytes=total(names),
        cached_bytes=total(unnamed & stages),
        held_bytes=total((unnamed - stages) & set(held)),
        unreachable_bytes=total(unnamed - stages - set(held)),
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
