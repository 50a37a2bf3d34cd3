"""Plans a prune: decides what to remove from a store. Pure: it works on values and does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class StageUse:
    """The facts about a stage that the plan depends on."""

    digest: str
    layers: tuple[str, ...]
    used_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages to forget, and the layers to remove after that; both sorted by digest."""

    stages: tuple[str, ...]
    layers: tuple[str, ...]
    freed_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The removed stages and layers; in a dry run those that would be removed."""

    stages: tuple[str, ...]
    layers: tuple[str, ...]
    freed_bytes: int
    kept_bytes: int
    dry_run: bool = False


def plan(
    sizes_bytes: Mapping[str, int],
    named: Iterable[Iterable[str]],
    stages: Sequence[StageUse],
    held: Collection[str],
    *,
    now_s: float,
    older_than_s: float | None = None,
    keep_bytes: int | None = None,
) -> Plan:
    """Decide which stages and layers to remove from a store.

    Layers of a named image or of a hold stay. The plan forgets stages with a missing layer, stages that were not used
    for `older_than_s`, and then the least recently used ones until at most `keep_bytes` are left. In that last step a
    stage stays if all its layers stay anyway, because forgetting it would free nothing. Layers that no name, stage or
    hold needs after that are removed.
    """
    reach = _NeededLayers(sizes_bytes)
    for layers in (held, *named):
        reach.add(layers)
    candidates = sorted(
        (stage for stage in stages if _is_worth_keeping(stage, sizes_bytes, now_s, older_than_s)),
        key=lambda stage: (stage.used_s, stage.digest),
    )
    for stage in candidates:
        reach.add(stage.layers)
    for stage in candidates:
        if keep_bytes is None or reach.kept_bytes <= keep_bytes:
            break
        reach.drop(stage.layers)
    kept = {stage.digest for stage in candidates if reach.has_all(stage.layers)}
    removed = sorted(layer for layer in sizes_bytes if not reach.has_all([layer]))
    return Plan(
        stages=tuple(sorted({stage.digest for stage in stages} - kept)),
        layers=tuple(removed),
        freed_bytes=sum(sizes_bytes[layer] for layer in removed),
        kept_bytes=reach.kept_bytes,
    )


class _NeededLayers:
    """Counts how many images need each layer, and the size of all needed layers."""

    def __init__(self, sizes_bytes: Mapping[str, int]) -> None:
        self._sizes_bytes = sizes_bytes
        self._counts: Counter[str] = Counter()
        self.kept_bytes = 0

    def add(self, layers: Iterable[str]) -> None:
        for layer in set(layers):
            if not self._counts[layer]:
                self.kept_bytes += self._sizes_bytes.get(layer, 0)
            self._counts[layer] += 1

    def drop(self, layers: Iterable[str]) -> None:
        for layer in set(layers):
            self._counts[layer] -= 1
            if not self._counts[layer]:
                self.kept_bytes -= self._sizes_bytes.get(layer, 0)

    def has_all(self, layers: Iterable[str]) -> bool:
        return all(self._counts[layer] for layer in layers)


def _is_worth_keeping(
    stage: StageUse, sizes_bytes: Mapping[str, int], now_s: float, older_than_s: float | None
) -> bool:
    is_old = older_than_s is not None and now_s - stage.used_s > older_than_s
    return not is_old and all(layer in sizes_bytes for layer in stage.layers)
