"""How far simulated waits are from real ones: the same requests, the latencies that were measured, the same planner.

A real pool serves synchronous steps and is recorded; the recording is then played to a simulated pool under several
seeds. Prints simulated over real, of the mean and of the p95.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from dutyfree.contract import Substrate
from dutyfree.model import Image, Resources, SandboxSpec
from dutyfree.pool.demand import Announcement
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.pool import Pool
from dutyfree.pool.routing import Policy
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.simulate import agreement, parse_recording, replay
from dutyfree.simulate.recorder import RecordedCosts, Recorder
from dutyfree.substrates.fake import FakeSubstrate, Latencies
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.registry import load as load_substrate

LATENCIES = Latencies(create_s=lambda rng: rng.uniform(0.05, 0.25), destroy_s=lambda rng: rng.uniform(0.01, 0.03))
PROMPTS, GROUP, TRAINING_S = 30, 4, 1.5
LOADS = (8, 16)
"""Rollouts at a time, in a pool of 20: a light load and a heavy one."""
SEEDS = range(8)


async def real_run(
    substrate: Substrate, policy: Policy, announced: bool, load: int = 16, steps: int = 8
) -> list[dict[str, Any]]:
    """Synchronous steps over eight kinds of sandboxes, on a real pool that is too small for all of them."""
    records: list[dict[str, Any]] = []
    recorder = Recorder(lambda record: records.append(dict(record)))
    numbers, places = random.Random(1), asyncio.Semaphore(load)
    async with GuardedSubstrate(substrate) as guarded:
        stager = Stager(guarded)
        specs = [SandboxSpec(resources=Resources(pids=1000 + kind)) for kind in range(8)]
        known = [await stager.wanted(Image(), spec) for spec in specs]
        options = PoolOptions(sandboxes=20, policy=policy, at_once=4)
        recorder.pool(options.limits, stager.abilities, policy)
        async with Pool(stager, options, guarded.capabilities, None, RecordedCosts(recorder.took)) as pool:

            async def rollout(wanted: Wanted, hold_s: float) -> None:
                async with places:
                    asked_s = time.monotonic()
                    grant = await pool.acquire(wanted)
                    given_s = time.monotonic()
                    await asyncio.sleep(hold_s)
                    ended_s = time.monotonic()
                    await pool.release(grant)
                    ladder = wanted.ladder
                    recorder.requested(ladder, asked_s, given_s - asked_s, ended_s - given_s, grant.rung)

            for step in range(steps):
                chosen = numbers.choices(known, [1 / rank for rank in range(1, 9)], k=PROMPTS)
                now_s = time.monotonic()
                for number, wanted in enumerate(chosen if announced else ()):
                    at_s = now_s + TRAINING_S
                    said = Announcement(f"{step}/{number}", wanted.ladder.top, GROUP, at_s, at_s + 600)
                    pool.announce([(said, wanted)])
                    recorder.announced(said, wanted.ladder, now_s)
                await asyncio.sleep(TRAINING_S)
                holds_s = iter([numbers.lognormvariate(-1.5, 0.6) for _ in range(PROMPTS * GROUP)])
                await asyncio.gather(*(rollout(each, next(holds_s)) for each in chosen for _ in range(GROUP)))
    return records


async def main(options: argparse.Namespace) -> None:
    print(f"{'':28}{'requests':>9}{'hits':>6}{'mean':>8}{'p95':>8}   real ms, mean and p95   simulated over real")
    for load in LOADS:
        for policy, announced in ((Policy.LOCALITY, True), (Policy.LOCALITY, False), (Policy.COLD, False)):
            substrate = (
                FakeSubstrate(latencies=LATENCIES) if options.substrate == "fake" else load_substrate(options.substrate)
            )
            recording = parse_recording(await real_run(substrate, policy, announced, load, options.steps))
            outcomes = [replay(recording, seed=seed) for seed in SEEDS]
            found, real = agreement(recording, *outcomes), recording.readiness
            name = f"{load} at a time, {policy}{', announced' if announced else ''}"
            hits = sum(each.hit_rate for each in outcomes) / len(outcomes)
            print(
                f"{name:36}{len(recording.asked):>6}{hits:>7.0%}{found.mean:>8.2f}{found.p95:>8.2f}"
                f"   {1e3 * real.mean_s:.2f} {1e3 * real.p95_s:.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--steps", type=int, default=8, help="fewer for substrates that take long to create a sandbox")
    asyncio.run(main(parser.parse_args()))
