"""What each substrate that this machine has costs, through both action paths, in one interleaved run.

    python benchmarks/substrates.py [--blocks 20] [--only docker gvisor ...] [--json] [--quick] [--picture FILE.svg]

Prints numbers and asserts none. Every block takes each contender once, in a random order: a sandbox is made, runs its
first command, some more commands, and is destroyed. Ratios are of medians, with 95 % intervals from a bootstrap over
whole blocks. Machines that boot anew are slow: they take part in the first blocks only, and their `n` says so.
Engines are those that `make engines` got ready: source .build/engines/env first (`make bench-engines` does).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dutyfree
from cells import SPAWN, bare_spawn, processes, progress, pss_bytes, ratio_of_medians, since_ms
from dutyfree.client.local import LocalHost
from dutyfree.errors import DutyfreeError
from dutyfree.model import Phase, Resources, Span
from dutyfree.substrates.registry import load
from substrates_picture import draw

BARE = "bare spawn"
IDLE = 3
"""Sandboxes that lie idle while memory is counted."""
RESOURCES = Resources(memory_bytes=512 * 1024**2, disk_bytes=256 * 1024**2)


@dataclass
class Contender:
    """One substrate on one path, and what was measured of it: a list entry per block."""

    name: str
    substrate: str
    options: dict[str, Any] = field(default_factory=dict)
    blocks: int | None = None
    """At most so many, for those that take seconds."""
    host: LocalHost | None = None
    spans: list[Span] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    action_ms: list[float] = field(default_factory=list)
    destroy_ms: list[float] = field(default_factory=list)
    steps_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    idle_kib: float = 0.0
    note: str = ""


def contenders() -> list[Contender]:
    return [
        Contender("cell", "cell"),
        Contender("docker, guest", "docker"),
        Contender("docker, exec", "docker", {"path": "exec"}),
        Contender("docker + gVisor, guest", "docker-gvisor"),
        Contender("docker + gVisor, exec", "docker-gvisor", {"path": "exec"}),
        Contender("gVisor, guest", "gvisor"),
        Contender("gVisor, exec", "gvisor", {"path": "exec"}),
        Contender("microVM, restored", "microvm"),
        Contender("microVM, booted", "microvm", {"boot": "cold"}, blocks=5),
        Contender("VM, restored, guest", "vm", {"boot": "restore"}, blocks=8),
        Contender("VM, restored, ssh reused", "vm", {"boot": "restore", "path": "exec"}, blocks=8),
        Contender(
            "VM, restored, ssh each", "vm", {"boot": "restore", "path": "exec", "connection_reuse": False}, blocks=8
        ),
        Contender("VM, booted, guest", "vm", {"boot": "cold"}, blocks=2),
    ]


@asynccontextmanager
async def opened(wanted: list[Contender]) -> AsyncIterator[list[Contender]]:
    """Those of them that work here; the others are told, with the reason."""
    async with AsyncExitStack() as stack:
        working = []
        for each in wanted:
            progress(f"opening {each.name}")
            try:
                substrate = load(each.substrate, **each.options)
                each.host = await stack.enter_async_context(dutyfree.local(substrate, on_span=each.spans.append))
                await one(each, actions=1)  # templates, caches, images: what the first one of all pays
            except DutyfreeError as error:
                print(f"not measured: {each.name}: {error}", file=sys.stderr)
                continue
            each.note = str(getattr(substrate, "accelerator", ""))
            working.append(each)
        yield working


async def one(contender: Contender, actions: int) -> tuple[float, float, float, dict[str, float]]:
    """A sandbox's life: until its first observation, the median of further actions, its end, and the steps of it."""
    assert contender.host is not None
    contender.spans.clear()
    start = time.perf_counter()
    lease = contender.host.lease(resources=RESOURCES)
    box = await lease.__aenter__()
    try:
        seen = await box.run(SPAWN)
        first_ms = since_ms(start)
        made = [span for span in contender.spans if span.phase in (Phase.CREATE, Phase.READY)]
        assert seen.exit_code == 0, seen
        times = []
        for _ in range(actions):
            begin = time.perf_counter()
            assert (await box.run(SPAWN)).exit_code == 0
            times.append(since_ms(begin))
    finally:
        end = time.perf_counter()
        await lease.__aexit__(None, None, None)
    steps = {f"{span.phase}: {span.name}": span.duration_ms for span in made if span.name}
    steps["first action"] = max(0.0, first_ms - sum(steps.values()))
    return first_ms, statistics.median(times), since_ms(end), steps


