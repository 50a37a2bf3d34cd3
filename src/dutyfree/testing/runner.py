"""Runs checks, each with a fresh context and under its time limit. Needs no test framework."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError
from dutyfree.testing.catalogue import all_checks
from dutyfree.testing.check import Check
from dutyfree.testing.context import Context, Killer
from dutyfree.testing.expect import Broken, NotRun
from dutyfree.testing.report import Outcome, Report, Result

CLEAN_UP_LIMIT_S = 30.0
CLOSING = "suite.close"


async def run_conformance(
    substrate: Substrate,
    *,
    checks: Iterable[Check] | None = None,
    gaps: Mapping[str, str] | None = None,
    another: Callable[[], Substrate] | None = None,
    killer: Killer | None = None,
    include_slow: bool = True,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Run the suite on `substrate`, which must not be open yet; this function opens and closes it.

    `gaps` maps ids of checks that are known to fail to the reasons. `another` makes a second substrate of the same
    kind, for checks that close one. `killer` kills a sandbox from outside; the default sends SIGKILL to its `pid`.
    Raises SubstrateUnavailable if the substrate cannot work here, and nothing else.
    """
    await substrate.open()
    results: list[Result] = []

    def record(result: Result) -> None:
        results.append(result)
        if on_result is not None:
            on_result(result)

    try:
        for check in all_checks() if checks is None else checks:
            if check.slow and not include_slow:
                record(Result(check.id, check.promise, Outcome.NOT_RUN, "slow checks were not requested"))
            else:
                context = Context(substrate, another=another, killer=killer)
                record(await run_check(check, context, (gaps or {}).get(check.id)))
    finally:
        closing = Check(CLOSING, "the substrate closes after the suite", frozenset(), CLEAN_UP_LIMIT_S, False, _close)
        closed = await run_check(closing, Context(substrate))
        if closed.outcome is Outcome.FAILED:
            record(closed)
    return Report(substrate.name, tuple(results))


async def _close(context: Context) -> None:
    await context.substrate.close()


async def run_check(check: Check, context: Context, gap: str | None = None) -> Result:
    """Run one check; `gap` is the reason if it is known to fail. Errors go into the result and are not raised."""
    missing = sorted(capability.value for capability in check.needs - context.capabilities)
    if missing:
        reason = f"not applicable (capability {', '.join(missing)} missing)"
        return Result(check.id, check.promise, Outcome.NOT_RUN, reason)
    start_s = time.monotonic()
    outcome, reason = Outcome.PASSED, ""
    try:
        await _attempt(check, context)
    except NotRun as obstacle:
        outcome, reason = Outcome.NOT_RUN, str(obstacle)
    except Exception as error:
        outcome, reason = Outcome.FAILED, _described(error)
    if gap is not None and outcome is not Outcome.NOT_RUN:
        outcome, reason = _compare_with_gap(outcome, reason, gap)
    return Result(check.id, check.promise, outcome, reason, time.monotonic() - start_s)


async def _attempt(check: Check, context: Context) -> None:
    try:
        await _limited(check.attempt(context), check.limit_s * context.patience, "the check")
    finally:
        await _limited(context.clean_up(), CLEAN_UP_LIMIT_S * context.patience, "cleaning up")


async def _limited(work: object, limit_s: float, what: str) -> None:
    """Await `work`, and raise Broken after `limit_s` even if it ignores its cancellation."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        task.result()
        return
    task.cancel()
    await asyncio.wait({task}, timeout=2.0)
    raise Broken(f"{what} did not end within {limit_s:g} s")


def _compare_with_gap(outcome: Outcome, reason: str, gap: str) -> tuple[Outcome, str]:
    if outcome is Outcome.PASSED:
        return Outcome.FAILED, f"a known gap has closed, remove it from the list: {gap}"
    return Outcome.KNOWN_GAP, f"{gap} ({reason})"


def _described(error: BaseException) -> str:
    if isinstance(error, Broken):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, DutyfreeError) else f"unexpected {kind}: {error}"
