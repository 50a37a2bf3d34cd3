"""`dutyfree advise`: the cheapest substrate that is safe enough for some code, by a study's results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.choose.decision import Weights
from dutyfree.choose.trust import Trust
from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, SIZES, named, seconds, size_bytes, whole
from dutyfree.formatting import count, number, one_line, plain, size, table

if TYPE_CHECKING:
    from dutyfree.choose.decision import Cost, Decision
    from dutyfree.measure.advise import Advice, Announced, Evidence, Question, Unannounced
    from dutyfree.measure.stats.estimate import Caveat

_DEFAULTS = Weights()
_DIGITS = 4
"""Enough to recompute a cost to 0.01 s."""
_TERMS = ("arm", "acquire", "+ actions", "+ work", "+ memory", "+ failure", "= cost", "")


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "advise",
        help="recommend a substrate and the size of its pool",
        description="Choose the cheapest arm of a study (one substrate with its options) whose isolation is strong "
        "enough for the code that will run. Show the calculation: every term for every arm, which arms are excluded "
        "and why, the length at which another arm becomes cheaper, and how many sandboxes to keep ready. The numbers "
        "are the study's, with its caveats.",
        epilog="example: dutyfree advise results --trust model --actions 50 --work-s 60 --prompts 64 --group 8",
    )
    parser.add_argument("results", type=Path, metavar="DIR", help="results of `dutyfree bench`")
    parser.add_argument(
        "--trust",
        choices=[str(each) for each in Trust],
        default=str(Trust.MODEL),
        help="; ".join(f"{each}: {each.words}" for each in Trust) + " (default: model)",
    )
    rollout = parser.add_argument_group("rollout")
    rollout.add_argument("--actions", type=whole, default=50, metavar="N", help="actions of each rollout (default: 50)")
    rollout.add_argument(
        "--work-s",
        type=seconds,
        default=60.0,
        metavar="TIME",
        help=f"run time of all its commands together, on the fastest arm: {DURATIONS} (default: 60)",
    )
    rollout.add_argument(
        "--workload",
        metavar="NAME",
        help="use the trials of this workload (default: the one with the longest trajectory)",
    )
    rollout.add_argument(
        "--length",
        type=whole,
        metavar="N",
        help="use trials of this many actions (default: what most arms completed; of several, nearest to --actions)",
    )
    rollout.add_argument(
        "--stage",
        default="cold",
        metavar="STAGE",
        help="how sandboxes start: cold, or warm at this stage (default: cold)",
    )
    _add_weights(parser)
    pool = parser.add_argument_group("pool")
    pool.add_argument("--prompts", type=whole, metavar="N", help="announced demand: prompts of a step")
    pool.add_argument("--group", type=whole, default=8, metavar="N", help="rollouts of each prompt (default: 8)")
    pool.add_argument("--rate", type=float, metavar="PER_SECOND", help="unannounced demand: requests for a sandbox")
    pool.add_argument(
        "--miss-cost",
        type=float,
        default=99.0,
        metavar="N",
        help="a request that waits costs as much as N idle sandboxes (default: 99)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def _add_weights(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("costs, in one currency (default: seconds of a rollout)")
    costs.add_argument(
        "--second-cost", type=float, default=_DEFAULTS.second, metavar="COST", help="of a second (default: 1)"
    )
    costs.add_argument(
        "--gib-second-cost",
        type=float,
        default=_DEFAULTS.gib_second,
        metavar="COST",
        help="of a GiB of memory held for a second (default: 0.1)",
    )
    costs.add_argument(
        "--lost-rollout-cost",
        type=float,
        default=_DEFAULTS.lost_rollout,
        metavar="COST",
        help="of a rollout that fails, beside its time, such as its tokens (default: 0)",
    )
    costs.add_argument(
        "--memory",
        action="append",
        default=[],
        type=named(size_bytes, "cell=1m"),
        metavar="ARM=SIZE",
        help=f"memory of one sandbox of this arm, which a study does not measure: {SIZES} (may be repeated)",
    )
    costs.add_argument(
        "--accept-emulated",
        action="store_true",
        help="accept the isolation of an emulated processor, too, for untrusted and hostile code",
    )


def execute(options: argparse.Namespace) -> int:
    """Decide and print."""
    with measure_extra():
        from dutyfree.measure.advise import advise
        from dutyfree.measure.results.directory import load_results
    advice = advise(load_results(options.results), _question(options))
    print(json.dumps(advice.to_json(), indent=2) if options.json else "\n".join(_lines(advice)))
    return ExitCode.DONE


def _question(options: argparse.Namespace) -> Question:
    from dutyfree.measure.advise import Question
    from dutyfree.measure.design.file import stage

    return Question(
        trust=Trust(options.trust),
        actions=options.actions,
        work_s=options.work_s,
        workload=options.workload,
        length=options.length,
        warmth=stage(options.stage),
        weights=Weights(options.second_cost, options.gib_second_cost, options.lost_rollout_cost),
        memory_bytes=dict(options.memory),
        accept_emulated=options.accept_emulated,
        prompts=options.prompts,
        group=options.group,
        rate_per_s=options.rate,
        miss_cost=options.miss_cost,
    )


def _lines(advice: Advice) -> list[str]:
    from dutyfree.measure.report.words import setting_of

    decision = advice.decision
    lines = [
        f"trust class {decision.trust}: {decision.trust.words}",
        f"rollout: {count(decision.actions, 'action')}, {decision.work_s:g} s of work on {plain(advice.fastest)}, "
        "the fastest arm",
        f"measured: {plain(advice.study)}: {setting_of(advice.setting)}, one sandbox at a time",
        "",
        *_measured_table(advice),
        "",
        *_cost_table(decision),
        *(f"left out: {plain(arm)}: {plain(why)}" for arm, why in advice.left_out.items()),
        "",
        f"decision: {plain(decision.why)}",
        *_lengths(decision),
    ]
    if advice.announced is not None or advice.unannounced is not None:
        lines += ["", f"pool of {plain(decision.chosen.name)}"]
    if advice.announced is not None:
        lines += _announced(advice.announced, advice.of(decision.chosen.name))
    if advice.unannounced is not None:
        lines += _unannounced(advice.unannounced, decision.eligible[0])
    lines += ["", *(f"assumed: {each}" for each in advice.assumptions)]
    lines += [f"caveat: {plain(each.text)} [{each.code}]" for each in advice.caveats]
    doubted: dict[Caveat, list[str]] = {}
    for arm in advice.evidence:
        for each in arm.caveats:
            doubted.setdefault(each, []).append(plain(arm.candidate.name))
    return lines + [f"caveat: {', '.join(arms)}: {plain(each.text)} [{each.code}]" for each, arms in doubted.items()]


def _measured_table(advice: Advice) -> list[str]:
    rows = [("arm", "isolation", "acquire", "tax per action", "slowdown", "failed", "memory")]
    for each in advice.evidence:
        candidate = each.candidate
        rows.append(
            (
                one_line(candidate.name),
                candidate.isolation.label + (" (emulated)" if candidate.emulated else ""),
                f"{number(candidate.acquire_s, _DIGITS)} s",
                f"{number(1000 * candidate.action_overhead_s, _DIGITS)} ms",
                _slowdown(each, advice.fastest),
                f"{each.failed} of {each.attempted}",
                size(candidate.memory_bytes) if candidate.memory_bytes else "?",
            )
        )
    return table(rows, frozenset(range(2, 7)))


def _slowdown(evidence: Evidence, fastest: str) -> str:
    from dutyfree.measure.report.words import interval_of

    used = evidence.candidate.slowdown
    bounds = "" if evidence.candidate.name == fastest else interval_of(evidence.slowdown)
    return f"{used:,.4f} ({bounds})" if bounds else f"{used:,.4f}"


def _cost_table(decision: Decision) -> list[str]:
    weights = decision.weights
    formula = [
        f"life = acquire + {decision.actions} x tax per action + {decision.work_s:g} s x slowdown",
        f"cost = {weights.second:g} x life + {weights.gib_second:g} x GiB x life"
        f" + share that failed x (all that + {weights.lost_rollout:g})",
    ]

    def row(cost: Cost, note: str = "") -> tuple[str, ...]:
        terms = (cost.acquire, cost.actions, cost.work, cost.memory, cost.failure, cost.total)
        return (one_line(cost.candidate.name), *(f"{each:,.3f}" for each in terms), note)

    notes = ["least", *[""] * (len(decision.eligible) - 1)]
    rows = [row(cost, note) for cost, note in zip(decision.eligible, notes, strict=True)]
    rows += [row(each.cost, f"excluded: {each.reason}") for each in decision.excluded]
    return [*formula, "", *table([_TERMS, *rows], frozenset(range(1, 7)))]


def _lengths(decision: Decision) -> list[str]:
    each_s = decision.work_s / decision.actions
    lines = [f"by length, with {each_s:,.3g} s of work for each action:"]
    for reign in decision.reigns:
        until = "on" if reign.last is None else f"to {reign.last:,}"
        lines.append(f"  from {count(reign.first, 'action')} {until}, {plain(reign.name)} is the cheapest")
    lines += [
        f"  {plain(each.short)} and {plain(each.long)} cost the same at {each.actions:,.1f} actions; "
        f"in longer rollouts {plain(each.long)} costs less"
        for each in decision.crossovers
    ]
    return lines


def _announced(pool: Announced, chosen: Evidence) -> list[str]:
    wanted = f"{pool.prompts} prompts x {pool.group} = {pool.wanted}"
    share = f"{chosen.failed} of {chosen.attempted} failed"
    least = f"the smallest N with P(Binomial(N, {1 - pool.failure_rate:.4f}) >= {pool.wanted}) >= 0.99"
    worst = "more than a hundred times as many" if pool.worst_size is None else f"{pool.worst_size}"
    if pool.size is None or pool.redundancy is None:
        needed = f"so often that no sensible number gives {pool.wanted}"
    else:
        needed = f"{least} is {pool.size} = {pool.wanted} x (1 + {pool.redundancy:.4f})"
    return [
        f"  announced: {wanted}; {share}: {needed}",
        f"    if they fail as often as these trials leave open ({pool.worst_failure_rate:.1%}): {worst}",
    ]


def _unannounced(pool: Unannounced, cost: Cost) -> list[str]:
    lead_s, expected = number(pool.lead_s, _DIGITS), number(pool.expected, _DIGITS)
    return [
        f"  not announced: {pool.rate_per_s:g} per s x {lead_s} s to make one (mean) = {expected}; "
        f"the smallest s with P(Poisson({expected}) <= s) >= {pool.level:.4g} is {pool.quantile}; "
        f"by Little's law at least {pool.floor}: keep {pool.size} ready",
        f"    in use beside them: {pool.rate_per_s:g} per s x {cost.life_s:,.1f} s = {pool.in_use:,.1f} on average",
    ]
