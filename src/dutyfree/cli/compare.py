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
    from dutyfree.measure.compare import Comparison, Difference, FailureDifference

_SHOWN = 10


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="say what became faster, what became slower, and what is undecided",
        description="Compare two results, condition by condition and metric by metric. A difference is reported if it "
        "is significant (p < 0.01 by a rank test, corrected for the number of comparisons) and larger than --effect. "
        "The exit code is 1 if anything became slower by more than --threshold, fails more often, or no longer "
        "completes a trial at all.",
        epilog="example: dutyfree compare results/main results/branch --threshold 10",
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help="results of `dutyfree bench`")
    parser.add_argument("after", type=Path, metavar="AFTER", help="results of the same study, later")
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
        from dutyfree.measure.compare import COMPARED, Gates, compare
        from dutyfree.measure.results.directory import load_results
    from dutyfree.measure.stats.metrics import Metric

    for name in options.metric:
        if name not in list(Metric):
            raise InvalidRequest(f"there is no metric {name!r}", hint=f"there are: {', '.join(Metric)}")
    effect, threshold = options.effect, options.threshold
    if effect is None:
        effect = Gates().effect if threshold is None else min(Gates().effect, threshold)
    elif threshold is not None and threshold < effect:
        raise InvalidRequest(
            f"--threshold {100 * threshold:g} is below --effect {100 * effect:g}",
            hint="a difference below --effect is not reported, so it cannot fail",
        )
    gates = Gates(significance=options.significance, effect=effect)
    before, after = load_results(options.before), load_results(options.after)
    found = compare(before, after, gates, metrics=tuple(map(Metric, options.metric)) or COMPARED)
    regressed = bool(found.regressions(threshold) or (found.lost and not options.allow_missing))
    if options.json:
        print(json.dumps({**found.to_json(), "regression": regressed}, indent=2))
    else:
        print("\n".join(_lines(found, options)))
    return ExitCode.FAILED if regressed else ExitCode.DONE


def _lines(found: Comparison, options: argparse.Namespace) -> list[str]:
    from dutyfree.measure.compare import Verdict
    from dutyfree.measure.report import words

    gates, regressions = found.gates, found.regressions(options.threshold)
    everything: list[Difference | FailureDifference] = [*found.differences, *found.failures]
    reported = [each for each in everything if each.verdict is not Verdict.CANNOT_TELL]
    shown = everything if options.all else reported
    lines = [
        f"{count(len(everything), 'comparison')} of {'paired' if found.paired else 'unpaired'} trials; reported: "
        f"differences over {words.share(gates.effect)} with p < {gates.significance:g} after correction",
        "",
    ]
    if shown:
        heads = ("condition", "metric", "before", "after", "ratio", "p", "delta", "verdict")
        lines += [*table([heads, *map(_row, shown)], frozenset({2, 3, 4, 5, 6})), ""]
    for verdict in Verdict:
        number = sum(each.verdict is verdict for each in everything)
        if number:
            lines.append(f"{verdict}: {number}")
    unmissed = [each for each in found.only_before if each not in found.lost]
    for what, conditions in (
        ("no longer completes", found.lost),
        ("only before", unmissed),
        ("only after", found.only_after),
    ):
        lines += [f"{what}: {words.condition_of(each)}" for each in conditions[:_SHOWN]]
        lines += [f"{what}: {len(conditions) - _SHOWN} more"] if len(conditions) > _SHOWN else []
    doubts = dict.fromkeys((*found.caveats, *(doubt for each in reported for doubt in each.caveats)))
    lines += [f"caveat: {plain(each.text)} [{each.code}]" for each in doubts]
    past = words.share(gates.effect if options.threshold is None else options.threshold)
    lines.append(f"regressions past {past}: {len(regressions) or 'none'}")
    if found.lost:
        allowed = " (allowed)" if options.allow_missing else "; --allow-missing lets them pass"
        lines.append(f"conditions that no longer complete a trial: {len(found.lost)}{allowed}")
    return lines


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
