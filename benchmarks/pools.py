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
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import dutyfree
from dutyfree.images.recipes.readiness import at_home
from dutyfree.measure.workloads import catalogue, drawing, materials
from dutyfree.model import Recipe, Resources
from dutyfree.model.limits import GIB

RESOURCES = Resources(memory_bytes=GIB, disk_bytes=GIB // 2)


@dataclass
class Arm:
    """A pool that is warm to one stage, and what acquires from it took."""

    name: str
    host: dutyfree.LocalHost
    wanted: Recipe
    warm: Recipe | None
    """What is announced before every acquire."""
    times_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """To the first observation."""


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        workload = materials.prepare(catalogue.find("T2"), Path(directory))
        recipe = Recipe(options.base, at_home(workload.stages))
        opening = drawing.draw(workload, 1, 0)[0]
        async with AsyncExitStack() as held:
            arms = await arms_of(options.substrate, recipe, held)
            order = random.Random(options.seed)
            for block in range(options.blocks + 1):
                for arm in order.sample(arms, len(arms)):
                    await one(arm, opening, block, keep=block > 0)
        table(arms)


async def arms_of(substrate: str, recipe: Recipe, held: AsyncExitStack) -> list[Arm]:
    base = Recipe(recipe.base)

    async def host(**pool: object) -> dutyfree.LocalHost:
        options = dutyfree.PoolOptions(sandboxes=4, **pool)  # type: ignore[arg-type]
        return await held.enter_async_context(dutyfree.local(substrate, pool=options))

    return [
        Arm("dependencies warm", await host(), recipe, recipe),
        Arm("base warm, layers", await host(), recipe, base),
        Arm("base warm, no layers", await host(layers=False), recipe, base),
        Arm("cold, layers", await host(policy="cold"), recipe, None),
        Arm("cold, no layers", await host(policy="cold", layers=False), recipe, None),
    ]


async def one(arm: Arm, opening: object, block: int, *, keep: bool) -> None:
    """One acquire, its first action, its release."""
    pool = arm.host.pool
    if arm.warm is not None:
        await pool.announce([(arm.warm, 1)], name=f"block {block}", resources=RESOURCES)
        await settled(lambda: pool.status().idle >= 1, lambda: (arm.name, pool.status()))
    start_s = time.perf_counter()
    async with arm.host.lease(arm.wanted, resources=RESOURCES, timeout_s=120) as box:
        ready_s = time.perf_counter()
        seen = await box.run(opening.action.command, timeout_s=60)  # type: ignore[attr-defined]
        first_s = time.perf_counter()
    mismatch = opening.expect.mismatch(seen)  # type: ignore[attr-defined]
    if mismatch:
        raise SystemExit(f"{arm.name}: {mismatch}")
    if keep:
        arm.times_ms.append(1000 * (ready_s - start_s))
        arm.first_ms.append(1000 * (first_s - start_s))
    await settled(lambda: not pool.status().leased and not pool.status().works, lambda: (arm.name, pool.status()))


async def settled(condition: Callable[[], bool], told: Callable[[], object], within_s: float = 20.0) -> None:
    """Wait until the pool is at rest: its work between two acquires is not what is measured."""
    end_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end_s:
            raise SystemExit(f"the pool did not come to rest: {told()}")
        await asyncio.sleep(0.01)


def table(arms: list[Arm]) -> None:
    warm = arms[0]
    print(f"{'':24}{'acquire p50':>14}{'p95':>10}{'to first observation':>24}{'times the warm one':>22}")
    for arm in arms:
        ratios = sorted(each / base for each, base in zip(arm.times_ms, warm.times_ms, strict=True))
        spread = f"{statistics.median(ratios):.1f} ({ratios[len(ratios) // 4]:.1f}-{ratios[3 * len(ratios) // 4]:.1f})"
        p95 = sorted(arm.times_ms)[int(0.95 * len(arm.times_ms))]
        p50, first = statistics.median(arm.times_ms), statistics.median(arm.first_ms)
        print(f"{arm.name:24}{p50:>11.2f} ms{p95:>7.1f} ms{first:>21.1f} ms{spread:>22}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--base", default="host", help="what stages are put over: engines need an image, image:NAME")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=6)
    asyncio.run(main(parser.parse_args()))
