"""Advice from a study's results: which arm to use for which code, and how large its pool should be."""

from dutyfree.measure.advise.advice import Advice, Question, advise
from dutyfree.measure.advise.evidence import Evidence
from dutyfree.measure.advise.sizes import Announced, Unannounced

__all__ = ["Advice", "Announced", "Evidence", "Question", "Unannounced", "advise"]
