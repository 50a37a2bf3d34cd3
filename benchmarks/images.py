"""What images, reset, snapshot and fork cost, and what files cost in a cell, each beside what it competes with.

    python benchmarks/images.py [--quick] [--json [FILE]] [--only PART ...]

Prints numbers and asserts none. Every block runs each contender once, in a random order; ratios are of medians, with
95 % intervals from a bootstrap over whole blocks. A Docker engine is used if one answers or can be started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import docker_engine
import dutyfree
import images_builds
import images_containers
import images_forks
import images_io
import images_replacing
import images_snapshots
from cells import Study, print_study
from dutyfree.model import Image
from dutyfree.removal import remove_tree
from images_disk import file_system, fresh
from images_study import DISK, TMPFS, Bench

PARTS = ("build", "reset", "snapshot", "fork", "io")
Results = dict[str, Any]


async def measure(options: argparse.Namespace, stores: Path, disk: Path, results: Results) -> None:
    """All parts that were asked for. `disk` is where uppers are that are not in memory."""
    recipe = images_builds.prepare(options.attrs)
    if "build" in options.only:
        results["studies"].append(await images_builds.study(recipe, stores, 1 if options.quick else 3))
    async with dutyfree.local(substrate="cell", store=stores / "0") as host:
        image = await host.build(recipe)
        bench = Bench(host, random.Random(options.seed), options.quick)
        if "reset" in options.only:
            for kind in (TMPFS, DISK):
                results["studies"].append(await images_replacing.study(bench, kind, image))
        if "snapshot" in options.only:
            results["studies"] += await images_snapshots.studies(bench)
        if "fork" in options.only:
            results["studies"] += await images_forks.studies(bench, image)
            results["fork adds"] = await images_forks.additions(bench, image, disk)
        if "io" in options.only:
            results["studies"] += await beside_docker(bench, image, options.attrs, disk, results["setting"])


async def beside_docker(bench: Bench, image: Image, prepared: Path, disk: Path, told: dict[str, str]) -> list[Study]:
    comparison = images_io.Comparison(bench, image, prepared, disk)
    with images_containers.engine(disk / "docker") as docker:
        if isinstance(docker, docker_engine.Engine):
            told["docker"] = f"{docker.version}, {images_containers.storage(docker)}"
            return await comparison.studies(docker)
        told["docker"] = f"not measured: {docker}"
        return await comparison.studies(None)


def setting(options: argparse.Namespace, disk: str) -> dict[str, str]:
    """What was measured on."""
    return {
        "machine": f"{platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start",
        "seed": str(options.seed),
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "disk": f"{disk}; for uppers on disk, the bare host's files and docker's data",
        "stores": f"{file_system(Path(options.directory))}, in {options.directory}",
        "tmpfs": f"for uppers in memory; for the bare host's files {images_io.MEMORY}, {file_system(images_io.MEMORY)}",
    }


def show(results: Results) -> None:
    for name, text in results["setting"].items():
        print(f"{name}: {text}")
    for study in results["studies"]:
        print_study(study)
        print(f"  {'':30} {len(next(iter(study.times_ms.values())))} repetitions")
    if "fork adds" in results:
        print("\nwhat a fork adds before anyone writes, in MB (all but the first: with what others do on this machine)")
        print(f"  {'':34} {'our files':>9} {'disk':>9} {'memory':>9} {'PSS':>9}")
        for row in results["fork adds"]:
            label = f"fork({row['forks']}), {row['upper']}"
            print(
                f"  {label:34} " + " ".join(f"{row[f'{name}_mb']:9.2f}" for name in ("files", "disk", "memory", "pss"))
            )
    print(f"\ntook {results['seconds']:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="into a file, or in place of the tables")
    parser.add_argument("--attrs", metavar="DIRECTORY", type=Path, default=images_builds.ROOT / ".build/attrs",
                        help="what examples/attrs/prepare.py makes, or where to make it")  # fmt: skip
    parser.add_argument("--directory", default="/var/tmp", help="for all that is made, and removed at the end")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    start = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="dutyfree-images-", dir=options.directory))
    try:
        with fresh(directory) as (disk, what):
            os.environ["DUTYFREE_STATE_DIR"] = str(disk)
            results: Results = {"setting": setting(options, what), "studies": []}
            asyncio.run(measure(options, directory / "stores", disk, results))
    finally:
        remove_tree(directory)
    results["seconds"] = time.monotonic() - start
    if options.json != "-":
        show(results)
    if options.json:
        studies = [
            {"title": study.title, "against": study.baseline, "rows": study.rows()} for study in results["studies"]
        ]
        text = json.dumps({**results, "studies": studies}, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text)


if __name__ == "__main__":
    main()
