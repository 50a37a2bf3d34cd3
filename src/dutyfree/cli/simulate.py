"""`dutyfree simulate`: a pool or a fleet under a load, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import positive
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import duration, plain, table

if TYPE_CHECKING:
    from dutyfree.cli.progress_bar import Display
    from dutyfree.simulate import Outcome, Scenario

POLICIES = ("locality", "no-locality", "cold")
_BAR_COLUMNS = 20
_SAID_EVERY_S = 15.0


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="simulate a pool or a fleet under a load",
        description="Simulate a scenario: nodes with pools, the load of a training run, and latencies that were "
        "measured. Planner and router are those of real pools. Without a scenario, synchronous steps of 64 prompts x 8 "
        "on one node. Each policy gets the same load: `locality`, and as controls `no-locality` and `cold`.",
        epilog="example: dutyfree simulate examples/simulate/million.toml --policy locality",
    )
    parser.add_argument("scenario", nargs="?", type=Path, metavar="SCENARIO.toml", help="the scenario, as a file")
    parser.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        help="only this one (may be repeated; default: all three, side by side)",
    )
    parser.add_argument("--nodes", type=positive, metavar="N", help="instead of the scenario's")
    parser.add_argument(
        "--trajectories", type=positive, metavar="N", help="instead of the scenario's; rounded to whole steps"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="instead of the scenario's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Simulate, and print the results."""
    import asyncio

    return asyncio.run(_simulate(options))


async def _simulate(options: argparse.Namespace) -> int:
    import asyncio

    from dutyfree.cli.progress_bar import Display

    scenario = _scenario(options)
    policies: Sequence[str] = tuple(dict.fromkeys(options.policy or POLICIES))
    outcomes: list[Outcome] = []
    took_s: list[float] = []
    async with Display(quiet=options.quiet) as display:
        for policy in policies:
            start_s = time.monotonic()
            watch = _Watch(display, policy, scenario.load.trajectories)
            try:
                outcomes.append(await asyncio.to_thread(_run, scenario, policy, watch))
            finally:
                watch.stop.set()  # a thread that is still running ends at its next report
            took_s.append(time.monotonic() - start_s)
    if options.json:
        rows = [outcome.to_json() | {"took_s": round(took, 3)} for outcome, took in zip(outcomes, took_s, strict=True)]
        print(json.dumps({"scenario": scenario.name, "seed": scenario.seed, "outcomes": rows}, indent=2))
    else:
        print("\n".join(_lines(scenario, outcomes, took_s)))
    return ExitCode.DONE


def _run(scenario: Scenario, policy: str, watch: _Watch) -> Outcome:
    from dutyfree.pool.routing import Policy
    from dutyfree.simulate import simulate

    return simulate(scenario, Policy(policy), watch)


def _scenario(options: argparse.Namespace) -> Scenario:
    """The scenario, changed as the options say. Raises InvalidRequest."""
    from dutyfree.simulate import default_scenario, load_scenario
    from dutyfree.simulate.load import Steps

    scenario = default_scenario() if options.scenario is None else load_scenario(options.scenario)
    load = scenario.load
    if options.trajectories is not None:
        if isinstance(load, Steps):
            in_step = load.prompts * load.group
            if options.trajectories < in_step:
                hint = f"a step has {in_step} trajectories: ask for that many, or write a scenario"
                raise InvalidRequest(f"--trajectories {options.trajectories} is less than a step", hint=hint)
            load = replace(load, steps=round(options.trajectories / in_step))
        else:
            load = replace(load, trajectories=options.trajectories)
    return replace(
        scenario,
        load=load,
        nodes=scenario.nodes if options.nodes is None else options.nodes,
        seed=scenario.seed if options.seed is None else options.seed,
    )


class _Stopped(Exception):
    """The command was interrupted: the simulation ends without a result."""


