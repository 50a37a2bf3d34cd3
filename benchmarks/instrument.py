"""What the instrument itself costs: its floor on the null substrate, and what measuring does to a trajectory in a cell.

    python benchmarks/instrument.py [--blocks 40] [--length 150] [--json]

Prints numbers and asserts none. The trajectory (T0) is run in blocks, measured and not measured in random order: not
measured means the same substrate, guarded as users have it, no listener, no journal. Ratios are geometric means over
blocks, with 95 % intervals from a bootstrap over whole blocks. What a trial does outside its clock, the journal's last
lines and the proof that the sandbox was new, is in "elapsed" and not in "wall"; the wait for the disk is in neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.design.study import Arm, Condition, Grid, Study
from dutyfree.measure.results.records import Trial
from dutyfree.measure.results.writer import ResultsWriter
from dutyfree.measure.run.arms import OpenArm, open_arm
from dutyfree.measure.run.cold import SeenSandboxes
from dutyfree.measure.run.trial import Attempt, Job
from dutyfree.measure.workloads.catalogue import find
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import ScriptedAction
from dutyfree.model import SandboxSpec

RESAMPLES = 5000


class Bench:
    """Runs trials one by one, as a study does, and the same without an instrument."""

    def __init__(self, study: Study, writer: ResultsWriter) -> None:
        self._study = study
        self._writer = writer
        self._seen = SeenSandboxes()
        self._number = 0
        self.workload = find("T0")

    async def measured(self, arm: OpenArm, trajectory: tuple[ScriptedAction, ...]) -> tuple[Trial, float]:
        """The trial, and all of the time that it took but the wait for the disk, in milliseconds."""
        start_s = time.perf_counter()
        self._number += 1
        planned = PlannedTrial(self._number, 0, Condition(arm.arm.name, "T0", len(trajectory)), 0)
        job = Job(planned, self._study, arm, self.workload, trajectory, f"bench-{self._number}")
        attempt = Attempt(job, self._writer, self._seen)
        trial = await attempt.measure(self._writer.next_sequence())
        self._writer.end(trial, sandbox=attempt.sandbox_id, sync=False)
        elapsed_ms = (time.perf_counter() - start_s) * 1e3
        self._writer.sync()
        if not trial.completed:
            raise SystemExit(f"a trial failed: {trial.cause}")
        return trial, elapsed_ms

    async def unmeasured(self, arm: OpenArm, trajectory: tuple[ScriptedAction, ...]) -> float:
        """Milliseconds from the start of creation to the end of destruction."""
        start_s = time.perf_counter()
        sandbox = await arm.substrate.create(SandboxSpec(resources=self._study.resources, image=arm.image))
        for scripted in trajectory:
            await sandbox.run(scripted.action)
        await sandbox.destroy()
        return (time.perf_counter() - start_s) * 1e3


def ratio(pairs: Sequence[tuple[float, float]], seed: int = 1) -> tuple[float, float, float]:
    """Geometric mean of first / second, and its interval."""
    logs = [math.log(first / second) for first, second in pairs]
    numbers = random.Random(seed)
    means = sorted(statistics.fmean(numbers.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


async def floor(bench: Bench, arm: OpenArm, blocks: int, length: int) -> dict[str, Any]:
    """The null substrate: what an action takes that does nothing."""
    latencies_us: list[float] = []
    walls_us: list[float] = []
    elapsed_us: list[float] = []
    for seed in range(blocks):
        trial, elapsed_ms = await bench.measured(arm, draw(bench.workload, length, seed))
        latencies_us += [action.latency_ns / 1e3 for action in trial.actions]
        walls_us.append(trial.wall_ns / length / 1e3)
        elapsed_us.append(elapsed_ms * 1e3 / length)
    return {
        "trials": blocks,
        "actions": len(latencies_us),
        "action_p50_us": statistics.median(latencies_us),
        "action_p99_us": statistics.quantiles(latencies_us, n=100)[98],
        "wall_per_action_p50_us": statistics.median(walls_us),
        "elapsed_per_action_p50_us": statistics.median(elapsed_us),
    }


async def cost(bench: Bench, substrate: str, blocks: int, length: int) -> dict[str, Any]:
    """A trajectory, measured and not measured, in random order."""
    arm = await open_arm(Arm(substrate, substrate))
    order = random.Random(7)
    walls: list[tuple[float, float]] = []
    wholes: list[tuple[float, float]] = []
    for seed in range(blocks):
        trajectory = draw(bench.workload, length, seed)
        bare_ms = await bench.unmeasured(arm, trajectory) if order.random() < 0.5 else None
        trial, elapsed_ms = await bench.measured(arm, trajectory)
        if bare_ms is None:
            bare_ms = await bench.unmeasured(arm, trajectory)
        walls.append((trial.wall_ns / 1e6, bare_ms))
        wholes.append((elapsed_ms, bare_ms))
    await arm.close()
    return {
        "substrate": substrate,
        "blocks": blocks,
        "bare_p50_ms": statistics.median(bare for _, bare in walls),
        "wall_p50_ms": statistics.median(wall for wall, _ in walls),
        "elapsed_p50_ms": statistics.median(whole for whole, _ in wholes),
        "wall_ratio": ratio(walls),
        "elapsed_ratio": ratio(wholes),
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    arms = with_null((Arm(options.substrate, options.substrate),))
    study = Study("instrument", arms, (Grid(1, ("T0",), (options.length,)),))
    with (
        tempfile.TemporaryDirectory() as directory,
        ResultsWriter(Path(directory) / "results", study, host={}, workloads={}) as writer,
    ):
        bench = Bench(study, writer)
        null = await open_arm(Arm("null", "null"))
        await floor(bench, null, 3, options.length)  # what is imported and cached only once
        return {
            "length": options.length,
            "floor": await floor(bench, null, options.blocks, options.length),
            "cost": await cost(bench, options.substrate, options.blocks, options.length),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--length", type=int, default=150)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(run(options))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    base, more = found["floor"], found["cost"]
    print(f"floor, null substrate, {base['trials']} trials of {found['length']} actions")
    print(f"  an action            p50 {base['action_p50_us']:8.2f} us   p99 {base['action_p99_us']:.2f} us")
    print(f"  wall / actions       p50 {base['wall_per_action_p50_us']:8.2f} us")
    print(f"  with all journaling  p50 {base['elapsed_per_action_p50_us']:8.2f} us an action")
    print(f"{more['substrate']}, {more['blocks']} blocks of {found['length']} actions")
    print(f"  not measured         p50 {more['bare_p50_ms']:8.2f} ms")
    for name, title in (("wall", "measured, wall"), ("elapsed", "measured, elapsed")):
        point, low, high = more[f"{name}_ratio"]
        print(f"  {title:<20} p50 {more[f'{name}_p50_ms']:8.2f} ms   x {point:.4f} [{low:.4f}, {high:.4f}]")
    share = base["wall_per_action_p50_us"] * found["length"] / (more["bare_p50_ms"] * 1e3)
    print(f"  the floor of as many actions is {share:.2%} of the trajectory")


if __name__ == "__main__":
    main()
