"""Compares two results of the same study: what became faster, what slower, and what cannot be decided."""

from dutyfree.measure.compare.comparing import COMPARED, compare
from dutyfree.measure.compare.comparison import Comparison, Difference, FailureDifference, Gates, Verdict

__all__ = ["COMPARED", "Comparison", "Difference", "FailureDifference", "Gates", "Verdict", "compare"]
