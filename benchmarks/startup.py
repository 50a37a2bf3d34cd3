"""How long a start takes: `import dutyfree`, `dutyfree run -- true`, and the first line of `dutyfree doctor`.

    python benchmarks/startup.py [--blocks 30] [--json]

Each is a new process, compared with `python3 -c pass` of the same Python, in random order within blocks. Prints medians
and their ratios with 95 % intervals, and the mean CPU time of all processes that were started; asserts nothing.
`import asyncio` is part of each run: no way to start a sandbox from asyncio takes less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cells import ratio_of_medians

DUTYFREE = str(Path(sys.executable).with_name("dutyfree"))
BASELINE = "python3 -c pass"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""An installed package has compiled modules; in a checkout, the first start of each kind writes them."""


def process_ms(*command: str) -> float:
    """The time from the start of a process to its end."""
    start_s = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    return (time.perf_counter() - start_s) * 1e3


def children_cpu_ms() -> float:
    """The CPU time of all processes that have ended, started by this one or by them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e3


def first_line_ms(*command: str) -> float:
    """The time from the start of a process to the first line that it prints."""
    start_s = time.perf_counter()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise SystemExit(f"error: {' '.join(command)} printed nothing")
        took_ms = (time.perf_counter() - start_s) * 1e3
        child.terminate()
    return took_ms


CONTENDERS: dict[str, Callable[[], float]] = {
    BASELINE: lambda: process_ms(sys.executable, "-c", "pass"),
    "import asyncio": lambda: process_ms(sys.executable, "-c", "import asyncio"),
    "import dutyfree": lambda: process_ms(sys.executable, "-c", "import dutyfree"),
    "dutyfree run -- true": lambda: process_ms(DUTYFREE, "run", "--quiet", "--", "true"),
    "first line of dutyfree doctor": lambda: first_line_ms(DUTYFREE, "doctor"),
}


def measure(blocks: int) -> dict[str, Any]:
    """The times of each contender, and the load of the machine before and after."""
    rng = random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    cpu_ms = dict.fromkeys(CONTENDERS, 0.0)
    loads = [Path("/proc/loadavg").read_text().split()[0]]
    for contender in CONTENDERS.values():
        contender()  # fills the page cache, and compiles modules
    for _ in range(blocks):
        for name in rng.sample(list(CONTENDERS), len(CONTENDERS)):
            before_ms = children_cpu_ms()
            times[name].append(CONTENDERS[name]())
            cpu_ms[name] += (children_cpu_ms() - before_ms) / blocks
    loads.append(Path("/proc/loadavg").read_text().split()[0])
    rows = []
    for name, found in times.items():
        ratio, low, high = ratio_of_medians(found, times[BASELINE])
        row = {"name": name, "ms": sorted(found)[len(found) // 2], "ratio": ratio, "low": low, "high": high}
        rows.append({**row, "cpu_ms": cpu_ms[name]})
    return {"blocks": blocks, "load": loads, "rows": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=30, help="measurements of each (default: 30)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = measure(options.blocks)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{results['blocks']} blocks, load {' to '.join(results['load'])}")
    for row in results["rows"]:
        times = f"{row['ratio']:5.2f} times ({row['low']:.2f} to {row['high']:.2f})"
        print(f"{row['name']:<30} {row['ms']:7.1f} ms  {times:<28}  CPU {row['cpu_ms']:6.1f} ms")


if __name__ == "__main__":
    main()
