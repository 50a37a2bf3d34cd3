"""Other projects' own tests, on the bare host and in a cell: `python tests/suites [SUITE[:UNIT] ...]`.

Programs should not be able to tell a cell from a machine. A test that fails in a cell and not on the bare host is a
difference; it is listed in `known.toml` with its reason, or it makes this exit with 1. One that fails in a cell gets a
second try in another cell, since some tests of some suites fail now and then.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Outcomes, only_in_cell, read_known, reason_for
from cpython import CPython
from git import Git
from places import COMPARISONS, Comparison, Ending, Job, Places, comparisons_here, places
from suite import NotReady, Suite

SUITES: dict[str, Suite] = {suite.name: suite for suite in (CPython(), Git())}
HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / ".build" / "suites"
KNOWN = HERE / "known.toml"
UNIT_TIMEOUT_S = 600
FOUND, UNUSABLE, INTERRUPTED = 1, 2, 130


@dataclass(slots=True)
class Findings:
    """What one run has found."""

    tests: int = 0
    unlisted: list[dict[str, str]] = field(default_factory=list)
    known: list[dict[str, str]] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Units that gave no results on the bare host."""


@dataclass(frozen=True, slots=True)
class Check:
    """One unit of a suite in one comparison."""

    suite: Suite
    unit: str
    comparison: Comparison
    job: Job


def main() -> int:
    options = _options()
    chosen = [each for each in comparisons_here() if not options.where or each.name in options.where]
    try:
        if not chosen:
            raise NotReady("an ordinary user can compare rootless cells only")
        units = [unit for name in options.suites or SUITES for unit in _units(name)]
        BUILD.mkdir(parents=True, exist_ok=True)
        checks = []
        for suite, unit in units:
            job = Job(suite.prepare(BUILD), suite.script(unit), options.timeout)
            checks += [Check(suite, unit, comparison, job) for comparison in chosen]
    except NotReady as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    findings = Findings()
    with places() as runner:
        threads = ThreadPoolExecutor(options.jobs)
        try:
            _compare(checks, runner, threads, findings)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
        finally:
            threads.shutdown()
    return _report(findings, as_json=options.json)


def _compare(checks: list[Check], runner: Places, threads: ThreadPoolExecutor, findings: Findings) -> None:
    bare: dict[tuple[str, str, bool], Future[Ending]] = {}
    cells = []
    for check in checks:
        key = _bare_key(check)
        if key not in bare:
            bare[key] = threads.submit(runner.bare, check.job, as_user=key[2])
        cells.append(threads.submit(runner.cell, check.job, check.comparison))
    for number, (check, cell) in enumerate(zip(checks, cells, strict=True), 1):
        outside = bare[_bare_key(check)].result()
        _judge(check, outside, cell.result(), runner, findings, f"[{number}/{len(checks)}]")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/suites", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("suites", nargs="*", metavar="SUITE[:UNIT]", help=f"{' or '.join(SUITES)} (default: all)")
    names = [each.name for each in COMPARISONS]
    parser.add_argument("--where", action="append", choices=names, help="only this comparison (may be repeated)")
    parser.add_argument("--timeout", type=int, default=UNIT_TIMEOUT_S, metavar="S", help="for one unit in one place")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many run at once (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _units(name: str) -> list[tuple[Suite, str]]:
    suite_name, _, unit = name.partition(":")
    suite = SUITES.get(suite_name)
    if suite is None or (unit and unit not in suite.units()):
        raise NotReady(f"there is no suite or unit {name!r}; units are: {' '.join(suite.units()) if suite else '-'}")
    return [(suite, each) for each in ([unit] if unit else suite.units())]


def _bare_key(check: Check) -> tuple[str, str, bool]:
    """What two checks have in common that are held against the same run on the bare host."""
    return check.suite.name, check.unit, check.comparison.outside_as_user or check.comparison.inside_as_user


def _judge(check: Check, outside: Ending, inside: Ending, runner: Places, findings: Findings, label: str) -> None:
    suite, where = check.suite, check.comparison.name
    bare, cell = suite.outcomes(check.unit, outside.output), suite.outcomes(check.unit, inside.output)
    known = read_known(KNOWN.read_text())
    different = only_in_cell(bare, cell)
    again: Outcomes | None = None
    if any(reason_for(known, suite.name, where, test) is None for test in different):
        inside = runner.cell(check.job, check.comparison)
        again = suite.outcomes(check.unit, inside.output)
        different = [test for test in different if test in only_in_cell(bare, again)]
        if different:
            (BUILD / f"{suite.name}-{check.unit}-{where}.log").write_text(f"{inside.log}\n{inside.output}")
    findings.tests += len(cell)
    if not bare:
        findings.empty.append(f"{suite.name}:{check.unit} {where}")
    for test in different:
        reason = reason_for(known, suite.name, where, test)
        entry = {"suite": suite.name, "unit": check.unit, "where": where, "test": test}
        (findings.unlisted if reason is None else findings.known).append(entry | ({"reason": reason} if reason else {}))
    times = f"{outside.seconds:.0f} s bare, {inside.seconds:.0f} s in a cell"
    tries = ", tried again" if again is not None else ""
    print(
        f"{label} {suite.name} {check.unit} {where}: {len(cell)} tests, {len(different)} fail only in the cell"
        f" ({times}{tries})",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _report(findings: Findings, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"tests": findings.tests, "unlisted": findings.unlisted, "known": findings.known,
                          "without_results": findings.empty}, indent=2))  # fmt: skip
        return _code(findings)
    for entry in findings.known:
        print(f"known: {entry['where']}: {entry['test']}: {entry['reason']}")
    for name in findings.empty:
        print(f"no results on the bare host: {name}")
    for entry in findings.unlisted:
        log = BUILD / f"{entry['suite']}-{entry['unit']}-{entry['where']}.log"
        print(f"DIFFERENT: {entry['where']}: {entry['test']} (log: {log})")
    print(f"{findings.tests} tests in cells; {len(findings.unlisted)} fail only there and are not in {KNOWN.name}")
    return _code(findings)


def _code(findings: Findings) -> int:
    """A unit without results is no success: whatever keeps it from running would go unseen."""
    if findings.unlisted:
        return FOUND
    return UNUSABLE if findings.empty or not findings.tests else 0


if __name__ == "__main__":
    start_s = time.monotonic()
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    print(f"{time.monotonic() - start_s:.0f} s", file=sys.stderr)
    sys.exit(code)
