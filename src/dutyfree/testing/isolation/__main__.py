"""`python -m dutyfree.testing.isolation SUBSTRATE`: run all isolation probes and print the report on stdout."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from dutyfree.errors import DutyfreeError, InfraFailed
from dutyfree.substrates import load, names
from dutyfree.testing.isolation import PROBES, Outcome, Result, run_probes


def main() -> int:
    """Return 0 if no probe failed, 1 if one failed, 2 for wrong usage, 3 for an infrastructure failure."""
    parser = argparse.ArgumentParser(prog="python -m dutyfree.testing.isolation", description=__doc__)
    parser.add_argument("substrate", help=f"one of: {', '.join(names())}")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--only", metavar="PREFIX", default="", help="run only the probes whose id starts with this")
    parser.add_argument(
        "--beyond-claim",
        action="store_true",
        help="also run probes above the isolation level that the substrate claims, unless they could harm this machine",
    )
    options = parser.parse_args()
    probes = [probe for probe in PROBES if probe.id.startswith(options.only)]
    if not probes:
        parser.error(f"no probe's id starts with {options.only!r}")
    try:
        substrate = load(options.substrate)
        running = run_probes(substrate, probes=probes, beyond_claim=options.beyond_claim, on_result=_show_progress)
        report = asyncio.run(running)
    except DutyfreeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, InfraFailed) else 2
    print(json.dumps(report.as_json(), indent=2) if options.json else report.table())
    return 0 if report.ok else 1


def _show_progress(result: Result) -> None:
    detail = f": {result.reason}" if result.outcome is Outcome.FAILED else ""
    print(f"{result.outcome}: {result.id}{detail}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