async def measure(chosen: list[Contender], blocks: int, actions: int, rng: random.Random) -> list[float]:
    """Fills the contenders; returns the bare spawns, one of each block."""
    bare: list[float] = []
    for block in range(blocks):
        taking_part = [each for each in chosen if each.blocks is None or block < each.blocks]
        for each in rng.sample(taking_part, len(taking_part)):
            progress(f"block {block + 1} of {blocks}: {each.name}")
            first_ms, action_ms, destroy_ms, steps = await one(each, actions)
            each.first_ms.append(first_ms)
            each.action_ms.append(action_ms)
            each.destroy_ms.append(destroy_ms)
            for name, step_ms in steps.items():
                each.steps_ms[name].append(step_ms)
        bare.append(statistics.median([await bare_spawn() for _ in range(actions)]))
    return bare


async def idle_memory(contender: Contender) -> float:
    """Proportional set size of every process that came with an idle sandbox, in KiB."""
    assert contender.host is not None
    before = {pid for pid, _ in processes()}
    async with AsyncExitStack() as stack:
        for _ in range(IDLE):
            box = await stack.enter_async_context(contender.host.lease(resources=RESOURCES))
            await box.run(SPAWN)
        new = [int(pid) for pid, _ in processes() if pid not in before]
        return sum(map(_pss_or_none, new)) / IDLE / 1024


def _pss_or_none(pid: int) -> int:
    try:
        return pss_bytes(pid)
    except OSError:  # it has ended meanwhile
        return 0


def rows(measured: list[Contender], bare: list[float]) -> list[dict[str, Any]]:
    """One for each contender, for people and machines."""
    found = []
    for each in measured:
        total = statistics.median(each.first_ms)
        shares = {name: statistics.median(times) / total for name, times in each.steps_ms.items()}
        found.append({
            "contender": each.name, "n": len(each.first_ms), "note": each.note, "first_ms": total,
            "action_ms": statistics.median(each.action_ms), "action_ratio": ratio_of_medians(each.action_ms, bare),
            "destroy_ms": statistics.median(each.destroy_ms), "idle_kib": each.idle_kib, "shares": shares,
        })  # fmt: skip
    return found


def show(found: list[dict[str, Any]], bare: list[float]) -> None:
    print("| substrate, path | n | first observation ms | action ms | of a bare spawn (95 %) | destroy ms | idle MiB |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    print(f"| {BARE} | {len(bare)} | - | {statistics.median(bare):.2f} | 1 | - | - |")
    for row in found:
        point, low, high = row["action_ratio"]
        note = f" ({row['note']})" if row["note"] else ""
        print(
            f"| {row['contender']}{note} | {row['n']} | {row['first_ms']:.1f} | {row['action_ms']:.2f} "
            f"| {point:.1f} ({low:.1f}-{high:.1f}) | {row['destroy_ms']:.1f} | {row['idle_kib'] / 1024:.1f} |"
        )
    print("\n| substrate, path | where the time to the first observation goes |")
    print("|---|---|")
    for row in found:
        parts = sorted(row["shares"].items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= 0.01)
        print(f"| {row['contender']} | {told} |")


async def study(options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed)
    chosen = [each for each in contenders() if not options.only or each.substrate in options.only]
    if options.quick:
        chosen = [each for each in chosen if each.options.get("boot") != "cold"]
    async with opened(chosen) as working:
        bare = await measure(working, options.blocks, options.actions, rng)
        for each in working:
            progress(f"idle memory of {each.name}")
            each.idle_kib = await idle_memory(each)
    progress("")
    machine = f"{platform.release()}, {os.cpu_count()} cores"
    return {"machine": machine, "seed": options.seed, "bare_ms": bare, "rows": rows(working, bare)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--actions", type=int, default=15, help="further actions in each sandbox")
    parser.add_argument("--only", nargs="+", default=[], metavar="SUBSTRATE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few blocks, and no machines that boot")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the time to the first observation, as SVG")
    options = parser.parse_args()
    if options.quick:
        options.blocks, options.actions = min(options.blocks, 3), min(options.actions, 5)
    results = asyncio.run(study(options))
    if options.picture:
        options.picture.write_text(draw(results["rows"]))
    if options.json:
        json.dump(results, sys.stdout, indent=2)
        print()
    else:
        print(f"machine: {results['machine']}\n")
        show(results["rows"], results["bare_ms"])


if __name__ == "__main__":
    main()
