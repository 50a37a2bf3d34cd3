"""From latencies to worker-hours and money. All of it is projection: extrapolated, labelled so, never a measurement."""

from dutyfree.measure.project.latencies import Latencies, MeasuredLatencies, StatedLatencies
from dutyfree.measure.project.projection import (
    ArmProjection,
    GridPoint,
    Projection,
    RankChange,
    Scale,
    project,
    worker_hours,
)

__all__ = [
    "ArmProjection",
    "GridPoint",
    "Latencies",
    "MeasuredLatencies",
    "Projection",
    "RankChange",
    "Scale",
    "StatedLatencies",
    "project",
    "worker_hours",
]
