"""`dutyfree project`: latencies projected to the worker-hours and the cost of a training run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, named, seconds, whole
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import number, plain, table

if TYPE_CHECKING:
    from dutyfree.measure.project import Latencies, Projection
    from dutyfree.measure.project.reproduction import Reproduction, Row
    from dutyfree.measure.stats.estimate import Estimate

_MONEY = ("workers", "price_per_worker_hour", "gpu_price_per_hour", "gpus_waiting")

_BEYOND = "*"

_COLUMNS = (
    ("latency", "latency"),
    ("worker-hours", "worker_hours"),
    ("hours", "elapsed_hours"),
    ("workers cost", "worker_cost"),
    ("GPU-hours idle", "gpu_idle_hours"),
    ("idle GPUs cost", "gpu_idle_cost"),
)


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "project",
        help="project latencies to the worker-hours and the cost of a training run",
        description="Project the latency of a trajectory to a training run: worker-hours, time, cost, and the cost of "
        "GPUs that wait, each with the uncertainty of the measurement. Latencies come from the results of a study, or "
        "from --latency.",
        epilog="example: dutyfree project results --trajectories 1e6 --steps 150 --workers 500 "
        "--price-per-worker-hour 0.05 --gpu-price-per-hour 2.5 --gpus-waiting 64",
    )
    parser.add_argument("results", nargs="?", type=Path, metavar="DIR", help="results of `dutyfree bench`")
    parser.add_argument(
        "--latency",
        action="append",
        default=[],
        type=named(seconds, "docker=42.5"),
        metavar="NAME=TIME",
        help=f"instead of results: the time of a trajectory of --steps: {DURATIONS} (may be repeated)",
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help="instead of results: reproduce Tables 1 and 2 of the paper that this method follows, arXiv 2607.01415",
    )
    parser.add_argument(
        "--workload",
        metavar="NAME",
        help="use this workload of the results (default: the one with the longest trajectory)",
    )
    parser.add_argument(
        "--stage",
        metavar="STAGE",
        help="cold, or warm at this stage (default: cold; for a live run, that of the most leases)",
    )
    scale = parser.add_argument_group("training run")
    scale.add_argument("--trajectories", type=whole, default=1_000_000, metavar="N", help="default: 1e6")
    scale.add_argument("--steps", type=whole, default=150, metavar="N", help="actions of each (default: 150)")
    scale.add_argument("--workers", type=whole, metavar="N", help="sandboxes that run at the same time")
    scale.add_argument("--price-per-worker-hour", type=float, metavar="MONEY", help="in any currency")
    scale.add_argument("--gpu-price-per-hour", type=float, metavar="MONEY", help="in the same currency")
    scale.add_argument("--gpus-waiting", type=whole, metavar="N", help="GPUs that wait while rollouts run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Project and print."""
    with measure_extra():
        from dutyfree.measure.project import Scale, project
        from dutyfree.measure.project.reproduction import reproduce
    if (options.results is not None) + bool(options.latency) + options.paper != 1:
        raise InvalidRequest("name one source of latencies", hint="the results of a study, --latency, or --paper")
    if options.paper:
        tables = reproduce()
        print(json.dumps(tables.to_json(), indent=2) if options.json else "\n".join(_paper_lines(tables)))
        return ExitCode.DONE
    scale = Scale(options.trajectories, options.steps, **{name: getattr(options, name) for name in _MONEY})
    projection = project(_latencies(options), scale)
    if options.json:
        print(json.dumps(projection.to_json(), indent=2))
    else:
        print("\n".join(_lines(projection)))
    return ExitCode.DONE


def _latencies(options: argparse.Namespace) -> Latencies:
    from dutyfree.measure.design.file import stage
    from dutyfree.measure.project import MeasuredLatencies, StatedLatencies
    from dutyfree.measure.results.directory import load_results

    if options.latency:
        names = [name for name, _ in options.latency]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidRequest(f"--latency names {twice[0]!r} twice", hint="each latency needs a name of its own")
        return StatedLatencies(dict(options.latency), options.steps)
    warmth = None if options.stage is None else stage(options.stage)
    return MeasuredLatencies(load_results(options.results), options.workload, warmth)


