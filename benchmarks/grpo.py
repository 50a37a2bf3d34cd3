"""Synchronous RL steps on real sandboxes: how long rollouts wait for theirs, by policy.

Each step has 64 prompts with a group of 8 each; prompts come from 20 repositories by Zipf's law. The pool may have a
quarter of the sandboxes that a step asks for. Policies do the same steps, one after the other in random order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import dutyfree
from dutyfree.model import Recipe, Resources, Stage
from dutyfree.model.limits import MIB

RESOURCES = Resources(memory_bytes=256 * MIB, disk_bytes=64 * MIB)
GROUP = 8


@dataclass
class Arm:
    """A pool with one policy, and what became of its steps."""

    name: str
    host: dutyfree.LocalHost
    announced: bool
    readiness_ms: list[float] = field(default_factory=list)
    steps_ms: list[float] = field(default_factory=list)
    """The mean of each step."""
    hits: int = 0
    step_s: list[float] = field(default_factory=list)


def recipes(count: int, layers: bool) -> list[Recipe]:
    """Repositories: some files, and what has to be done before they can be worked on."""
    work = "python3 -c 'import json, sys; json.dump(list(range(20000)), sys.stdout)' > index.json"
    return [
        Recipe(
            stages=(
                Stage("image", run=("mkdir -p /root/tools && echo ok > /root/tools/ready",)),
                Stage(
                    "repository",
                    run=(f"for n in $(seq 50); do echo {number} $n > file-$n; done", work),
                    cwd=f"/root/repository-{number}",
                ),
            )
        )
        for number in range(count)
    ]


async def step(arm: Arm, prompts: list[Recipe], name: str, options: argparse.Namespace, keep: bool) -> None:
    """All rollouts of one step; the next one begins when the last is over."""
    if arm.announced:
        demand = [(recipe, GROUP) for recipe in prompts]
        await arm.host.pool.announce(demand, name=name, resources=RESOURCES)
    await asyncio.sleep(options.training_s)
    places, think = asyncio.Semaphore(options.concurrency), random.Random(name)
    before = dict(arm.host.pool.status().acquires)
    waits_ms: list[float] = []

    async def rollout(recipe: Recipe) -> None:
        async with places:
            start_s = time.perf_counter()
            async with arm.host.lease(recipe, resources=RESOURCES) as box:
                waits_ms.append(1000 * (time.perf_counter() - start_s))
                for _ in range(3):
                    await box.run(["cat", "/root/tools/ready"])
                    await asyncio.sleep(think.lognormvariate(options.think, 0.6))

    start_s = time.monotonic()
    await asyncio.gather(*(rollout(recipe) for recipe in prompts for _ in range(GROUP)))
    if keep:
        arm.step_s.append(time.monotonic() - start_s)
        arm.readiness_ms += waits_ms
        arm.steps_ms.append(statistics.fmean(waits_ms))
        arm.hits += arm.host.pool.status().acquires.get("hit", 0) - before.get("hit", 0)


async def main(options: argparse.Namespace) -> None:
    known = recipes(options.repositories, True)
    weights = [1 / rank**options.zipf for rank in range(1, len(known) + 1)]
    order = random.Random(options.seed)
    async with AsyncExitStack() as held:
        arms = []
        for name, policy, announced in (
            ("locality, announced", "locality", True),
            ("locality", "locality", False),
            ("no-locality", "no-locality", False),
            ("cold", "cold", False),
        ):
            limits = dutyfree.PoolOptions(sandboxes=options.sandboxes, policy=policy, layers=not options.no_layers)
            host = await held.enter_async_context(dutyfree.local(options.substrate, pool=limits))
            arms.append(Arm(name, host, announced))
        for number in range(options.steps + 1):
            prompts = order.choices(known, weights, k=options.prompts)
            for arm in order.sample(arms, len(arms)):
                await step(arm, prompts, f"step {number}", options, keep=number > 0)
        report(arms, options)


def report(arms: list[Arm], options: argparse.Namespace) -> None:
    rows = []
    for arm in arms:
        ordered = sorted(arm.readiness_ms)
        status = arm.host.pool.status()
        rows.append(
            {
                "policy": arm.name,
                "mean_ms": statistics.fmean(ordered),
                "p50_ms": statistics.median(ordered),
                "p95_ms": ordered[int(0.95 * len(ordered))],
                "hit_rate": arm.hits / len(ordered),
                "idle_sandbox_s": sum(status.idle_sandbox_s.values()),
                "step_s": statistics.fmean(arm.step_s),
                "steps_ms": arm.steps_ms,
            }
        )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':22}{'mean':>10}{'p50':>10}{'p95':>10}{'hits':>9}{'idle':>12}{'a step':>10}")
    for row in rows:
        print(
            f"{row['policy']:22}{row['mean_ms']:>7.2f} ms{row['p50_ms']:>7.2f} ms{row['p95_ms']:>7.2f} ms"
            f"{100 * row['hit_rate']:>7.1f} %{row['idle_sandbox_s']:>10.0f} s{row['step_s']:>8.2f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--repositories", type=int, default=20)
    parser.add_argument("--zipf", type=float, default=1.1)
    parser.add_argument("--sandboxes", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--training-s", type=float, default=2.0)
    parser.add_argument("--think", type=float, default=-1.6, help="logarithm of the median seconds between actions")
    parser.add_argument("--no-layers", action="store_true", help="carry stages out in every sandbox")
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    asyncio.run(main(parser.parse_args()))
