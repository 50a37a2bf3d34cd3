"""The paper's Tables 1 and 2, for this machine, beside the paper's own values, and how sensitive they are."""

from __future__ import annotations

from dataclasses import replace

from dutyfree.measure import paper
from dutyfree.measure.project import Projection, worker_hours
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.tables import Cell, Column, Footnotes, Group, Table, cells
from dutyfree.measure.stats.analysis import Metric
from dutyfree.measure.stats.estimate import Estimate

MILLION = f"{paper.TRAJECTORIES:,}"


def tables(evidence: Evidence, notes: Footnotes) -> tuple[Table, ...]:
    """Those that this study has the numbers for."""
    if evidence.projection is None:
        return ()
    return (
        _overheads(evidence, notes),
        _slowest_and_fastest(evidence.projection, notes, evidence.main_workload() == paper.LONG_WORKLOAD),
        _sensitivity(evidence.projection, notes),
    )


def _overheads(evidence: Evidence, notes: Footnotes) -> Table:
    """Table 1: what an overhead adds to a million rollouts."""
    published = tuple(
        cells((each.words, f"{MILLION} rollouts" + (f" {words.TIMES} {each.steps} actions" if each.steps else ""),
               f"{each.worker_hours:,} h"))
        for each in paper.TABLE_1
    )  # fmt: skip
    fixed, per_action = [], []
    for growth in evidence.growths():
        arm = words.name(growth.condition.arm)
        fixed.append((
            notes.cell(f"{arm}: {words.estimate_of(growth.fixed)} per rollout", *growth.fixed.caveats, *growth.caveats),
            Cell(f"{MILLION} rollouts"),
            _cell(_hours(growth.fixed, 1)),
        ))  # fmt: skip
    setting = evidence.long_setting()
    for summary in evidence.summaries(setting, Metric.MEAN_ACTION_TAX).values() if setting else ():
        arm = words.name(summary.condition.arm)
        doubts = (*summary.mean.caveats, *summary.caveats)
        per_action.append((
            notes.cell(f"{arm}: {words.estimate_of(summary.mean)} per action", *doubts),
            Cell(f"{MILLION} rollouts {words.TIMES} {paper.LONG_STEPS} actions"),
            _cell(_hours(summary.mean, paper.LONG_STEPS)),
        ))  # fmt: skip
    return Table(
        "overheads",
        "Table 1. What an overhead adds at the scale of training",
        (Column("overhead"), Column("scale"), Column("added worker-hours", True)),
        tuple(
            Group(tuple(rows), title)
            for title, rows in (
                ("The paper", published),
                ("This machine: what a rollout costs whatever its length (projection)", fixed),
                ("This machine: mean tax of one action (projection)", per_action),
            )
            if rows
        ),
        "The fixed part is that of the line fitted to mean times by length, set-up included. Means, not medians: they "
        "are what adds up.",
    )


def _slowest_and_fastest(projection: Projection, notes: Footnotes, is_papers_workload: bool) -> Table:
    """Table 2: the slowest and the fastest, and their difference, for a million trajectories."""
    fastest, slowest = projection.arms[0], projection.arms[-1]
    rows = []
    for published, projected in (
        (paper.SLOWEST, slowest),
        (paper.FASTEST, fastest),
        (paper.DIFFERENCE, projection.spread),
    ):
        row = [Cell(published.words), Cell(f"{published.latency_s:g} s"), Cell(f"{published.worker_hours:,} h")]
        if projected is None or len(projection.arms) == 1:
            row += cells([words.DASH] * 3)
        else:
            row += [
                Cell(words.name(projected.arm)),
                notes.estimate(projected.latency),
                _cell(projected.worker_hours),
            ]
        rows.append(tuple(row))
    columns = (
        Column("case"), Column("paper: one trajectory", True), Column("paper: worker-hours", True), Column("here"),
        Column("one trajectory", True), Column("worker-hours", True),
    )  # fmt: skip
    return Table(
        "slowest-and-fastest",
        f"Table 2. {paper.LONG_STEPS}-step trajectories, {MILLION} of them",
        columns,
        (Group(tuple(rows)),),
        f"Here: mean time of one trajectory ({words.name(projection.source)}) with its 95 % interval; worker-hours are "
        f"projected from it. The paper's machines, regions and substrates are others"
        + ("." if is_papers_workload else f", and its workload is {paper.LONG_WORKLOAD}."),
    )


def _sensitivity(projection: Projection, notes: Footnotes) -> Table:
    """Worker-hours at other lengths."""
    points = [each for each in projection.grid if each.trajectories == paper.TRAJECTORIES]
    rows = tuple(
        (
            Cell(words.name(projected.arm)),
            *(notes.estimate(point.worker_hours[projected.arm]) for point in points),
        )
        for projected in projection.arms
    )
    changes = [
        f"{words.name(each.overtakes)} overtakes {words.name(each.overtaken)} at {each.steps} steps"
        + ("" if each.certain else " (uncertain)")
        for each in projection.rank_changes
    ]
    return Table(
        "sensitivity",
        f"How that changes with length: worker-hours for {MILLION} trajectories",
        (Column("arm"), *(Column(f"{point.steps} steps", True) for point in points)),
        (Group(rows),),
        "Projection. For 100,000 trajectories it is a tenth, for 10,000,000 ten times as much. "
        + (f"Ranks change: {'; '.join(changes)}." if changes else "By these means, no two arms change places."),
    )


def _cell(hours: Estimate) -> Cell:
    """Without marks: the latency from which the hours are computed has them."""
    return Cell(words.value_of(hours), bounds=words.interval_of(hours))


def _hours(overhead: Estimate, times: int) -> Estimate:
    """The worker-hours that an overhead, this many times per rollout, adds to a million rollouts."""

    def hours(value_ms: float) -> float:
        return worker_hours(value_ms / words.MS_PER_S * times, paper.TRAJECTORIES)

    low, high = (None if bound is None else hours(bound) for bound in (overhead.low, overhead.high))
    return replace(overhead, value=hours(overhead.value), low=low, high=high, unit="h")
