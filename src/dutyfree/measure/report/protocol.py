"""The protocol of a study as text: design, order, the meaning of cold, what is counted, and the statistics."""

from __future__ import annotations

from dataclasses import dataclass

from dutyfree import formatting
from dutyfree.measure.design.study import Grid, Study, Warmth
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence


@dataclass(frozen=True)
class Rule:
    """One part of the protocol."""

    title: str
    text: str


def protocol(evidence: Evidence) -> list[Rule]:
    """All parts, in the order of the measurement; of a live run, what holds for it."""
    study, analysis = evidence.results.study, evidence.analysis
    if evidence.results.bill is not None:
        return _of_live_run(analysis.resamples, analysis.seed)
    return [
        Rule("Design", _design(study)),
        Rule(
            "Order",
            "Randomised blocks: a block is one setting, run on every arm that takes part in it, in random order, on "
            "the same trajectories; trials of a block differ only in their arm. Blocks of a setting are spread "
            f"over the whole study, so that changes of the machine affect all alike. Seed {study.seed}: the "
            "same study gives the same plan.",
        ),
        Rule("Trials", _trials(evidence)),
        Rule("Cold", _cold(study)),
        Rule(
            "Warm",
            "A warm trial starts from a sandbox in which the stages up to the one named are done; its clock starts "
            "with what remains of the set-up.",
        ),
        Rule(
            "Clock",
            "One monotonic clock. A trial lasts from the start of creation (warm: of the remaining set-up) to the "
            "end of destruction. Execution is measured by the guest inside the sandbox; dispatch and observe are the "
            "rest of an action. Phases and `unattributed` add up to the whole of every trial. Model inference and "
            "reward are not part of it.",
        ),
        Rule(
            "Fidelity",
            "Every action states the expected observation. A trial with another observation is a failed trial: "
            "counted, shown, never timed.",
        ),
        Rule("Limits", _limits(study)),
        Rule(
            "Several at once",
            "Open loop: trials arrive at random times, at a rate that keeps this many running on average, whether or "
            "not earlier ones are done; with four times that number running, arrivals are refused. Response time "
            "counts from the planned start, service time from the actual start.",
        ),
        Rule(
            "Numbers",
            "The sandbox is the unit of repetition: actions are first combined within it. Quantiles of all completed "
            "trials, none trimmed, with 95 % intervals from order statistics, which assume no distribution. Ratios "
            f"are geometric means of paired ratios within blocks, with intervals from {analysis.resamples:,} "
            f"resamples of whole blocks (seed {analysis.seed}). Failure rates have Wilson's intervals.",
        ),
        Rule(
            "Floor",
            "A null substrate that does nothing is an arm of the study"
            + ("" if analysis.floor_arm else " if it names one; this one does not")
            + ". Its times are the instrument's own share: they are shown, and never subtracted.",
        ),
        Rule(
            "Projection",
            f"Worker-hours = trajectories {words.TIMES} time of one trajectory / 3,600 s. Projections are labelled as "
            "such; the interval is that of the measurement, carried through. Queueing, retries and other machines "
            "are not in it.",
        ),
    ]


def _of_live_run(resamples: int, seed: int) -> list[Rule]:
    return [
        Rule(
            "Live run",
            "Leases of a running program, as they came: nothing was randomised, repeated or held equal, so that "
            "differences between leases may have any cause. The bill has all of them.",
        ),
        Rule(
            "Trials",
            "A lease whose actions ran one after the other is a trial; its owner takes the place of the workload. Its "
            "clock is stopped between actions. Warm: its sandbox existed already; cold: it waited for a new one.",
        ),
        Rule(
            "Numbers",
            "Quantiles of all trials, none trimmed, with 95 % intervals from order statistics. Intervals of means are "
            f"from {resamples:,} resamples of leases (seed {seed}).",
        ),
    ]


def _design(study: Study) -> str:
    arms = words.listed([words.name(arm.name) for arm in study.arms])
    grids = "; ".join(_grid(each) for each in study.grids)
    return f"Study {words.name(study.name)}: {formatting.count(len(study.arms), 'arm')} ({arms}). {grids}."


def _grid(grid: Grid) -> str:
    parts = [
        f"{formatting.count(grid.trials, 'trial')} of {words.listed([words.name(each) for each in grid.workloads])}",
        f"with {words.listed([str(each) for each in grid.lengths])} action{'' if grid.lengths == (1,) else 's'}",
        words.listed([words.warmth_of(each) for each in grid.warmths]),
    ]
    if grid.concurrencies != (1,):
        parts.append(f"{words.listed([str(each) for each in grid.concurrencies])} at once")
    if grid.arms:
        parts.append(f"on {words.listed([words.name(each) for each in grid.arms])}")
    return ", ".join(parts)


def _trials(evidence: Evidence) -> str:
    results = evidence.results
    ran, completed = len(results.trials), sum(trial.completed for trial in results.trials)
    text = f"{ran:,} of {results.planned:,} planned trials were run, {completed:,} completed."
    return f"{text} The study was cut short: {words.line(results.cut_short)}." if results.cut_short else text


def _cold(study: Study) -> str:
    if not any(Warmth.COLD in grid.warmths for grid in study.grids):
        return "No trial of this study was cold."
    text = (
        "Every trial has a new sandbox. This is checked: at its end, while its clock is stopped, a trial "
        "searches places that could outlive a sandbox for files of earlier trials. A trial that finds "
        "such a file, or whose sandbox has the id of an earlier one, is not timed."
    )
    if study.evict:
        evicted = words.listed([words.name(each) for each in study.evict])
        return f"{text} Evicted before each cold trial, and verified: {evicted}."
    return f"{text} The machine's own caches were not evicted."


def _limits(study: Study) -> str:
    resources = study.resources
    limits = [
        f"{formatting.number(value / (1 << 20), 4)} MiB of {what}"
        for what, value in (("memory", resources.memory_bytes), ("disk", resources.disk_bytes))
        if value
    ]
    if resources.cpus:
        limits.append(f"{resources.cpus:g} CPUs")
    if resources.pids:
        limits.append(f"{resources.pids:,} processes")
    bounds = words.listed(limits) if limits else "no limits"
    text = f"Every sandbox: {bounds}. A trial may take {study.trial_timeout_s:g} s."
    if study.time_limit_s:
        text += f" No block begins after {study.time_limit_s:g} s."
    return f"{text} Think time of recordings is {'kept' if study.keep_think_time else 'dropped'}."
