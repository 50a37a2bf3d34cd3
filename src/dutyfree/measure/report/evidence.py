"""What is shown: results and their analysis, and which conditions of them a figure or a table is about. Pure."""

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
    """Results, and what was found in them. Arms are in the order of the study, without the null substrate's."""

    results: Results
    analysis: Analysis

    @property
    def arms(self) -> tuple[str, ...]:
        """Every contender, also those of which no trial completed."""
        return self.analysis.arms

    def serial_settings(self) -> list[Setting]:
        """Settings in which sandboxes were cold and one at a time, and some trial completed."""
        told = {
            Setting.of(each.condition): None for each in self.analysis.compositions if each.condition.arm in self.arms
        }
        return [each for each in told if each.warmth is Warmth.COLD and each.concurrency == 1]

    def workloads(self) -> list[str]:
        """Those of the serial settings, in the order of the study."""
        return list(dict.fromkeys(each.workload for each in self.serial_settings()))

    def main_workload(self) -> str | None:
        """The one of which most lengths were measured, the last of several: the paper's T2."""
        lengths = [each.workload for each in self.serial_settings()]
        return max(reversed(self.workloads()), key=lengths.count, default=None)

    def arms_in(self, setting: Setting) -> list[str]:
        """Those with a trial that completed."""
        told = {each.condition.arm for each in self.analysis.compositions if Setting.of(each.condition) == setting}
        return [arm for arm in self.arms if arm in told]

    def cold_start_settings(self) -> list[Setting]:
        """For each workload the shortest trajectories: a cold start ends with the first observation."""
        return [min(self._of_workload(each), key=lambda setting: setting.length) for each in self.workloads()]

    def short_settings(self) -> list[Setting]:
        """For each workload the shortest trajectory that most arms have; one action only where there is no other."""
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
        """Of the main workload, ascending."""
        return sorted(each.length for each in self._of_workload(self.main_workload()))

    def summaries(self, setting: Setting, metric: Metric) -> dict[str, Summary]:
        """This metric by arm, where it is known."""
        told = {arm: self.analysis.summary(setting.on(arm), metric) for arm in self.arms}
        return {arm: summary for arm, summary in told.items() if summary is not None}

    def growths(self) -> list[Growth]:
        """How each arm's time grows with length, for the main workload, cold, one at a time."""
        return [
            each
            for arm in self.arms
            for each in self.analysis.growths
            if (each.condition.arm, each.condition.workload) == (arm, self.main_workload())
            and each.condition.warmth is Warmth.COLD
            and each.condition.concurrency == 1
        ]

    def load_series(self, metric: Metric) -> list[Series]:
        """This metric by concurrency, in the one workload, length and warmth that most arms have at two of them."""
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
        """The paper's scale, on what was measured here; None where there is nothing to project from."""
        try:
            latencies = MeasuredLatencies(self.results, self.main_workload())
        except InvalidRequest:
            return None
        return project(latencies, Scale(trajectories=paper.TRAJECTORIES, steps=paper.LONG_STEPS))

    def trials_of(self, condition: Condition) -> list[Trial]:
        """Those that completed."""
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
    """The fastest and the slowest at the median; None where there are not two."""
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
