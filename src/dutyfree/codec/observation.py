"""Observations and spans as JSON."""

from __future__ import annotations

from typing import Any, Final

from dutyfree.codec.document import Codec
from dutyfree.codec.values import choice, flag, natural, number, optional, read_bytes, text, whole, write_bytes
from dutyfree.errors import InvalidRequest
from dutyfree.model import Observation, Phase, Span
from dutyfree.model.observation import Timing
from dutyfree.tables import Table

_FLAGS: Final = ("timed_out", "truncated", "oom_killed", "pids_limited", "disk_full")
_COUNTS: Final = ("stdout_bytes", "stderr_bytes", "peak_memory_bytes")
_SHOWN_DECIMALS: Final = 3
"""Of milliseconds that are there for readers and that `decode` computes again from nanoseconds."""


def _write_span(span: Span) -> dict[str, Any]:
    return {
        "phase": str(span.phase),
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "duration_ms": round(span.duration_ms, _SHOWN_DECIMALS),
        "sandbox": span.sandbox,
        "name": span.name,
    }


def _read_span(table: Table) -> Span:
    return Span(
        phase=table.required("phase", choice(Phase)),
        start_ns=table.required("start_ns", whole),
        end_ns=table.required("end_ns", whole),
        sandbox=table.required("sandbox", text),
        name=table.required("name", text),
    )


SPAN: Final = Codec("a span", _write_span, _read_span)


def _write_observation(seen: Observation) -> dict[str, Any]:
    """`execute_ms` and `spans` follow from `timing`: they are there for readers, and ignored by `decode`."""
    return {
        "exit_code": seen.exit_code,
        "signal": seen.signal,
        **write_bytes("stdout", seen.stdout),
        **write_bytes("stderr", seen.stderr),
        **{name: getattr(seen, name) for name in (*_FLAGS, *_COUNTS)},
        "execute_ms": round(seen.execute_ms, _SHOWN_DECIMALS),
        "cpu_ms": seen.cpu_ms,
        "spans": [_write_span(span) for span in seen.spans],
        "timing": _write_timing(seen.timing),
    }


def _read_observation(table: Table) -> Observation:
    exit_code = table.required("exit_code", optional(whole))
    signal = table.required("signal", optional(whole))
    if (exit_code is None) == (signal is None):
        raise InvalidRequest("exactly one of exit_code and signal must be set")
    others: dict[str, Any] = {name: table.required(name, flag) for name in _FLAGS}
    others |= {name: table.required(name, natural) for name in _COUNTS}
    return Observation(
        exit_code=exit_code,
        signal=signal,
        stdout=read_bytes(table, "stdout"),
        stderr=read_bytes(table, "stderr"),
        cpu_ms=table.required("cpu_ms", number),
        timing=table.required("timing", _TIMING.decode_inner),
        **others,
    )


def _write_timing(timing: Timing) -> dict[str, Any]:
    return {
        "sandbox": timing.sandbox,
        "start_ns": timing.start_ns,
        "end_ns": timing.end_ns,
        "execute_ns": timing.execute_ns,
    }


def _read_timing(table: Table) -> Timing:
    return Timing(
        sandbox=table.required("sandbox", text),
        start_ns=table.required("start_ns", whole),
        end_ns=table.required("end_ns", whole),
        execute_ns=table.required("execute_ns", whole),
    )


_TIMING: Final = Codec("a timing", _write_timing, _read_timing)
OBSERVATION: Final = Codec("an observation", _write_observation, _read_observation)
