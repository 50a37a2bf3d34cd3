"""What is read from the kernel's files, of both versions of cgroups; and what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dutyfree.model import Capability, Metrics, Resources, Unenforced
from dutyfree.substrates.metering import measure, with_limits

V2 = {
    "memory.current": "4096\n",
    "memory.peak": "8192\n",
    "pids.current": "3\n",
    "pids.peak": "7\n",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
}
V1 = {"memory.usage_in_bytes": "4096\n", "memory.max_usage_in_bytes": "8192\n", "cpu.stat": "nr_periods 0\n"}


def group(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (directory / name).write_text(text)
    return str(directory)


def test_version_2(tmp_path: Path) -> None:
    seen = measure(None, [group(tmp_path, V2)] * 3)
    assert (seen.cpu_s, seen.memory_bytes, seen.memory_peak_bytes) == (2.5, 4096, 8192)
    assert (seen.processes, seen.processes_peak) == (3, 7)
    assert seen.network_sent_bytes is None


def test_version_1_has_the_processor_time_of_the_processes(tmp_path: Path) -> None:
    seen = measure(os.getpid(), [group(tmp_path, V1), "/nowhere"])
    assert (seen.memory_bytes, seen.memory_peak_bytes, seen.processes_peak) == (4096, 8192, None)
    assert (seen.cpu_s or 0) > 0
    assert (seen.processes or 0) >= 1
    assert (seen.network_received_bytes or 0) >= 0


def test_what_is_not_there_is_none() -> None:
    seen = measure(None, ["/nowhere"])
    assert seen == Metrics(seen.taken_at)
    assert measure(2**22 + 1, ["/nowhere"]).cpu_s is None


@pytest.mark.parametrize("missing", [(), (Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS)])
def test_limits_that_do_not_hold_are_none(missing: tuple[Capability, ...]) -> None:
    resources = Resources(memory_bytes=2**30, cpus=2, pids=100)
    seen = with_limits(Metrics(0.0), resources, [Unenforced(what, "why") for what in missing])
    assert seen.cpu_limit == 2
    assert (seen.memory_limit_bytes, seen.processes_limit) == ((None, None) if missing else (2**30, 100))
