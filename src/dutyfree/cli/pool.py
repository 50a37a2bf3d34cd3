"""`dutyfree pool status`: the pools of warm sandboxes on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import count, duration, plain

if TYPE_CHECKING:
    from dutyfree.pool.status import PoolStatus
    from dutyfree.pool.status_file import PublishedStatus


def register(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "pool",
        help="show the pools of warm sandboxes on this machine",
        description="Show the pools of warm sandboxes that your processes have opened on this machine.",
        epilog="example: dutyfree pool status",
    )
    inner = parser.add_commands()
    status = inner.add_parser(
        "status",
        help="show each pool's sandboxes, requests, failures, and the time that it saved",
        description="Show each pool's sandboxes, requests, failures, and the time that it saved. The exit code is 1 if "
        "no pool is open.",
        epilog="example: dutyfree pool status --json",
    )
    form = status.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: a list with one object for each pool")
    form.add_argument("--prometheus", action="store_true", help="print the text format of Prometheus")
    status.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print the status of each pool. Exit code 1: there is no pool."""
    from dutyfree.pool.status_file import read_all

    found = read_all()
    if options.prometheus:
        from dutyfree.pool.status import prometheus

        print(prometheus([({"process": str(each.pid)}, each.status) for each in found]), end="")
    elif options.json:
        print(_as_json(found))
    else:
        print("\n\n".join(described(each) for each in found) or "no pool is open on this machine")
    return ExitCode.DONE if found else ExitCode.FAILED


def _as_json(found: Sequence[PublishedStatus]) -> str:
    from dutyfree.codec import dumps
    from dutyfree.pool.status_codec import POOL_STATUS

    return dumps([{"pid": each.pid, **POOL_STATUS.encode(each.status)} for each in found], indent=2)


def described(published: PublishedStatus) -> str:
    """One pool in a few lines."""
    status = published.status
    held = status.idle + status.returned + status.leased + sum(status.operations.values())
    hits = "" if status.hit_rate is None else f", {100 * status.hit_rate:.1f} % of them hits"
    p50, p95 = status.readiness_p50_ms, status.readiness_p95_ms
    ready = "" if p50 is None else f"ready within {p50:.2f} ms (p50), {p95:.2f} ms (p95); "
    lines = [
        f"{plain(status.substrate)}, process {published.pid}, policy {plain(status.policy)}",
        f"  sandboxes  {held} of {status.limit}: {status.leased} leased, {status.idle} idle"
        f"{_listed(status.idle_by_rung)}, {status.returned} returned"
        f"{_listed(status.operations, ', in progress ')}",
        f"  requests   {count(sum(status.acquires.values()), 'lease')} given{_listed(status.acquires)}{hits}; "
        f"{status.waiting} waiting",
        f"  readiness  {ready}{duration(status.saved_s)} saved",
        f"  waste      {duration(sum(status.idle_sandbox_s.values()))} of idle sandboxes",
        f"  failures   {_endings(status)}",
    ]
    if status.builds:
        lines.append(f"  building   {count(sum(status.builds.values()), 'announced recipe')}{_listed(status.builds)}")
    lines += [f"  not built  {plain(name)}: {plain(error)}" for name, error in sorted(status.build_errors.items())]
    return "\n".join(lines)


def _listed(counts: Mapping[str, Any], before: str = " ") -> str:
    shown = ", ".join(f"{plain(str(name))} {number}" for name, number in sorted(counts.items()) if number)
    return f"{before}({shown})" if shown else ""


def _endings(status: PoolStatus) -> str:
    endings = {name: number for name, number in status.outcomes["kinds"].items() if name != "observation"}
    parts = [f"{number} {plain(str(name))}" for name, number in endings.items() if number]
    parts += [f"{number} times {plain(str(name))}" for name, number in status.failures.items()]
    ends = ((status.lost, "died"), (status.expired, "leases expired"))
    parts += [f"{number} {words}" for number, words in ends if number]
    return ", ".join(parts) or "none"
