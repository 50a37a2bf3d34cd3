"""The tables of a report: overview, every condition, ratios, failures, crossovers, soundness checks, floor, machine."""

from __future__ import annotations

from dutyfree import formatting
from dutyfree.measure.design.study import MAX_LENGTH, Condition
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.tables import Cell, Column, Footnotes, Group, Table, cells
from dutyfree.measure.results.records import TrialOutcome
from dutyfree.measure.stats.analysis import Failures, Metric, Setting, Summary

MOST_CAUSES = 3
NONE = Cell(words.DASH)
SHOWN = (Metric.FIRST_OBSERVATION, Metric.TRAJECTORY, Metric.ACTION, Metric.ACTION_TAX)
"""The metrics of the summary table."""


def at_a_glance(evidence: Evidence, notes: Footnotes) -> Table:
    """One row per arm, with the most important numbers."""
    cold = evidence.cold_start_settings()
    long = evidence.long_setting()
    isolated = any("isolation" in evidence.results.arms.get(arm, {}) for arm in evidence.arms)
    columns = [Column("arm"), *([Column("isolation")] if isolated else [])]
    columns += [Column(f"cold start p50, {words.name(each.workload)}", True) for each in cold]
    if long:
        columns += [
            Column("tax per action p50", True),
            Column(f"{words.name(long.workload)}, {formatting.count(long.length, 'action')}: p50", True),
            Column("of it tax", True),
        ]
    columns.append(Column("failed trials", True))
    rows = []
    for arm in evidence.arms:
        row = [Cell(words.name(arm)), *([Cell(_fact(evidence, arm, "isolation"))] if isolated else [])]
        row += [_median(evidence, each.on(arm), Metric.FIRST_OBSERVATION, notes) for each in cold]
        if long:
            row += [_median(evidence, long.on(arm), metric, notes) for metric in (Metric.ACTION_TAX, Metric.TRAJECTORY)]
            row.append(_tax_share(evidence, long.on(arm), notes))
        failures = [each for each in evidence.analysis.failures if each.condition.arm == arm]
        row.append(Cell(f"{sum(each.failed for each in failures):,} of {sum(each.attempted for each in failures):,}"))
        rows.append(tuple(row))
    return Table("glance", "At a glance", tuple(columns), (Group(tuple(rows)),), "Medians with their 95 % intervals.")


def every_condition(evidence: Evidence, notes: Footnotes) -> Table:
    """Every condition with its spread, grouped by setting; arms of one setting can be compared."""
    columns = [Column("arm"), Column("n", True), Column("failed", True)]
    for metric in SHOWN:
        columns += [Column(f"{metric.heading}: p50", True), Column("p95", True)]
    groups = []
    for setting in evidence.analysis.settings():
        rows = []
        for found in evidence.analysis.failures:
            if Setting.of(found.condition) != setting:
                continue
            row = [
                Cell(words.name(found.condition.arm)),
                Cell(f"{found.attempted - found.failed:,}"),
                _failed(found, notes),
            ]
            for metric in SHOWN:
                row += _quantiles(evidence.analysis.summary(found.condition, metric), notes)
            rows.append(tuple(row))
        groups.append(Group(tuple(rows), words.setting_of(setting)))
    return Table(
        "summary",
        "Every condition, with its spread",
        tuple(columns),
        tuple(groups),
        "n: sandboxes whose trial completed. In brackets: 95 % intervals of order statistics; ? is a bound that the "
        "sample is too small to give. Nothing was trimmed.",
    )


def ratios(evidence: Evidence, notes: Footnotes) -> Table:
    """Every arm compared with the baseline, paired by block."""
    baseline = words.name(evidence.analysis.baseline or "")
    metrics = (Metric.FIRST_OBSERVATION, Metric.TRAJECTORY, Metric.ACTION_TAX)
    found = {(each.condition, each.metric): each for each in evidence.analysis.ratios}
    groups = []
    for setting in evidence.analysis.settings():
        rows = []
        for arm in evidence.arms:
            row = [Cell(words.name(arm))]
            for metric in metrics:
                ratio = found.get((setting.on(arm), metric))
                row.append(NONE if ratio is None else notes.estimate(ratio.ratio, *ratio.caveats))
                row.append(NONE if ratio is None else Cell(f"{ratio.cliffs_delta:+.2f}"))
            if any(cell is not NONE for cell in row[1:]):
                rows.append(tuple(row))
        if rows:
            groups.append(Group(tuple(rows), words.setting_of(setting)))
    columns = [Column("arm")]
    for metric in metrics:
        columns += [Column(metric.heading, True), Column("Cliff's δ", True)]
    return Table(
        "ratios",
        f"How many times slower than {baseline}",
        tuple(columns),
        tuple(groups),
        f"Geometric mean of the ratio within a block, with its 95 % interval from {evidence.analysis.resamples:,} "
        "resamples of whole blocks. Above 1 is slower. Cliff's δ: the chance that a sandbox is slower than one of "
        "the baseline, minus the reverse.",
    )


def failures(evidence: Evidence, notes: Footnotes) -> Table:
    """The conditions in which a trial did not complete, and why."""
    rows = []
    for found in evidence.analysis.failures:
        if not found.failed:
            continue
        outcomes = ", ".join(
            f"{total} {outcome}"
            for outcome, total in found.by_outcome.items()
            if total and outcome is not TrialOutcome.COMPLETED
        )
        causes = [
            f"{total}{words.TIMES} {words.line(cause)}" for cause, total in list(found.by_cause.items())[:MOST_CAUSES]
        ]
        rows.append(
            (
                Cell(words.condition_of(found.condition)),
                Cell(f"{found.failed:,} of {found.attempted:,}"),
                notes.estimate(found.rate),
                Cell(outcomes),
                Cell("; ".join(causes)),
            )
        )
    columns = (Column("condition"), Column("failed", True), Column("rate", True), Column("outcomes"), Column("causes"))
    return Table(
        "failures", "Trials that did not complete", columns, (Group(tuple(rows)),), "Rates with their 95 % intervals."
    )


