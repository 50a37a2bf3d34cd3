"""Formats numbers and names for readers. Names come from results, which may be hostile: they are made harmless here."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dutyfree.formatting import count, number, one_line
from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.stats.analysis import Setting
from dutyfree.measure.stats.estimate import Estimate

MS_PER_S: Final = 1000.0
LONGEST_NAME: Final = 80
LONGEST_LINE: Final = 300
TIMES: Final = "\u00d7"
DASH: Final = "\u2013"
"""Between the ends of a range, and where there is nothing."""


def name(text: str, most: int = LONGEST_NAME) -> str:
    """Text of others in one line of printable characters, at most so long; never empty."""
    kept = one_line(text)
    return (kept if len(kept) <= most else kept[: most - 1].rstrip() + "…") or "(no name)"


def line(text: str) -> str:
    """Longer foreign text: an error's message, a fact."""
    return name(text, LONGEST_LINE)


def duration(value_ms: float) -> str:
    """Milliseconds as `0.0182 ms`, `12.3 ms` or `42.5 s`."""
    unit, per_unit = _unit(value_ms)
    return f"{number(value_ms / per_unit)} {unit}"


def tick(value_ms: float) -> str:
    """A duration at an axis: no more digits than it needs."""
    if value_ms == 0:
        return "0"
    unit, per_unit = _unit(value_ms)
    return f"{value_ms / per_unit:g} {unit}"


def _unit(value_ms: float) -> tuple[str, float]:
    return ("ms", 1.0) if abs(value_ms) < MS_PER_S * 0.9995 else ("s", MS_PER_S)


def share(value: float) -> str:
    """A part of a whole, such as `3.4 %`."""
    return f"{number(100 * value, 2 if abs(value) < 0.1 else 3)} %"


def times(value: float) -> str:
    """A ratio, such as `1.84x`, with the sign for it."""
    return f"{number(value)}{TIMES}"


def value_of(estimate: Estimate) -> str:
    """The point estimate in its unit."""
    match estimate.unit:
        case "ms":
            return duration(estimate.value)
        case "share":
            return share(estimate.value)
        case "x":
            return times(estimate.value)
        case "actions":
            return f"{estimate.value:,.0f} actions"
        case unit:
            return f"{number(estimate.value)} {unit}"


def interval_of(estimate: Estimate) -> str:
    """The interval in the unit of the value, such as `11.9-13.0`; a bound that the sample cannot give is `?`."""
    if estimate.low is None and estimate.high is None:
        return ""
    per_unit = {"ms": _unit(estimate.value)[1], "share": 0.01}.get(estimate.unit, 1.0)
    text_of = "{:,.0f}".format if estimate.unit == "actions" else number
    low, high = ("?" if bound is None else text_of(bound / per_unit) for bound in (estimate.low, estimate.high))
    between = DASH if estimate.low is None or estimate.low >= 0 else " to "
    return f"{low}{between}{high}"


def estimate_of(estimate: Estimate) -> str:
    """Value and interval, such as `12.3 ms (11.9-13.0)`."""
    bounds = interval_of(estimate)
    return f"{value_of(estimate)} ({bounds})" if bounds else value_of(estimate)


def part_of(ratio: Estimate) -> str:
    """A ratio below 1 as a share with its interval, such as `1.1 % (0.73-1.8)`."""
    return estimate_of(replace(ratio, unit="share"))


def listed(names: list[str]) -> str:
    """Such as `a`, `a and b` or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def warmth_of(warmth: Warmth) -> str:
    """Such as `cold` or `warm at repository`."""
    return "cold" if warmth is Warmth.COLD else f"warm at {warmth}"


def setting_of(setting: Setting) -> str:
    """Such as `T2, 150 actions, cold, 8 at once`."""
    return f"{name(setting.workload)}, {count(setting.length, 'action')}, {_start_of(setting)}"


def series_of(setting: Setting) -> str:
    """The same of all lengths, such as `T2, cold, 8 at once`."""
    return f"{name(setting.workload)}, {_start_of(setting)}"


def _start_of(setting: Setting) -> str:
    return warmth_of(setting.warmth) + (f", {setting.concurrency} at once" if setting.concurrency > 1 else "")


def condition_of(condition: Condition) -> str:
    """Such as `cell: T2, 150 actions, cold`."""
    return f"{name(condition.arm)}: {setting_of(Setting.of(condition))}"
