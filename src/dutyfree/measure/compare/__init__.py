"""Compares two runs of a study, or two arms of one run: what became faster, what slower, and what is undecided."""

from dutyfree.measure.compare.comparing import COMPARED, compare, compare_arms
from dutyfree.measure.compare.comparison import Comparison, Difference, FailureDifference, Gates, Verdict

__all__ = ["COMPARED", "Comparison", "Difference", "FailureDifference", "Gates", "Verdict", "compare", "compare_arms"]
