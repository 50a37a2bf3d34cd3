"""The main findings of a study, as a few sentences made from its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dutyfree import formatting
from dutyfree.measure.design.study import Warmth
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, extremes
from dutyfree.measure.stats.analysis import Metric, Setting, Summary
from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.conditions import OTHER_CAUSES
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.ratios import logs_by_block, paired_ratios, readings


@dataclass(frozen=True)
class Saying:
    """One or two sentences, and their caveats."""

    text: str
    caveats: tuple[Caveat, ...] = ()


def says(evidence: Evidence) -> list[Saying]:
    """The sentences, the most important first; failures and the floor last. Never empty."""
    return [
        *_live(evidence),
        *_cheapest_action(evidence),
        *_cold_starts(evidence),
        *_long_trajectories(evidence),
        *_crossovers(evidence),
        *_warmth(evidence),
        *_load(evidence),
        _failures(evidence),
        *([_floor(evidence)] if evidence.results.bill is None else ()),
    ]


def _live(evidence: Evidence) -> Iterator[Saying]:
    """Which leases of a live run the numbers are of; the bill has all."""
    results = evidence.results
    if results.bill is None:
        return
    shown = sum(trial.condition.warmth is evidence.warmth for trial in results.trials)
    text = f"The bill is of {formatting.count(results.bill.leases, 'lease')}."
    if shown:
        text += f" Medians are of the {shown:,} that were {words.warmth_of(evidence.warmth)}"
        text += f", not of {others:,} others." if (others := len(results.trials) - shown) else "."
    if (apart := results.bill.leases - len(results.trials)) > 0:
        text += f" {apart:,} had no actions, or several at once, or had not ended: they are in the bill alone."
    yield Saying(text)


def _cheapest_action(evidence: Evidence) -> Iterator[Saying]:
    if setting := evidence.long_setting():
        summaries = evidence.summaries(setting, Metric.ACTION_TAX)
        if ends := extremes(summaries):
            least, most = ends
            ratio = _ratio(evidence, most, least)
            yield Saying(
                f"What the substrate adds to a command is least on {_arm(least)}, {words.estimate_of(least.p50)} at "
                f"the median, and most on {_arm(most)}, {words.estimate_of(most.p50)}"
                f"{_compared(ratio, 'much')} ({_where(setting)}).",
                _doubts(least, most, ratio=ratio),
            )
        else:
            for only in summaries.values():
                yield Saying(
                    f"On {_arm(only)} the substrate adds {words.estimate_of(only.p50)} to a command at the median "
                    f"({_where(setting)}).",
                    _doubts(only),
                )


def _cold_starts(evidence: Evidence) -> Iterator[Saying]:
    for setting in _first_and_last(evidence.cold_start_settings()):
        summaries = evidence.summaries(setting, Metric.FIRST_OBSERVATION)
        if ends := extremes(summaries):
            fast, slow = ends
            ratio = _ratio(evidence, slow, fast)
            yield Saying(
                f"A cold start of {words.name(setting.workload)} takes {words.estimate_of(fast.p50)} on {_arm(fast)} "
                f"and {words.estimate_of(slow.p50)} on {_arm(slow)}{_compared(ratio, 'long')}.",
                _doubts(fast, slow, ratio=ratio),
            )
        else:
            for only in summaries.values():
                yield Saying(
                    f"A cold start of {words.name(setting.workload)} takes {words.estimate_of(only.p50)} on "
                    f"{_arm(only)}.",
                    _doubts(only),
                )


def _long_trajectories(evidence: Evidence) -> Iterator[Saying]:
    setting = evidence.long_setting()
    if setting is None or setting.length == 1:
        return
    if ends := extremes(evidence.summaries(setting, Metric.TRAJECTORY)):
        fast, slow = ends
        ratio = _ratio(evidence, slow, fast)
        tax_shares = {each.condition: each.tax_share for each in evidence.analysis.compositions}
        shares = [tax_shares[each.condition] for each in ends]
        yield Saying(
            f"A trajectory of {_where(setting)} takes {words.estimate_of(fast.p50)} on {_arm(fast)} and "
            f"{words.estimate_of(slow.p50)} on {_arm(slow)}{_compared(ratio, 'long')}. Of the mean time, "
            f"{' and '.join(map(words.estimate_of, shares))} is tax.",
            (*_doubts(fast, slow, ratio=ratio), *(caveat for share in shares for caveat in share.caveats)),
        )


def _crossovers(evidence: Evidence) -> Iterator[Saying]:
    """The crossover at the smallest length, of those that are certain and within the measured lengths."""
    workload = evidence.main_workload()
    met = [
        (each, each.length)
        for each in evidence.analysis.crossovers
        if each.length is not None
        and each.length.low is not None
        and not {caveat.code for caveat in each.caveats} & {Code.MAY_NOT_CROSS, Code.EXTRAPOLATED}
        and each.setting.workload == workload
        and each.setting.warmth is Warmth.COLD
        and each.setting.concurrency == 1
    ]
    if met:
        each, length = min(met, key=lambda pair: pair[1].value)
        others = len(met) - 1
        more = (
            f" {formatting.count(others, 'other pair')} also change{'s' if others == 1 else ''} places."
            if others
            else ""
        )
        yield Saying(
            f"On average {words.name(each.short_arm)} is faster than {words.name(each.long_arm)} only below "
            f"{words.estimate_of(length)} ({words.name(each.setting.workload)}).{more}",
            (*length.caveats, *each.caveats),
        )


def _warmth(evidence: Evidence) -> Iterator[Saying]:
    warm = [
        each
        for each in evidence.analysis.warmth_ratios
        if each.metric is Metric.FIRST_OBSERVATION
        and each.condition.concurrency == 1
        and each.ratio.high is not None
        and each.ratio.high < 1
    ]
    if warm:
        best = min(warm, key=lambda each: each.ratio.value)
        yield Saying(
            f"Warm stages save most on {words.name(best.condition.arm)}: {words.warmth_of(best.condition.warmth)}, "
            f"the first observation of {words.name(best.condition.workload)} takes "
            f"{words.part_of(best.ratio)} of the cold time.",
            (*best.ratio.caveats, *best.caveats),
        )


def _load(evidence: Evidence) -> Iterator[Saying]:
    changes = []
    doubts: list[Caveat] = []
    for line in (lines := evidence.load_series(Metric.ACTION)):
        alone, crowded = line.points[0].summary, line.points[-1].summary
        if alone.p50.value > 0:
            changes.append(
                f"on {_arm(alone)} from {words.value_of(alone.p50)} at {alone.condition.concurrency} to "
                f"{words.value_of(crowded.p50)} at {crowded.condition.concurrency}"
            )
            doubts += _doubts(alone, crowded)
    if changes:
        start = words.warmth_of(lines[0].condition.warmth)
        yield Saying(
            f"With several sandboxes at once, an action's median latency goes {words.listed(changes)} "
            f"({_where(Setting.of(lines[0].condition))}, {start}).",
            tuple(dict.fromkeys(doubts)),
        )


def _failures(evidence: Evidence) -> Saying:
    counted = {
        arm: (sum(each.failed for each in own), sum(each.attempted for each in own))
        for arm in evidence.arms
        if (own := [each for each in evidence.analysis.failures if each.condition.arm == arm])
    }
    attempted, failed = (sum(pair[place] for pair in counted.values()) for place in (1, 0))
    if not attempted:
        return Saying("No trial was run." if evidence.results.bill is None else "No lease became a trial.")
    if not failed:
        return Saying(f"All {attempted:,} trials completed.")
    rates = {arm: of_arm / of_all for arm, (of_arm, of_all) in counted.items()}
    worst = max(rates, key=rates.__getitem__)
    text = f"{failed:,} of {attempted:,} trials failed and were not timed"
    if rates[worst] > min(rates.values()):
        text += f"; most often on {words.name(worst)}, {counted[worst][0]:,} of {counted[worst][1]:,}"
    causes: Counter[str] = Counter()
    for each in evidence.analysis.failures:
        if each.condition.arm in counted:
            causes.update(each.by_cause)
    del causes[OTHER_CAUSES]
    for cause, times in causes.most_common(1):
        if times > failed / 2:
            text += f". {'All' if times == failed else f'{times:,}'} of them: {words.line(cause)}"
    return Saying(f"{text}.")


def _floor(evidence: Evidence) -> Saying:
    floors = evidence.analysis.floors
    if not floors:
        return Saying("The instrument's own floor was not measured.")
    most = max(floors, key=lambda each: each.action.value)
    return Saying(
        f"The instrument itself takes at most {words.estimate_of(most.action)} per action at the median; it is part of "
        "every number, and is never subtracted.",
        (*most.action.caveats, *most.caveats),
    )


def _ratio(evidence: Evidence, slow: Summary, fast: Summary) -> Estimate | None:
    """The ratio, paired by block. Computed here, because the analysis has ratios to its baseline only."""
    both = [evidence.trials_of(each.condition) for each in (slow, fast)]
    ours, theirs = (logs_by_block(trials, readings(trials, [slow.metric])) for trials in both)
    return paired_ratios(ours, theirs, evidence.analysis.seed).get(slow.metric)


def _compared(ratio: Estimate | None, what: str) -> str:
    """How many times as much; or that the study does not show which of the two is more."""
    if ratio is None:
        return ""
    times, bounds = formatting.number(ratio.value), words.interval_of(ratio)
    if ratio.low is None or ratio.high is None:
        return f", {times} times as {what} in the blocks that have both (too few for an interval)"
    if ratio.low <= 1 <= ratio.high:
        return f"; this study cannot tell the two apart (ratio {times}, {bounds})"
    return f", {times} ({bounds}) times as {what}"


def _doubts(*summaries: Summary, ratio: Estimate | None = None) -> tuple[Caveat, ...]:
    found = [caveat for each in summaries for caveat in (*each.p50.caveats, *each.caveats)]
    return tuple(dict.fromkeys((*found, *(ratio.caveats if ratio else ()))))


def _arm(summary: Summary) -> str:
    return words.name(summary.condition.arm)


def _where(setting: Setting) -> str:
    return f"{words.name(setting.workload)}, {formatting.count(setting.length, 'action')}"


def _first_and_last(settings: list[Setting]) -> list[Setting]:
    """The lightest and the heaviest workload."""
    return list(dict.fromkeys([*settings[:1], *settings[-1:]]))
