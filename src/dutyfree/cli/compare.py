"""`dutyfree compare`: what became faster or slower between two results; the exit code can fail a CI job."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import percent
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import count, plain, table

if TYPE_CHECKING:
    from dutyfree.measure.compare import Comparison, Difference, FailureDifference, Gates

_SHOWN = 10


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="say what became faster, what became slower, and what is undecided",
        description="Compare two results, condition by condition and metric by metric. A difference is reported if it "
        "is significant (p < 0.01 by a rank test, corrected for the number of comparisons) and larger than --effect. "
        "Between two runs, only what is more than drift of the machine explains is called faster or slower; "
        "`dutyfree bench --against` interleaves two versions in one run. "
        "The exit code is 1 if anything became slower by more than --threshold, fails more often, or no longer "
        "completes a trial at all.",
        epilog="example: dutyfree compare results/main results/branch --threshold 10",
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help="results of `dutyfree bench`")
    parser.add_argument("after", type=Path, nargs="?", metavar="AFTER", help="results of the same study, later")
    parser.add_argument(
        "--between",
        nargs=2,
        metavar=("ARM", "ARM"),
        help="compare two arms (each a substrate with its options) of the results BEFORE, instead of two results",
    )
    parser.add_argument(
        "--threshold", type=percent, metavar="PERCENT", help="a slowdown past this is a failure (default: --effect)"
    )
    parser.add_argument(
        "--effect",
        type=percent,
        metavar="PERCENT",
        help="smaller differences are not reported (default: 5, or --threshold if that is less)",
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="conditions that no longer complete a trial are not a failure"
    )
    parser.add_argument(
        "--significance", type=float, default=0.01, metavar="P", help="p must be below this (default: %(default)g)"
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="only this metric (may be repeated)"
    )
    parser.add_argument("--all", action="store_true", help="also show undecided comparisons")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Compare the results and print the differences. Exit code 1: there is a regression."""
    with measure_extra():
        from dutyfree.measure.compare import COMPARED, compare, compare_arms
        from dutyfree.measure.results.directory import load_results
    from dutyfree.measure.stats.metrics import Metric

    if (options.after is None) == (options.between is None):
        raise InvalidRequest("compare takes two results, or one result and --between ARM ARM")
    for name in options.metric:
        if name not in list(Metric):
            raise InvalidRequest(f"there is no metric {name!r}", hint=f"there are: {', '.join(Metric)}")
    gates = gates_of(options.effect, options.threshold, options.significance)
    metrics = tuple(map(Metric, options.metric)) or COMPARED
    before = load_results(options.before)
    if options.between is not None:
        found = compare_arms(before, dict([options.between]), gates, metrics=metrics)
    else:
        found = compare(before, load_results(options.after), gates, metrics=metrics)
    regressed = is_regression(found, options.threshold, allow_missing=options.allow_missing)
    if options.json:
        print(json.dumps({**found.to_json(), "regression": regressed}, indent=2))
    else:
        print("\n".join(lines(found, options.threshold, show_all=options.all, allow_missing=options.allow_missing)))
    return ExitCode.FAILED if regressed else ExitCode.DONE


def gates_of(effect: float | None, threshold: float | None, significance: float = 0.01) -> Gates:
    """The gates that these options mean. Raises InvalidRequest if they contradict each other."""
    from dutyfree.measure.compare import Gates

    if effect is None:
        effect = Gates().effect if threshold is None else min(Gates().effect, threshold)
    elif threshold is not None and threshold < effect:
        raise InvalidRequest(
            f"--threshold {100 * threshold:g} is below --effect {100 * effect:g}",
            hint="a difference below --effect is not reported, so it cannot fail",
        )
    return Gates(significance=significance, effect=effect)


def is_regression(found: Comparison, threshold: float | None, *, allow_missing: bool = False) -> bool:
    """Whether the comparison fails a gate: something is slower, fails more, or is lost."""
    return bool(found.regressions(threshold) or (found.lost and not allow_missing))


def lines(
    found: Comparison, threshold: float | None, *, show_all: bool = False, allow_missing: bool = False
) -> list[str]:
    """The comparison as text."""
    from dutyfree.measure.compare import Verdict
    from dutyfree.measure.report import words

    gates, regressions = found.gates, found.regressions(threshold)
    everything: list[Difference | FailureDifference] = [*found.differences, *found.failures]
    reported = [each for each in everything if each.verdict is not Verdict.CANNOT_TELL]
    shown = everything if show_all else reported
    trials = "interleaved" if found.interleaved else "paired" if found.paired else "unpaired"
    text = [
        f"{count(len(everything), 'comparison')} of {trials} trials; reported: "
        f"differences over {words.share(gates.effect)} with p < {gates.significance:g} after correction",
        "",
    ]
    if shown:
        heads = ("condition", "metric", "before", "after", "ratio", "p", "delta", "verdict")
        text += [*table([heads, *map(_row, shown)], frozenset({2, 3, 4, 5, 6})), ""]
    for verdict in Verdict:
        number = sum(each.verdict is verdict for each in everything)
        if number:
            text.append(f"{verdict}: {number}")
    unmissed = [each for each in found.only_before if each not in found.lost]
    for what, conditions in (
        ("no longer completes", found.lost),
        ("only before", unmissed),
        ("only after", found.only_after),
    ):
        text += [f"{what}: {words.condition_of(each)}" for each in conditions[:_SHOWN]]
        text += [f"{what}: {len(conditions) - _SHOWN} more"] if len(conditions) > _SHOWN else []
    doubts = dict.fromkeys((*found.caveats, *(doubt for each in reported for doubt in each.caveats)))
    text += [f"caveat: {plain(each.text)} [{each.code}]" for each in doubts]
    if any(each.verdict is Verdict.CHANGED for each in everything):
        text.append("hint: measure both sides interleaved, in one run: dutyfree bench --against")
    past = words.share(gates.effect if threshold is None else threshold)
    text.append(f"regressions past {past}: {len(regressions) or 'none'}")
    if found.lost:
        allowed = " (allowed)" if allow_missing else "; --allow-missing lets them pass"
        text.append(f"conditions that no longer complete a trial: {len(found.lost)}{allowed}")
    return text


def _row(found: Difference | FailureDifference) -> tuple[str, ...]:
    from dutyfree.measure.compare import Difference
    from dutyfree.measure.report import words

    what, ratio, delta = "failures", "", ""
    if isinstance(found, Difference):
        what, ratio, delta = found.metric, words.estimate_of(found.ratio), f"{found.cliffs_delta:+.2f}"
    before, after = words.value_of(found.before), words.value_of(found.after)
    return (
        words.condition_of(found.condition),
        what,
        before,
        after,
        ratio,
        f"{found.adjusted_p:.1g}",
        delta,
        found.verdict,
    )
