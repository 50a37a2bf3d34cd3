"""The counters of a bill, and the receiver of each sandbox's spans that adds to them.

All of it is a few additions for each span and bounded in memory, because it runs for each action of each lease.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dutyfree.contract import SpanListener
from dutyfree.errors import DutyfreeError
from dutyfree.model import Bill, FailureCount, Phase, PhaseTime, Span, Timing
from dutyfree.pool.metrics import HIT
from dutyfree.trace import now_ns

_MAX_FAILURES: Final = 256
"""The most kinds of failures with a count of their own. There are fewer in practice."""
_MAX_LIFE: Final = 16
"""The most spans of a sandbox without a tenant that are kept for the next lease."""
_ACTION: Final = (Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE)
_MAKING: Final = (Phase.CREATE, Phase.READY, Phase.SETUP)
"""The phases from nothing to a sandbox in the wanted state."""
_OF_FORKS: Final = (Phase.CREATE, Phase.READY)


class Spent:
    """What one lease has cost so far."""

    __slots__ = ("is_cold", "tax_ns", "wait_ns", "work_ns")

    def __init__(self) -> None:
        self.wait_ns = 0
        """From the request to the sandbox in the wanted state."""
        self.work_ns = 0
        self.tax_ns = 0
        """Everything else that spans cover, the wait included."""
        self.is_cold = False
        """Whether it waited for the creation of its sandbox."""


class Billing:
    """The counters of a host, from its opening to its end."""

    def __init__(self) -> None:
        self.start_ns = now_ns()
        self.end_ns = 0
        self.leases = self.warm = self.cold = 0
        self.held_ns = 0
        self.actions = self.dispatch_ns = self.execute_ns = self.observe_ns = 0
        self.waited: Counter[Phase] = Counter()
        self.used: Counter[Phase] = Counter()
        self.background: Counter[Phase] = Counter()
        self.creations = self.destructions = self.making_ns = 0
        self._failures: Counter[tuple[str, str, str]] = Counter()

    def leased(self, rung: str, spent: Spent) -> None:
        """A lease got its sandbox, which was found on this rung."""
        self.leases += 1
        self.warm += rung == HIT
        self.cold += spent.is_cold

    def built(self, spent_ns: int, *, for_lease: bool) -> None:
        """An image was built, or found, while a lease waited for it or in the background."""
        (self.waited if for_lease else self.background)[Phase.SETUP] += spent_ns

    def failed(self, during: str, error: BaseException) -> None:
        """Count a failure. Cancellations are none: they are the caller's wish."""
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit):
            return
        party = error.party if isinstance(error, DutyfreeError) else "substrate"
        key = (during, party, type(error).__name__)
        if key not in self._failures and len(self._failures) >= _MAX_FAILURES:
            key = (during, party, "other")
        self._failures[key] += 1

    def bill(self, substrate: str, ready_ns: list[int]) -> Bill:
        """The bill now. `ready_ns` says since when each open lease has had its sandbox. May be called in any thread."""
        at_ns = self.end_ns or now_ns()
        # Copies: another thread may be adding meanwhile.
        waited, used, background = dict(self.waited), dict(self.used), dict(self.background)
        used[Phase.DISPATCH] = used.get(Phase.DISPATCH, 0) + self.dispatch_ns
        used[Phase.OBSERVE] = used.get(Phase.OBSERVE, 0) + self.observe_ns
        phases = [PhaseTime(each, *(max(0, of.get(each, 0)) for of in (waited, used, background))) for each in Phase]
        destroyed_ns = sum(of.get(Phase.DESTROY, 0) for of in (waited, used, background))
        return Bill(
            substrate=substrate,
            wall_ns=at_ns - self.start_ns,
            leases=self.leases,
            warm=self.warm,
            cold=self.cold,
            open_leases=len(ready_ns),
            held_ns=self.held_ns + sum(max(0, at_ns - each) for each in ready_ns),
            actions=self.actions,
            work_ns=self.execute_ns,
            phases=tuple(each for each in phases if each.leases_ns or each.background_ns),
            failures=tuple(FailureCount(*key, count) for key, count in sorted(dict(self._failures).items())),
            creations=self.creations,
            destructions=self.destructions,
            creation_ns=self.making_ns // self.creations if self.creations else None,
            destruction_ns=max(0, destroyed_ns) // self.destructions if self.destructions else None,
        )


