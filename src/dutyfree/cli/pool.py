"""`dutyfree pool status`: what the pools on this machine are doing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import count, duration, plain

if TYPE_CHECKING:
    from dutyfree.pool.board import Notice


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("pool", help="look at the pools of warm sandboxes on this machine")
    inner = parser.add_subparsers(metavar="COMMAND", required=True)
    status = inner.add_parser("status", help="what each pool has, does, and has saved")
    form = status.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--prometheus", action="store_true", help="as Prometheus reads it")
    status.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print it. Exit code 1: there is no pool."""
    from dutyfree.pool.board import notices

    found = notices()
    if options.json:
        print(json.dumps([{"pid": each.pid, **each.status} for each in found], indent=2))
    elif options.prometheus:
        from dutyfree.pool.status import PoolStatus, prometheus

        print(prometheus([({"process": str(each.pid)}, PoolStatus(**each.status)) for each in found]), end="")
    else:
        print("\n\n".join(described(each) for each in found) or "no pool is open on this machine")
    return ExitCode.DONE if found else ExitCode.FAILED


def described(notice: Notice) -> str:
    """One pool in a few lines."""
    status = notice.status
    held = status["idle"] + status["returned"] + status["leased"] + sum(status["works"].values())
    hits = "" if status["hit_rate"] is None else f", {100 * status['hit_rate']:.1f} % of them hits"
    p50, p95 = status["readiness_p50_ms"], status["readiness_p95_ms"]
    ready = "" if p50 is None else f"ready within {p50:.2f} ms (p50), {p95:.2f} ms (p95); "
    lines = [
        f"{plain(str(status['substrate']))}, process {notice.pid}, policy {plain(str(status['policy']))}",
        f"  sandboxes  {held} of {status['limit']}: {status['leased']} leased, {status['idle']} idle"
        f"{_listed(status['idle_by_rung'])}, {status['returned']} given back{_listed(status['works'], ', under way ')}",
        f"  requests   {count(sum(status['acquires'].values()), 'lease')} given{_listed(status['acquires'])}{hits}; "
        f"{status['waiting']} waiting",
        f"  readiness  {ready}{duration(status['saved_s'])} saved",
        f"  waste      {duration(sum(status['idle_sandbox_s'].values()))} of idle sandboxes",
        f"  failures   {_endings(status)}",
    ]
    return "\n".join(lines)


def _listed(counts: Mapping[str, Any], before: str = " ") -> str:
    shown = ", ".join(f"{plain(str(name))} {number}" for name, number in sorted(counts.items()) if number)
    return f"{before}({shown})" if shown else ""


def _endings(status: Mapping[str, Any]) -> str:
    endings = {name: number for name, number in status["outcomes"]["kinds"].items() if name != "observation"}
    told = [f"{number} {plain(str(name))}" for name, number in endings.items() if number]
    told += [f"{number} times {plain(str(name))}" for name, number in status["failures"].items()]
    told += [
        f"{status[name]} {words}" for name, words in (("lost", "died"), ("expired", "leases expired")) if status[name]
    ]
    return ", ".join(told) or "none"
