"""`python -m dutyfree.testing SUBSTRATE`: run the conformance suite on a substrate and print the report.

Exit codes: 0 every check that applies passed, 1 a check failed, 2 wrong usage, 3 the substrate cannot run here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, SubstrateUnavailable
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.registry import load, names, parse_options
from dutyfree.testing.catalogue import all_checks
from dutyfree.testing.check import Check
from dutyfree.testing.gaps import known_gaps
from dutyfree.testing.report import Outcome, Report, Result
from dutyfree.testing.runner import run_conformance


def main(argv: list[str] | None = None) -> int:
    """Run the suite on the substrate that the arguments name, and return the exit code."""
    options = _parser().parse_args(argv)
    wanted = [item for pattern in options.only for item in _matching(pattern)] if options.only else list(all_checks())
    if options.list:
        print("\n".join(f"{item.id:<36}  {item.promise}" for item in wanted))
        return 0
    if not options.substrate or not wanted:
        print("no substrate was named" if wanted else f"no check matches {', '.join(options.only)}", file=sys.stderr)
        return 2
    try:
        report = asyncio.run(_run_suite(options, wanted))
    except SubstrateUnavailable as error:
        print(f"{options.substrate}: {error}", file=sys.stderr)
        return 3
    except DutyfreeError as error:
        print(f"{options.substrate}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.as_json(), indent=2) if options.json else report.table())
    return 0 if report.ok else 1


async def _run_suite(options: argparse.Namespace, wanted: list[Check]) -> Report:
    def make() -> Substrate:
        substrate = load(options.substrate, **parse_options(options.option))
        return GuardedSubstrate(substrate) if options.guarded else substrate

    return await run_conformance(
        make(),
        checks=wanted,
        gaps=known_gaps(options.substrate),
        another=make,
        include_slow=not options.quick,
        on_result=_progress,
    )


def _progress(result: Result) -> None:
    mark = {Outcome.PASSED: ".", Outcome.FAILED: "F", Outcome.KNOWN_GAP: "x"}.get(result.outcome, "-")
    print(mark, end="", file=sys.stderr, flush=True)


def _matching(pattern: str) -> list[Check]:
    return [item for item in all_checks() if item.id == pattern or item.id.startswith(f"{pattern}.")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dutyfree.testing", description="Run the conformance suite on a substrate."
    )
    parser.add_argument("substrate", nargs="?", help=f"one of: {', '.join(names())}")
    parser.add_argument("--guarded", action="store_true", help="wrap the substrate in the guarded decorator")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="set an option of the substrate"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="run only this check or topic")
    parser.add_argument("--quick", action="store_true", help="skip the slow checks")
    parser.add_argument("--list", action="store_true", help="list the checks and their promises, and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
