"""The summary for a terminal: the most important numbers, and a waterfall of a typical trial of each arm."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from dutyfree import formatting
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.says import says
from dutyfree.measure.report.tables import Footnotes, by_letter
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats.analysis import Analysis, Metric, Setting
from dutyfree.measure.stats.metrics import NS_PER_MS
from dutyfree.model import Phase

LEAST_WIDTH = 80
DEFAULT_WIDTH = 100
LEAST_SHARE = 0.005
"""A phase with a smaller share has no line of its own in a waterfall."""
NAME_COLUMNS = 18


def summary(results: Results, analysis: Analysis, *, width: int = DEFAULT_WIDTH, ascii_only: bool = False) -> str:
    """The summary of a study, in lines of at most `width` columns (at least 80), without colour."""
    width = max(width, LEAST_WIDTH)
    evidence, notes = Evidence(results, analysis), Footnotes()
    lines = [words.name(analysis.study, width), ""]
    if results.bill is not None:
        for line in formatting.plain(str(results.bill)).splitlines():
            lines += textwrap.wrap(line, width, subsequent_indent=" " * 15, drop_whitespace=False) or [""]
        lines.append("")
    for each in says(evidence):
        marks = ",".join(by_letter(notes.mark(each.caveats)))
        lines += _wrapped(each.text + (f" ({marks})" if marks else ""), width, "- ")
    if analysis.caveats:
        caveats = "; ".join(words.line(each.text) for each in analysis.caveats)
        lines += ["", *_wrapped(f"For all numbers: {caveats}.", width, "")]
    lines += _tables(evidence, notes)
    for code, letter in notes.letters.items():
        texts = list(notes.texts[code])
        more = f" (and {len(texts) - 1} more like it)" if len(texts) > 1 else ""
        lines += _wrapped(f"{texts[0]}{more}", width, f"({letter}) ")
    lines += _waterfalls(evidence, width, "#" if ascii_only else "█")
    text = "\n".join(line.rstrip() for line in lines)
    return text.translate({ord(words.DASH): "-", ord(words.TIMES): "x", ord("…"): "~"}) if ascii_only else text


def _tables(evidence: Evidence, notes: Footnotes) -> Iterator[str]:
    """A table for each important number, with a row for each arm."""
    yield ""
    yield f"{'':<{NAME_COLUMNS}} {'p50':>10} {'95 % interval':>15} {'p95':>10} {'n':>5} {'failed':>6}"
    for title, setting, metric in _decisive(evidence):
        yield title
        failures = {each.condition: each for each in evidence.analysis.failures}
        for arm in evidence.arms:
            failed = failures.get(setting.on(arm))
            found = evidence.analysis.summary(setting.on(arm), metric)
            if failed is None:
                continue
            row = f"  {words.name(arm, NAME_COLUMNS - 2):<{NAME_COLUMNS - 2}} "
            if found is None:
                yield f"{row}{words.DASH:>10} {'':>15} {'':>10} {0:>5} {failed.failed:>6}"
                continue
            marks = ",".join(by_letter(notes.mark((*found.p50.caveats, *found.p95.caveats, *found.caveats))))
            yield (
                f"{row}{words.value_of(found.p50):>10} {words.interval_of(found.p50):>15} "
                f"{words.value_of(found.p95):>10} {found.n:>5} {failed.failed:>6} {marks}"
            )


def _decisive(evidence: Evidence) -> Iterator[tuple[str, Setting, Metric]]:
    for setting in evidence.cold_start_settings():
        yield f"Cold start, {words.name(setting.workload, 40)}", setting, Metric.FIRST_OBSERVATION
    if long := evidence.long_setting():
        where = f"{words.name(long.workload, 40)}, {formatting.count(long.length, 'action')}"
        yield f"Tax of one action, {where}", long, Metric.ACTION_TAX
        yield f"Whole trajectory, {where}", long, Metric.TRAJECTORY


def _waterfalls(evidence: Evidence, width: int, block: str) -> Iterator[str]:
    setting = next((each for each in evidence.short_settings() if each.workload == evidence.main_workload()), None)
    if setting is None:
        return
    yield ""
    yield from _wrapped(f"One trial of each arm, the closest to the median ({words.setting_of(setting)}):", width, "")
    for arm in evidence.arms:
        trial = evidence.typical_trial(setting.on(arm))
        if trial is not None:
            yield f"{words.name(arm, width - 24)}, {words.duration(trial.wall_ns / NS_PER_MS)}"
            yield from _waterfall(trial, width, block)


def _waterfall(trial: Trial, width: int, block: str) -> Iterator[str]:
    """One bar per phase, from its start to its end. Phases of actions are summed, as if there were one action."""
    bar = width - 34
    begun, small = 0, []
    for phase in Phase:
        spent = trial.by_phase.get(phase, 0)
        if spent >= max(1, LEAST_SHARE * trial.wall_ns):
            left, right = (round(bar * at / trial.wall_ns) for at in (begun, begun + spent))
            left = min(left, bar - 1)
            yield _line(phase, " " * left + block * max(1, right - left), bar, spent, trial.wall_ns)
        elif spent:
            small.append(phase)
        begun += spent
    if small:
        yield _line("the rest", _listed(small, bar), bar, sum(trial.by_phase[phase] for phase in small), trial.wall_ns)


def _listed(phases: list[Phase], width: int) -> str:
    """As many names as fit into the width."""
    for kept in range(len(phases), 0, -1):
        more = f" and {len(phases) - kept} more" if kept < len(phases) else ""
        text = ", ".join(phases[:kept]) + more
        if len(text) <= width:
            return text
    return f"{len(phases)} phases"


def _line(name: str, drawn: str, bar: int, spent_ns: int, wall_ns: int) -> str:
    part = words.share(spent_ns / wall_ns)
    return f"  {name:<12} {drawn[:bar]:<{bar}} {words.duration(spent_ns / NS_PER_MS):>10} {part:>7}"


def _wrapped(text: str, width: int, first: str) -> Iterable[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=True)