class _Watch:
    """Shows the progress of a simulation, and ends it once `stop` is set."""

    def __init__(self, display: Display, policy: str, trajectories: int) -> None:
        from dutyfree.cli.progress_bar import ASCII, FINE

        self.stop = threading.Event()
        self._display = display
        self._policy = policy
        self._trajectories = trajectories
        self._signs = FINE if (sys.stderr.encoding or "").lower().replace("-", "") == "utf8" else ASCII
        self._said_s = time.monotonic()
        self(0)

    def __call__(self, done: int) -> None:
        """Show that `done` trajectories have ended."""
        if self.stop.is_set():
            raise _Stopped
        full = _BAR_COLUMNS * done // self._trajectories
        bar = self._signs.full * full + self._signs.empty * (_BAR_COLUMNS - full)
        progress = f"{self._policy}: {done:,} of {self._trajectories:,} trajectories"
        self._display.state.begin(f"{bar} {progress}")
        if not self._display.is_live and time.monotonic() - self._said_s >= _SAID_EVERY_S:
            self._said_s = time.monotonic()
            self._display.say(progress)


def _lines(scenario: Scenario, outcomes: Sequence[Outcome], took_s: Sequence[float]) -> list[str]:
    where = f"{scenario.nodes:,} nodes" if scenario.nodes > 1 else "1 node"
    load = f"{scenario.load.trajectories:,} trajectories on {where}"
    lines = [f"simulated: {plain(scenario.name)}: {load}, seed {scenario.seed}", ""]
    rows = [("", *(outcome.policy for outcome in outcomes))]
    for head, cell in _ROWS:
        rows.append((head, *(cell(outcome) for outcome in outcomes)))
    rows.append(("computed in", *(duration(each) for each in took_s)))
    lines += table(rows, frozenset(range(1, len(outcomes) + 1)))
    best = {outcome.policy: outcome.readiness.mean_s for outcome in outcomes}
    mean_s = best.get("locality", 0.0)
    if mean_s > 0:
        lines.append("")
        for policy, other_s in best.items():
            if policy != "locality":
                ratio = other_s / mean_s
                times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
                lines.append(f"mean readiness: {policy} takes {times} times as long as locality")
    for outcome in outcomes:
        for what, causes in (("trajectories without a result", outcome.failures), ("works that failed", outcome.lost)):
            if causes:
                counts = ", ".join(f"{cause} {number:,}" for cause, number in sorted(causes.items()))
                lines.append(f"{outcome.policy}: {what}: {counts}")
    return lines


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else duration(seconds)


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"


def _rungs(outcome: Outcome) -> str:
    total = max(1, sum(outcome.hits.values()))
    lower = sorted(rung for rung in outcome.hits if rung != "hit")
    return ", ".join(f"{rung} {_share(outcome.hits[rung] / total)}" for rung in lower) or "-"


_ROWS: Sequence[tuple[str, Callable[[Outcome], str]]] = (
    ("readiness, mean", lambda outcome: _time(outcome.readiness.mean_s)),
    ("p50", lambda outcome: _time(outcome.readiness.p50_s)),
    ("p95", lambda outcome: _time(outcome.readiness.p95_s)),
    ("p99", lambda outcome: _time(outcome.readiness.p99_s)),
    ("in the queue, mean", lambda outcome: _time(outcome.queue.mean_s)),
    ("hits", lambda outcome: _share(outcome.hit_rate)),
    ("others", _rungs),
    ("idle sandbox-hours", lambda outcome: f"{outcome.idle_s / 3600:,.1f}"),
    ("of all sandbox-hours", lambda outcome: _share(outcome.waste)),
    ("creations", lambda outcome: f"{outcome.operations.get('create', 0):,}"),
    ("promotions", lambda outcome: f"{outcome.operations.get('promote', 0):,}"),
    ("resets", lambda outcome: f"{outcome.operations.get('reset', 0) + outcome.operations.get('demote', 0):,}"),
    ("evictions", lambda outcome: f"{outcome.operations.get('evicted', 0):,}"),
    ("most sandboxes on a node", lambda outcome: f"{outcome.most_sandboxes:,}"),
    ("worker-hours", lambda outcome: f"{outcome.worker_hours:,.1f}"),
    ("whole run", lambda outcome: duration(outcome.makespan_s)),
    ("without a result", lambda outcome: f"{sum(outcome.failures.values()):,}"),
)
