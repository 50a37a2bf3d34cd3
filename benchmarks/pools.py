"""What a warm pool saves: acquire to a sandbox in the wanted state, from pools that are warm to different stages.

Arms are interleaved in random order within blocks, on one substrate, doing the same: acquire, the first action of T2,
which must give what it should, release. Prints medians, and ratios taken within blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import dutyfree
from dutyfree.images.recipes.readiness import at_home
from dutyfree.measure.workloads import catalogue, drawing, materials
from dutyfree.measure.workloads.workload import ScriptedAction
from dutyfree.model import Recipe, Resources
from dutyfree.model.limits import GIB

RESOURCES = Resources(memory_bytes=GIB, disk_bytes=GIB // 2)


@dataclass
class Arm:
    """A pool that is warm to one stage, and what acquires from it took."""

    name: str
    warm: Recipe | None
    """What is announced before every acquire."""
    options: dutyfree.PoolOptions
    times_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """To the first observation."""


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        workload = materials.prepare(catalogue.find("T2"), Path(directory))
        recipe = Recipe(options.base, at_home(workload.stages))
        opening = drawing.draw(workload, 1, 0)[0]
        arms, order = arms_of(recipe), random.Random(options.seed)
        for block in range(options.blocks + 1):
            for arm in order.sample(arms, len(arms)):
                await one(arm, options.substrate, recipe, opening, keep=block > 0)
        table(arms)


def arms_of(recipe: Recipe) -> list[Arm]:
    base = Recipe(recipe.base)
    with_layers, without = dutyfree.PoolOptions(sandboxes=4), dutyfree.PoolOptions(sandboxes=4, layers=False)
    return [
        Arm("dependencies warm", recipe, with_layers),
        Arm("base warm, layers", base, with_layers),
        Arm("base warm, no layers", base, without),
        Arm("cold, layers", None, replace(with_layers, policy="cold")),
        Arm("cold, no layers", None, replace(without, policy="cold")),
    ]


async def one(arm: Arm, substrate: str, recipe: Recipe, opening: ScriptedAction, *, keep: bool) -> None:
    """One acquire and its first action, in a pool of its own: one that had seen it before would keep all of it warm."""
    async with dutyfree.local(substrate, pool=arm.options) as host:
        await host.pool.prepare([recipe], resources=RESOURCES)
        if arm.warm is not None:
            await host.pool.announce([(arm.warm, 1)], name="next", resources=RESOURCES)
            await host.pool.ready(name="next", timeout_s=60)
        start_s = time.perf_counter()
        async with host.lease(recipe, resources=RESOURCES, timeout_s=120) as box:
            ready_s = time.perf_counter()
            seen = await box.run(opening.action.command, timeout_s=60)
            first_s = time.perf_counter()
    mismatch = opening.expect.mismatch(seen)
    if mismatch:
        raise SystemExit(f"{arm.name}: {mismatch}")
    if keep:
        arm.times_ms.append(1000 * (ready_s - start_s))
        arm.first_ms.append(1000 * (first_s - start_s))


def table(arms: list[Arm]) -> None:
    warm = arms[0]
    print(f"{'':24}{'acquire p50':>14}{'p95':>10}{'to first observation':>24}{'times the warm one':>26}")
    for arm in arms:
        ratios = sorted(each / base for each, base in zip(arm.times_ms, warm.times_ms, strict=True))
        spread = f"{statistics.median(ratios):.1f} ({ratios[len(ratios) // 4]:.1f}-{ratios[3 * len(ratios) // 4]:.1f})"
        p95 = sorted(arm.times_ms)[int(0.95 * len(arm.times_ms))]
        p50, first = statistics.median(arm.times_ms), statistics.median(arm.first_ms)
        print(f"{arm.name:24}{p50:>11.2f} ms{p95:>7.1f} ms{first:>21.1f} ms{spread:>26}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--base", default="host", help="what stages are put over: engines need an image, image:NAME")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=6)
    asyncio.run(main(parser.parse_args()))