def _lines(projection: Projection) -> list[str]:
    scale = projection.scale
    lines = [
        f"projection: {scale.trajectories:,} trajectories of {scale.steps} steps, from {projection.source}",
        "",
        *_arms_table(projection),
        "",
        "worker-hours by steps and trajectories, fewest first",
        *_grid_table(projection),
        "",
    ]
    changes = [
        f"at {each.steps} steps {plain(each.overtakes)} overtakes {plain(each.overtaken)}"
        + ("" if each.certain else " (the two are too alike to be sure)")
        for each in projection.rank_changes
    ]
    if not changes and len({point.steps for point in projection.grid}) > 1 and len(projection.arms) > 1:
        changes = ["by these means the ranking is the same throughout"]
    lines += changes
    lines += [f"assumed: {each}" for each in projection.assumptions]
    lines += [f"caveat: {plain(each.text)} [{each.code}]" for each in projection.caveats]
    for arm in projection.arms:
        lines += [f"caveat: {plain(arm.arm)}: {plain(each.text)} [{each.code}]" for each in arm.caveats]
    return lines


def _arms_table(projection: Projection) -> list[str]:
    rows = [*projection.arms, *([projection.spread] if projection.spread is not None else [])]
    kept = [(head, field) for head, field in _COLUMNS if getattr(rows[0], field) is not None]
    body = [(plain(row.arm), *(_estimate_words(getattr(row, field)) for _, field in kept)) for row in rows]
    return table([("", *(head for head, _ in kept)), *body], frozenset(range(1, len(kept) + 1)))


def _grid_table(projection: Projection) -> list[str]:
    from dutyfree.measure.stats.caveats import Code

    def is_beyond(hours: Estimate) -> bool:
        return any(each.code == Code.EXTRAPOLATED for each in hours.caveats)

    rows = [("steps", "trajectories", "worker-hours")]
    for point in projection.grid:
        hours_by_arm = ", ".join(
            f"{plain(arm)} {number(hours.value)}{_BEYOND if is_beyond(hours) else ''}"
            for arm, hours in point.worker_hours.items()
        )
        rows.append((str(point.steps), f"{point.trajectories:,}", hours_by_arm))
    note = f"{_BEYOND} beyond what was measured on this arm, by the line that was fitted"
    any_beyond = any(is_beyond(hours) for point in projection.grid for hours in point.worker_hours.values())
    return [*table(rows, frozenset({0, 1})), *([note] if any_beyond else [])]


def _estimate_words(estimate: Estimate) -> str:
    places = 3 if estimate.unit == "s" else 0 if abs(estimate.value) >= 100 else 1
    ends = ["?" if end is None else f"{end:,.{places}f}" for end in (estimate.low, estimate.high)]
    interval = "" if ends == ["?", "?"] else f" ({ends[0]} to {ends[1]})"
    unit = f" {estimate.unit}" if estimate.unit in ("s", "h") else ""
    return f"{estimate.value:,.{places}f}{unit}{interval}"


def _paper_lines(tables: Reproduction) -> list[str]:
    def row(each: Row) -> tuple[str, ...]:
        return (each.words, f"{each.consistent_s:,.3f} s", f"{each.hours:,.0f} h", f"{each.published_hours:,} h")

    heads = ("", "latency", "projected", "published")
    return [
        "projection: the paper's tables, one million trajectories of 150 steps",
        "",
        "Table 1",
        *table([heads, *map(row, tables.table_1)], frozenset({1, 2, 3})),
        "",
        "Table 2",
        *table([heads, *map(row, tables.table_2)], frozenset({1, 2, 3})),
        "",
        "The paper prints latencies rounded to 0.1 s, which do not give its worker-hours to the hour:",
        *(
            f"  {each.latency_s:g} s gives {each.hours_as_printed:,.0f} h; what rounds to it gives "
            f"{each.least_hours:,.0f} to {each.most_hours:,.0f} h, published {each.published_hours:,} h"
            for each in tables.table_2
        ),
        "Table 2 above starts from latencies that round to the printed ones and give the published worker-hours.",
    ]