def crossovers(evidence: Evidence, notes: Footnotes) -> Table:
    """Every pair of arms whose order changes with length."""
    found = evidence.analysis.crossovers
    rows = [
        (
            Cell(words.series_of(each.setting)),
            Cell(words.name(each.short_arm)),
            Cell(words.name(each.long_arm)),
            notes.estimate(each.length, *each.caveats),
        )
        for each in found
        if each.length is not None
    ]
    columns = (Column("workload"), Column("faster below"), Column("faster above"), Column("crossover", True))
    never = formatting.count(len(found) - len(rows), "other pair")
    return Table(
        "crossovers",
        "Crossover lengths",
        columns,
        (Group(tuple(rows)),),
        f"From lines fitted to the mean times at the lengths measured, with 95 % intervals. The lines of {never} of "
        f"arms do not cross at any length up to {MAX_LENGTH:,}.",
    )


def soundness(evidence: Evidence, notes: Footnotes) -> Table:
    """Checks of the measurement: unattributed time, and drift during the study."""
    drifts = {each.condition: each for each in evidence.analysis.drifts}
    rows = []
    for found in evidence.analysis.residues:
        drift = drifts.get(found.condition)
        rows.append(
            (
                Cell(words.condition_of(found.condition)),
                Cell(f"{found.n:,}"),
                notes.cell(words.share(found.median), *found.caveats),
                Cell(words.share(found.most)),
                NONE if drift is None else notes.estimate(drift.change, *drift.caveats),
                NONE if drift is None else Cell(f"{drift.p_value:.2g}"),
            )
        )
    columns = (
        Column("condition"),
        Column("n", True),
        Column("unattributed, median", True),
        Column("most", True),
        Column("drift, first to last trial", True),
        Column("p", True),
    )
    return Table(
        "soundness",
        "Do the numbers hold?",
        columns,
        (Group(tuple(rows)),),
        "Unattributed: the share of a trial that no span covers. Drift: relative change over the study, with its 95 % "
        "interval.",
    )


def floor(evidence: Evidence, notes: Footnotes) -> Table:
    """The instrument's own time."""
    rows = [
        (
            Cell(words.setting_of(Setting.of(found.condition))),
            Cell(f"{found.n:,}"),
            notes.estimate(found.action, *found.caveats),
            notes.estimate(found.trajectory, *found.caveats),
        )
        for found in evidence.analysis.floors
    ]
    columns = (Column("setting"), Column("n", True), Column("action p50", True), Column("trajectory p50", True))
    return Table(
        "floor",
        "The instrument's own floor",
        columns,
        (Group(tuple(rows)),),
        "Measured on a null substrate that does nothing. It is part of every number here, and is never subtracted.",
    )


def machine(evidence: Evidence) -> Table:
    """Facts about the machine."""
    rows = tuple(
        cells((words.name(str(key)), words.line(_flat(value)))) for key, value in evidence.results.host.items()
    )
    return Table("machine", "The machine", (Column("fact"), Column("value")), (Group(rows),))


def arms(evidence: Evidence) -> Table:
    """The arms, with their options and versions."""
    rows = []
    for arm in evidence.results.study.arms:
        options = ", ".join(f"{key}={value}" for key, value in arm.options.items())
        facts = "; ".join(f"{key}: {_flat(value)}" for key, value in evidence.results.arms.get(arm.name, {}).items())
        limits = [
            text
            for text, limit in (
                (f"at most {arm.max_trials} trials per condition", arm.max_trials),
                (f"at most {arm.max_length} actions", arm.max_length),
            )
            if limit
        ]
        facts_of_arm = (arm.name, arm.substrate, options, arm.image or "", facts, ", ".join(limits))
        rows.append(cells([words.line(each) if each else words.DASH for each in facts_of_arm]))
    columns = tuple(map(Column, ("arm", "substrate", "options", "image", "facts", "limits")))
    return Table("arms", "The arms", columns, (Group(tuple(rows)),))


def _median(evidence: Evidence, condition: Condition, metric: Metric, notes: Footnotes) -> Cell:
    summary = evidence.analysis.summary(condition, metric)
    return NONE if summary is None else notes.estimate(summary.p50, *summary.caveats)


def _tax_share(evidence: Evidence, condition: Condition, notes: Footnotes) -> Cell:
    for each in evidence.analysis.compositions:
        if each.condition == condition:
            return notes.estimate(each.tax_share, *each.caveats)
    return NONE


def _quantiles(summary: Summary | None, notes: Footnotes) -> list[Cell]:
    if summary is None:
        return [NONE, NONE]
    return [notes.estimate(each, *summary.caveats) for each in (summary.p50, summary.p95)]


def _failed(found: Failures, notes: Footnotes) -> Cell:
    return notes.cell(f"{found.failed:,}", *found.caveats)


def _fact(evidence: Evidence, arm: str, key: str) -> str:
    return words.name(_flat(evidence.results.arms.get(arm, {}).get(key, words.DASH)))


def _flat(value: object) -> str:
    match value:
        case None:
            return words.DASH
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{key} {_flat(each)}" for key, each in value.items())
        case list() | tuple():
            return ", ".join(map(_flat, value))
        case _:
            return str(value)
