"""From a study's results to advice: which arm to take for whose code, and how large a pool of it to keep."""

from dutyfree.measure.advise.advice import Advice, Question, advise
from dutyfree.measure.advise.evidence import Evidence
from dutyfree.measure.advise.sizes import Announced, Unannounced

__all__ = ["Advice", "Announced", "Evidence", "Question", "Unannounced", "advise"]