class SpanSink:
    """Receives the spans of one sandbox, adds them to the bill, and passes them on.

    They go to the listener of the present tenant; without a tenant, to `on_span`. What a sandbox does without a tenant
    belongs to the background, until a lease turns out to have waited for it; with `cold`, it belongs to the leases.
    """

    __slots__ = ("_billing", "_cold", "_life", "_on_span", "_released_ns", "_stages", "_tenant", "listener")

    def __init__(self, billing: Billing, on_span: SpanListener | None = None, *, cold: bool = False) -> None:
        self._billing = billing
        self._on_span = on_span
        self._cold = cold
        self._life: list[tuple[Phase | None, int, int]] = []
        """The latest spans without a tenant: disjoint, with the phase, the start and the end of each.

        The phase is None for files that are bound to the next lease.
        """
        self._stages = 0
        self._released_ns = 0
        """When the last lease ended. What had begun before, and ends after it, was that lease's."""
        self._tenant: Spent | None = None
        self.listener: SpanListener | None = None

    def __call__(self, span: Span) -> None:
        phase = span.phase
        if phase not in _ACTION:
            self._add_life(phase, span.start_ns, span.end_ns)
        elif not self._stages:
            parts_ns = (span.end_ns - span.start_ns if phase is each else 0 for each in _ACTION)
            self._add_action(span.start_ns, span.end_ns, *parts_ns, count=phase is Phase.EXECUTE)
        listener = self.listener or self._on_span
        if listener is not None:
            listener(span)

    def on_timing(self, timing: Timing) -> None:
        """Receive the three spans of an action, which need not be made if there is no listener."""
        if not self._stages:
            start_ns, end_ns, execute_ns = timing.start_ns, timing.end_ns, timing.execute_ns
            tax_ns = end_ns - start_ns - execute_ns
            self._add_action(start_ns, end_ns, tax_ns // 2, execute_ns, tax_ns - tax_ns // 2, count=1)
        listener = self.listener or self._on_span
        if listener is not None:
            for span in timing.spans():
                listener(span)

    def lease(self, spent: Spent, start_ns: int, ready_ns: int) -> None:
        """The sandbox has a tenant from `ready_ns` on, who waited since `start_ns`.

        Of the wait, what the sandbox did meanwhile counts as that, and the rest as `queue`.
        """
        billing, queue_ns, spent.is_cold = self._billing, ready_ns - start_ns, self._cold
        for phase, begin_ns, end_ns in self._life:
            waited_ns = min(end_ns, ready_ns) - max(begin_ns, start_ns)
            if waited_ns > 0:
                queue_ns -= waited_ns
                spent.is_cold |= phase is Phase.CREATE
                if phase is not None and not self._cold:
                    billing.background[phase] -= waited_ns
                    billing.waited[phase] += waited_ns
        self._life.clear()
        billing.waited[Phase.QUEUE] += max(0, queue_ns)
        spent.wait_ns = spent.tax_ns = ready_ns - start_ns
        self._tenant = spent

    def released(self) -> None:
        """The lease has ended."""
        self._tenant = self.listener = None
        self._released_ns = now_ns()

    @contextmanager
    def setup(self, sandbox: str) -> Iterator[None]:
        """Time stages that are added to the sandbox. The actions within are part of that, and no work of a lease."""
        start_ns = now_ns()
        self._stages += 1
        try:
            yield
        finally:
            self._stages -= 1
            self(Span(Phase.SETUP, start_ns, now_ns(), sandbox, "stages"))

    def _add_action(
        self, start_ns: int, end_ns: int, dispatch_ns: int, execute_ns: int, observe_ns: int, *, count: int
    ) -> None:
        billing, tenant = self._billing, self._tenant
        if tenant is not None:
            tenant.work_ns += execute_ns
            tenant.tax_ns += dispatch_ns + observe_ns
        elif start_ns >= self._released_ns:  # it writes a file that is bound to the next lease
            billing.used[Phase.SETUP] += end_ns - start_ns
            self._life.append((None, start_ns, end_ns))
            del self._life[:-_MAX_LIFE]
            return
        billing.actions += count
        billing.dispatch_ns += dispatch_ns
        billing.execute_ns += execute_ns
        billing.observe_ns += observe_ns

    def _add_life(self, phase: Phase, start_ns: int, end_ns: int) -> None:
        billing, spent_ns = self._billing, end_ns - start_ns
        if phase is Phase.DESTROY:
            billing.destructions += 1
        if self._tenant is not None:
            if phase not in _OF_FORKS:  # the creations of forks, which the span of `fork` covers
                billing.used[phase] += spent_ns
                self._tenant.tax_ns += spent_ns
            return
        life = self._life
        # The steps of a phase are reported before the phase, which covers them.
        while life and life[-1][0] is phase and life[-1][1] >= start_ns:
            _, step_start_ns, step_end_ns = life.pop()
            spent_ns -= step_end_ns - step_start_ns
        life.append((phase, start_ns, end_ns))
        del life[:-_MAX_LIFE]
        if phase in _MAKING:
            billing.making_ns += spent_ns
        (billing.waited if self._cold else billing.background)[phase] += spent_ns
