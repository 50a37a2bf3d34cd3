"""Recorded trajectories of agents as workloads: one file per format, and what they have in common."""

from dutyfree.measure.workloads.replay.loading import FORMATS, load_recording

__all__ = ["FORMATS", "load_recording"]
