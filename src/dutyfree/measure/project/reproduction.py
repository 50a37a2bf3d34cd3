"""The paper's Tables 1 and 2, computed by the formula that projects our own measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dutyfree.measure import paper
from dutyfree.measure.project.projection import worker_hours


@dataclass(frozen=True, slots=True)
class Row:
    """One row of either table. Worker-hours of a million trajectories."""

    words: str
    latency_s: float
    """The value that the paper prints."""
    published_hours: int
    hours: float
    """Computed from the latency that rounds to the printed one; in Table 1, from the printed one."""
    consistent_s: float
    hours_as_printed: float
    """Computed from the printed latency."""
    least_hours: float
    """How much the rounding of the latency may change the result."""
    most_hours: float


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Both tables, row by row."""

    table_1: tuple[Row, ...]
    table_2: tuple[Row, ...]
    kind: str = "projection"

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


def reproduce() -> Reproduction:
    """The paper's projections, from its own inputs."""
    exact = (_row(each.words, each.latency_s, each.latency_s, each.worker_hours, 0.0) for each in paper.TABLE_1)
    # Each latency is rounded to a tenth, so that their difference is known to two tenths.
    halves = {paper.DIFFERENCE.words: paper.ROUNDED_TO_S}
    rounded = (
        _row(
            each.words,
            each.latency_s,
            each.consistent_s,
            each.worker_hours,
            halves.get(each.words, paper.ROUNDED_TO_S / 2),
        )
        for each in paper.TABLE_2
    )
    return Reproduction(tuple(exact), tuple(rounded))


def _row(words: str, latency_s: float, consistent_s: float, published: int, open_s: float) -> Row:
    hours, as_printed, least, most = (
        worker_hours(each, paper.TRAJECTORIES)
        for each in (consistent_s, latency_s, latency_s - open_s, latency_s + open_s)
    )
    return Row(words, latency_s, published, hours, consistent_s, as_printed, least, most)
