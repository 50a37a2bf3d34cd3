"""What a cell costs, side by side with a bare process and with Docker, in one interleaved run.

    python benchmarks/cells.py [--blocks 100] [--json] [--quick]

Prints numbers and asserts none. Every block runs each contender once, in a random order; ratios are of medians, with
95 % intervals from a bootstrap over whole blocks. A Docker engine is used if one answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker_engine
import dutyfree
from dutyfree.client.box import Box
from dutyfree.client.local import LocalHost
from dutyfree.model import Resources, Writes

BARE = "bare process"
DOCKER = "docker, network none"
SPAWN = ["sh", "-c", "true"]
RESAMPLES = 2000
Contender = Callable[[], Awaitable[float]]


@dataclass
class Study:
    """One question: times in ms by contender, a list entry per block."""

    title: str
    baseline: str
    times_ms: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, name: str, baseline: str | None = None, seed: int = 1) -> tuple[float, float, float]:
        """Median of `name` over median of the baseline, with its interval."""
        return ratio_of_medians(self.times_ms[name], self.times_ms[baseline or self.baseline], seed)

    def rows(self) -> list[dict[str, Any]]:
        """One row per contender, for people and machines."""
        rows = []
        for name, times in self.times_ms.items():
            point, low, high = self.ratio(name)
            ordered = sorted(times)
            rows.append({
                "contender": name, "n": len(times), "p50_ms": statistics.median(times),
                "p95_ms": ordered[int(0.95 * (len(ordered) - 1))], "ratio": point, "ratio_low": low, "ratio_high": high,
            })  # fmt: skip
        return rows


def ratio_of_medians(own: list[float], base: list[float], seed: int = 1) -> tuple[float, float, float]:
    """Of the blocks that both have, with a 95 % interval from resampling them whole."""
    rng, indices = random.Random(seed), range(min(len(own), len(base)))
    resampled = []
    for _ in range(RESAMPLES):
        chosen = [rng.choice(indices) for _ in indices]
        resampled.append(statistics.median(own[i] for i in chosen) / statistics.median(base[i] for i in chosen))
    resampled.sort()
    point = statistics.median(own[i] for i in indices) / statistics.median(base[i] for i in indices)
    return point, resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]


def since_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


async def bare_spawn() -> float:
    start = time.perf_counter()
    subprocess.run(SPAWN, capture_output=True, check=True)  # noqa: ASYNC221 - this is the thing measured
    return since_ms(start)


async def interleave(study: Study, contenders: dict[str, Contender], blocks: int, rng: random.Random) -> Study:
    """Every block runs each contender once, in a random order. Two blocks of warming up are not kept."""
    study.times_ms = {name: [] for name in contenders}
    for block in range(blocks + 2):
        for name in rng.sample(list(contenders), len(contenders)):
            elapsed_ms = await contenders[name]()
            if block >= 2:
                study.times_ms[name].append(elapsed_ms)
        progress(f"{study.title}: block {block + 1} of {blocks + 2}")
    return study


def first_observation(host: LocalHost, upper: Writes, disk_bytes: int | None) -> Contender:
    """From asking for a cell until the first command's observation is there; destruction is not counted."""

    async def measure() -> float:
        start = time.perf_counter()
        async with host.lease(writes=upper, resources=Resources(disk_bytes=disk_bytes)) as box:
            seen = await box.run(SPAWN)
            elapsed_ms = since_ms(start)
            assert seen.exit_code == 0
        return elapsed_ms

    return measure


def docker_first_observation(engine: docker_engine.Engine) -> Contender:
    async def measure() -> float:
        start = time.perf_counter()
        container = engine.create()
        code = engine.execute(container, SPAWN)
        elapsed_ms = since_ms(start)
        engine.destroy(container)
        assert code == 0
        return elapsed_ms

    return measure


def action(box: Box) -> Contender:
    async def measure() -> float:
        start = time.perf_counter()
        seen = await box.run("true")
        elapsed_ms = since_ms(start)
        assert seen.exit_code == 0
        return elapsed_ms

    return measure


async def actions(host: LocalHost, blocks: int, rng: random.Random) -> Study:
    """What one more action costs where a sandbox is already there."""
    study = Study("one action in a live sandbox", BARE)
    async with host.lease() as box, box.session() as shell:

        async def line() -> float:
            start = time.perf_counter()
            seen = await shell.run("true")
            elapsed_ms = since_ms(start)
            assert seen.exit_code == 0
            return elapsed_ms

        return await interleave(study, {BARE: bare_spawn, "cell, run": action(box), "cell, session": line}, blocks, rng)


async def docker_actions(host: LocalHost, engine: docker_engine.Engine, blocks: int, rng: random.Random) -> Study:
    """The same beside Docker: apart, because what a `docker exec` sets off in its daemon disturbs everybody else."""
    study = Study("one action, beside docker", "cell, run")
    container = engine.create()

    async def docker_exec() -> float:
        start = time.perf_counter()
        engine.execute(container, SPAWN)
        return since_ms(start)

    try:
        async with host.lease() as box:
            return await interleave(study, {"cell, run": action(box), "docker, exec": docker_exec}, blocks, rng)
    finally:
        engine.destroy(container)


