"""The bill of a host: what its leases and its pool have cost so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from dutyfree.model.phase import Phase
from dutyfree.values import dataclass

_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The time of one phase, by the party that spent it."""

    phase: Phase
    waited_ns: int
    """Leases waited for it: before they had their sandbox (images included) or, without a pool, for its destruction."""
    used_ns: int
    """It was part of the calls of leases, or bound files to them."""
    background_ns: int
    """The pool did it while no lease waited for it."""

    @property
    def leases_ns(self) -> int:
        """The time of leases."""
        return self.waited_ns + self.used_ns


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How often one error ended one kind of work."""

    during: str
    """Of callers: `build` (an image), `acquire`, `lease`. Of sandboxes: `create`, `promote`, `reset`, `destroy`."""
    party: str
    cause: str
    """The name of the error's class."""
    count: int


@dataclass(frozen=True, slots=True)
class OtherSubstrate:
    """What another substrate is expected to cost: for projections."""

    name: str
    acquire_s: float
    """From the request to a new sandbox."""
    action_s: float
    """Added to each action."""
    slowdown: float
    """The time of the same work there, divided by its time here."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the leases of a host, and the pool behind them, have cost. `print` gives a table.

    `bill - earlier` is the bill of the time between two bills of one host. Everything is measured but for `cold_ns` and
    `elsewhere_ns`, which are projections.
    """

    substrate: str
    wall_ns: int
    """Since the host was opened."""
    leases: int
    warm: int
    """Leases that found an idle sandbox in exactly the wanted state, and did not wait for one."""
    cold: int
    """Leases that waited for a new sandbox. The others that are not warm waited for one that existed."""
    open_leases: int
    held_ns: int
    """The time in which leases had their sandbox, summed over leases."""
    actions: int
    """Commands and operations on files."""
    work_ns: int
    """The time of actions inside their sandbox, as measured there."""
    phases: tuple[PhaseTime, ...]
    """Every phase that took time, but for `execute`, which is the work."""
    failures: tuple[FailureCount, ...]
    creations: int
    """Sandboxes that were made, forks apart."""
    destructions: int
    creation_ns: int | None
    """The mean time to make a sandbox, by all that this host has made; None before the first."""
    destruction_ns: int | None
    others: tuple[OtherSubstrate, ...] = ()
    others_source: str = ""
    """Where the costs of `others` come from."""

    @property
    def tax_ns(self) -> int:
        """The time of leases that was not work."""
        return sum(each.leases_ns for each in self.phases)

    @property
    def background_ns(self) -> int:
        """The time that the pool worked while no lease waited for it."""
        return sum(each.background_ns for each in self.phases)

    @property
    def hit_rate(self) -> float | None:
        """The share of leases that were warm; None before the first."""
        return self.warm / self.leases if self.leases else None

    @property
    def concurrency(self) -> float:
        """How many leases had a sandbox at the same time, on average."""
        return self.held_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def cold_ns(self) -> int | None:
        """Projection: the tax if each lease had made and destroyed a sandbox of its own, by this host's own means.

        None if this host has made no sandbox. Without a destruction so far, destructions are not part of it.
        """
        if self.creation_ns is None:
            return None
        used_ns = sum(each.used_ns for each in self.phases)
        return used_ns + self.leases * (self.creation_ns + (self.destruction_ns or 0))

    def elsewhere_ns(self, other: OtherSubstrate) -> tuple[int, int]:
        """Projection: the tax and the work if each lease had got a new sandbox of another substrate."""
        tax_s = self.leases * other.acquire_s + self.actions * other.action_s
        return round(tax_s * _S), round(self.work_ns * other.slowdown)

    @property
    def summary(self) -> str:
        """The bill in one line."""
        warm = f" ({self.warm:,} warm)" if self.leases else ""
        background = f", background {duration(self.background_ns)}" if self.background_ns else ""
        failed = sum(each.count for each in self.failures)
        return (
            f"{_count(self.leases, 'lease')}{warm}, work {duration(self.work_ns)}, "
            f"tax {duration(self.tax_ns)}{_share(self.tax_ns, self.work_ns)}{background}, "
            f"wall {duration(self.wall_ns)}, {self.concurrency:.1f} at once, "
            f"{_count(failed, 'failure') if failed else 'no failures'}"
        )

    def __sub__(self, earlier: Bill) -> Bill:
        """The bill since `earlier`, a bill of the same host. Means of creations and destructions are those of all."""
        before = {each.phase: each for each in earlier.phases}
        nothing = PhaseTime(Phase.QUEUE, 0, 0, 0)
        phases = [
            PhaseTime(
                each.phase,
                max(0, each.waited_ns - (was := before.get(each.phase, nothing)).waited_ns),
                max(0, each.used_ns - was.used_ns),
                max(0, each.background_ns - was.background_ns),
            )
            for each in self.phases
        ]
        failures = Counter({_key(each): each.count for each in self.failures})
        failures.subtract({_key(each): each.count for each in earlier.failures})
        return replace(
            self,
            wall_ns=max(0, self.wall_ns - earlier.wall_ns),
            leases=max(0, self.leases - earlier.leases),
            warm=max(0, self.warm - earlier.warm),
            cold=max(0, self.cold - earlier.cold),
            held_ns=max(0, self.held_ns - earlier.held_ns),
            actions=max(0, self.actions - earlier.actions),
            work_ns=max(0, self.work_ns - earlier.work_ns),
            creations=max(0, self.creations - earlier.creations),
            destructions=max(0, self.destructions - earlier.destructions),
            phases=tuple(each for each in phases if each.leases_ns or each.background_ns),
            failures=tuple(FailureCount(*key, count) for key, count in failures.items() if count > 0),
        )

    def __str__(self) -> str:
        lines = [f"bill of {_count(self.leases, 'lease')} on {self.substrate}, {duration(self.wall_ns)} of wall time"]
        lines += [
            f"  leases       {self._leases()}{f'; {self.open_leases:,} still open' if self.open_leases else ''}",
            f"  sandboxes    {self.creations:,} made, {self.destructions:,} destroyed",
            f"  concurrency  {self.concurrency:.2f} ({duration(self.held_ns)} of leases / {duration(self.wall_ns)})",
            f"  work         {duration(self.work_ns)} in {_count(self.actions, 'action')}",
            f"  tax          {duration(self.tax_ns)}{_share(self.tax_ns, self.work_ns)}{self._background()}",
        ]
        if self.phases:
            lines += [f"    {'phase':<12} {'waited':>11} {'in calls':>11} {'background':>11}"]
            lines += [
                f"    {each.phase:<12} {_cell(each.waited_ns)} {_cell(each.used_ns)} {_cell(each.background_ns)}"
                for each in self.phases
            ]
        failures = [*map(_failure, self.failures)] or ["none"]
        lines += [f"  {'failures' if not place else '':<13}{each}" for place, each in enumerate(failures)]
        return "\n".join([*lines, *self._projections()])

    def _leases(self) -> str:
        if self.hit_rate is None:
            return "none yet"
        other = self.leases - self.warm - self.cold
        parts = [f"{self.warm:,} of {self.leases:,} warm ({100 * self.hit_rate:.1f} %)"]
        parts += [f"{other:,} waited for an existing sandbox"] if other > 0 else []
        parts += [f"{self.cold:,} waited for a new one"] if self.cold else []
        return ", ".join(parts)

    def _background(self) -> str:
        if not self.background_ns:
            return ""
        return f", and {duration(self.background_ns)} in the background"

    def _projections(self) -> list[str]:
        if not self.leases:
            return []
        lines = ["  projections, not measured:"]
        if self.cold_ns is None or self.creation_ns is None:
            lines.append("    cold           unknown: this host has made no sandbox yet")
        else:
            each = f"{duration(self.creation_ns)} to make"
            each += f" and {duration(self.destruction_ns)} to destroy" if self.destruction_ns is not None else ""
            unknown = "" if self.destruction_ns is not None else "; none was destroyed yet"
            lines.append(f"    cold           tax {duration(self.cold_ns)} ({each} each sandbox{unknown})")
        for other in self.others:
            tax_ns, work_ns = self.elsewhere_ns(other)
            lines.append(f"    {other.name:<14} tax {duration(tax_ns)}, work {duration(work_ns)}")
        if self.others:
            lines.append(f"    (others: cold, by {self.others_source})")
        return lines


def duration(ns: int) -> str:
    """A duration with three digits or so: `0.05 ms`, `12.3 ms`, `1.23 s`, `2 min 5 s`, `3 h 4 min`."""
    ms = ns / 1e6
    if ms < 999.5:
        return f"{ms:.2f} ms" if 0 < ms < 9.995 else f"{ms:.1f} ms" if 0 < ms < 99.95 else f"{ms:.0f} ms"
    if ns / _S < 59.95:
        return f"{ns / _S:.2f} s" if ns / _S < 9.995 else f"{ns / _S:.1f} s"
    minutes, seconds = divmod(round(ns / _S), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _cell(ns: int) -> str:
    return f"{duration(ns) if ns else '-':>11}"


def _share(tax_ns: int, work_ns: int) -> str:
    return f" ({100 * tax_ns / work_ns:.1f} % of the work)" if work_ns else ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _failure(each: FailureCount) -> str:
    return f"{each.count:,} x {each.cause} ({each.party}) in {each.during}"


def _key(each: FailureCount) -> tuple[str, str, str]:
    return (each.during, each.party, each.cause)
