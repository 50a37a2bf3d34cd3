"""Results with their analysis, and the choice of conditions for each figure and table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dutyfree.errors import InvalidRequest
from dutyfree.measure import paper
from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.project import MeasuredLatencies, Projection, Scale, project
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats.analysis import Analysis, Growth, Metric, Series, Setting, Summary
from dutyfree.measure.stats.estimate import Estimate


@dataclass(frozen=True)
class Evidence:
    """Results and their analysis. Arms are in the order of the study, without the null arm."""

    results: Results
    analysis: Analysis

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm except the null arm, also those without a completed trial."""
        return self.analysis.arms

    def serial_settings(self) -> list[Setting]:
        """Settings of the main warmth (cold in a study), one at a time, in which a trial completed."""
        settings = {
            Setting.of(each.condition): None for each in self.analysis.compositions if each.condition.arm in self.arms
        }
        return [each for each in settings if each.warmth is self.warmth and each.concurrency == 1]

    @cached_property
    def warmth(self) -> Warmth:
        """Cold in a study; in a live run that of the most leases."""
        return self.results.main_warmth

    def workloads(self) -> list[str]:
        """The workloads of the serial settings, in the order of the study."""
        return list(dict.fromkeys(each.workload for each in self.serial_settings()))

    def main_workload(self) -> str | None:
        """The workload with the most measured lengths, the last of several: T2 in the paper's study."""
        lengths = [each.workload for each in self.serial_settings()]
        return max(reversed(self.workloads()), key=lengths.count, default=None)

    def arms_in(self, setting: Setting) -> list[str]:
        """The arms that completed a trial in this setting."""
        completed = {each.condition.arm for each in self.analysis.compositions if Setting.of(each.condition) == setting}
        return [arm for arm in self.arms if arm in completed]

    def cold_start_settings(self) -> list[Setting]:
        """The shortest length of each workload; any would do, because a cold start ends with the first observation.

        None in a live run of warm leases.
        """
        if self.warmth is not Warmth.COLD:
            return []
        return [min(self._of_workload(each), key=lambda setting: setting.length) for each in self.workloads()]

    def short_settings(self) -> list[Setting]:
        """For each workload the shortest length that most arms have; length 1 only if there is no other."""
        return [
            min(self._of_workload(each), key=lambda one: (one.length == 1, -len(self.arms_in(one)), one.length))
            for each in self.workloads()
        ]

    def long_setting(self) -> Setting | None:
        """The longest trajectory of the main workload that the most arms have."""
        of_workload = self._of_workload(self.main_workload())
        return max(of_workload, key=lambda one: (len(self.arms_in(one)), one.length), default=None)

    def _of_workload(self, workload: str | None) -> list[Setting]:
        return [each for each in self.serial_settings() if each.workload == workload]

    def lengths(self) -> list[int]:
        """The measured lengths of the main workload, ascending."""
        return sorted(each.length for each in self._of_workload(self.main_workload()))

    def summaries(self, setting: Setting, metric: Metric) -> dict[str, Summary]:
        """The summaries of this metric by arm; arms without one are left out."""
        found = {arm: self.analysis.summary(setting.on(arm), metric) for arm in self.arms}
        return {arm: summary for arm, summary in found.items() if summary is not None}

    def growths(self) -> list[Growth]:
        """How each arm's time grows with length, for the main workload and warmth, one at a time."""
        return [
            each
            for arm in self.arms
            for each in self.analysis.growths
            if (each.condition.arm, each.condition.workload) == (arm, self.main_workload())
            and each.condition.warmth is self.warmth
            and each.condition.concurrency == 1
        ]

    def load_series(self, metric: Metric) -> list[Series]:
        """This metric by concurrency, in the workload, length and warmth that most arms ran at two concurrencies."""
        lines = [
            (_apart_from_arm(each), each.condition.arm)
            for each in self.analysis.series(Metric.ACTION, "concurrency")
            if each.condition.arm in self.arms
        ]
        most = Counter(setting for setting, _ in lines).most_common(1)
        shown = {each for each in lines if each[0] == most[0][0]}
        found = self.analysis.series(metric, "concurrency", least=1)
        return [each for each in found if (_apart_from_arm(each), each.condition.arm) in shown]

    @cached_property
    def projection(self) -> Projection | None:
        """The projection of this study to the paper's scale; None if there is nothing to project from."""
        try:
            latencies = MeasuredLatencies(self.results, self.main_workload())
            return project(latencies, Scale(trajectories=paper.TRAJECTORIES, steps=paper.LONG_STEPS))
        except InvalidRequest:
            return None

    def trials_of(self, condition: Condition) -> list[Trial]:
        """The completed trials of a condition."""
        return [each for each in self.results.trials if each.completed and each.condition == condition]

    def typical_trial(self, condition: Condition) -> Trial | None:
        """The completed trial whose duration is closest to the condition's median."""
        summary = self.analysis.summary(condition, Metric.TRAJECTORY)
        if summary is None:
            return None
        middle = summary.p50.value
        return min(
            self.trials_of(condition), key=lambda each: abs((Metric.TRAJECTORY.of(each) or 0) - middle), default=None
        )


def _apart_from_arm(line: Series) -> Setting:
    return replace(Setting.of(line.condition), concurrency=1)


def extremes(summaries: dict[str, Summary]) -> tuple[Summary, Summary] | None:
    """The fastest and the slowest at the median; None if there are fewer than two."""
    ordered = sorted(summaries.values(), key=lambda each: each.p50.value)
    return (ordered[0], ordered[-1]) if len(ordered) > 1 and ordered[0].p50.value > 0 else None


def bounds_of(estimates: Sequence[Estimate]) -> list[float]:
    """Every value and bound, for an axis that shows them all."""
    return [
        number
        for each in estimates
        for number in (each.value, each.low, each.high)
        if number is not None and number > 0
    ]