async def cell_rate(host: LocalHost, count: int, concurrency: int) -> float:
    """Cells created, used once and destroyed, per second."""
    waiting = iter(range(count))

    async def worker() -> None:
        for _ in waiting:
            async with host.lease() as box:
                assert (await box.run(SPAWN)).exit_code == 0

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return count / (time.perf_counter() - start)


async def docker_rate(path: str, count: int, concurrency: int) -> float:
    """The same through the Docker Engine API, a connection for each worker."""
    waiting = iter(range(count))

    def worker() -> None:
        engine = docker_engine.Engine(path)
        for _ in waiting:
            container = engine.create()
            engine.execute(container, SPAWN)
            engine.destroy(container)

    start = time.perf_counter()
    await asyncio.gather(*(asyncio.to_thread(worker) for _ in range(concurrency)))
    return count / (time.perf_counter() - start)


async def idle_memory(host: LocalHost, count: int) -> dict[str, float]:
    """Proportional set size of the cells, of the spawner and of this process's growth, per cell."""
    before = pss_bytes(os.getpid())
    leases = [host.lease() for _ in range(count)]
    boxes = [await lease.__aenter__() for lease in leases]
    try:
        for box in boxes:
            assert (await box.run(SPAWN)).exit_code == 0
        ours = {int(pid): text for pid, text in processes() if "dutyfree-" in text}
        cells = sum(pss_bytes(pid) for pid in ours)
        growth = pss_bytes(os.getpid()) - before
        return {"cells": count, "pss_kib_per_cell": cells / count / 1024, "host_kib_per_cell": growth / count / 1024}
    finally:
        for lease in leases:
            await lease.__aexit__(None, None, None)


def processes() -> list[tuple[str, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry.name, (entry / "cmdline").read_text()))
            except OSError:
                continue
    return found


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def print_study(study: Study) -> None:
    print(f"\n{study.title} (against: {study.baseline})")
    print(f"  {'':30} {'p50 ms':>9} {'p95 ms':>9} {'ratio':>8}  95 % interval")
    for row in study.rows():
        interval = f"{row['ratio_low']:.2f} - {row['ratio_high']:.2f}"
        print(f"  {row['contender']:30} {row['p50_ms']:9.2f} {row['p95_ms']:9.2f} {row['ratio']:8.2f}  {interval}")


def print_docker_ratios(first: Study) -> None:
    for name in first.times_ms:
        if name.startswith("cell"):
            point, low, high = first.ratio(DOCKER, name)
            print(f"  {name:30} docker takes {point:.0f} times as long ({low:.0f} - {high:.0f})")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed)
    socket_path = None if options.no_docker else docker_engine.find_socket()
    engine = docker_engine.Engine(socket_path) if socket_path else None
    if engine:
        engine.import_image()
    results: dict[str, Any] = {"machine": f"{platform.release()}, {os.cpu_count()} cores", "seed": options.seed}
    results["docker"] = engine.version if engine else None
    async with dutyfree.local(substrate="cell") as host:
        contenders: dict[str, Contender] = {
            BARE: bare_spawn,
            "cell, upper on tmpfs": first_observation(host, Writes.MEMORY, 2**30),
            "cell, upper on disk": first_observation(host, Writes.DISK, None),
            "cell, upper on disk, limited": first_observation(host, Writes.DISK, 2**30),
        }
        if engine:
            contenders[DOCKER] = docker_first_observation(engine)
        first = Study("from nothing to the first observation", BARE)
        # Before Docker is asked anything: its daemon works on for a while after each answer.
        results["action"] = await actions(host, options.blocks * 4, rng)
        results["first observation"] = await interleave(first, contenders, options.blocks, rng)
        if engine:
            results["docker action"] = await docker_actions(host, engine, options.blocks // 2, rng)
        results["cells per second"] = await cell_rate(host, options.cells, 8)
        if socket_path:
            results["docker per second"] = await docker_rate(socket_path, max(16, options.cells // 20), 8)
        results["idle"] = await idle_memory(host, options.cells)
    progress("")
    return results


def show(results: dict[str, Any]) -> None:
    print(f"machine: {results['machine']}; docker: {results['docker'] or 'no engine answers'}")
    for key in ("first observation", "action", "docker action"):
        if key in results:
            print_study(results[key])
        if key == "first observation" and DOCKER in results[key].times_ms:
            print_docker_ratios(results[key])
    rate = results["cells per second"]
    print(f"\ncreate + run + destroy at concurrency 8: {rate:.0f} cells a second", end="")
    if docker := results.get("docker per second"):
        print(f", docker {docker:.2f}: {rate / docker:.0f} times docker's rate", end="")
    idle = results["idle"]
    print(f"\n{idle['cells']} idle cells: {idle['pss_kib_per_cell']:.0f} KiB of PSS each", end="")
    print(f" (and {idle['host_kib_per_cell']:.0f} KiB each in the host process)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--cells", type=int, default=1000, help="for the rate and for idle memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-docker", action="store_true")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = asyncio.run(measure(options))
    if options.json:
        plain = {key: value.rows() if isinstance(value, Study) else value for key, value in results.items()}
        json.dump(plain, sys.stdout, indent=2)
        print()
    else:
        show(results)


if __name__ == "__main__":
    main()
