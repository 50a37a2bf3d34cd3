"""Projects latencies to worker-hours and money. Every result is extrapolated, and labelled as a projection."""

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
