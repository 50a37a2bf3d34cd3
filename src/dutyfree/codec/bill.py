"""The bill of a host as JSON."""

from __future__ import annotations

from typing import Any, Final

from dutyfree.codec.document import Codec
from dutyfree.codec.values import choice, natural, number, optional, sequence, text
from dutyfree.errors import InvalidRequest
from dutyfree.model import Bill, FailureCount, OtherSubstrate, Phase, PhaseTime
from dutyfree.tables import Table

_COUNTS: Final = (
    "wall_ns",
    "leases",
    "warm",
    "cold",
    "open_leases",
    "held_ns",
    "actions",
    "work_ns",
    "creations",
    "destructions",
)


def _write_phase(each: PhaseTime) -> dict[str, Any]:
    times = {"waited_ns": each.waited_ns, "used_ns": each.used_ns, "background_ns": each.background_ns}
    return {"phase": str(each.phase), **times}


def _read_phase(table: Table) -> PhaseTime:
    return PhaseTime(
        table.required("phase", choice(Phase)),
        *(table.required(name, natural) for name in ("waited_ns", "used_ns", "background_ns")),
    )


_PHASE: Final = Codec("the time of a phase", _write_phase, _read_phase)


def _write_failure(each: FailureCount) -> dict[str, Any]:
    return {"during": each.during, "party": each.party, "cause": each.cause, "count": each.count}


def _read_failure(table: Table) -> FailureCount:
    during, party, cause = (table.required(name, text) for name in ("during", "party", "cause"))
    return FailureCount(during, party, cause, table.required("count", natural))


_FAILURE: Final = Codec("a count of failures", _write_failure, _read_failure)


def _write_other(each: OtherSubstrate) -> dict[str, Any]:
    costs = {"acquire_s": each.acquire_s, "action_s": each.action_s, "slowdown": each.slowdown}
    return {"name": each.name, **costs}


def _read_other(table: Table) -> OtherSubstrate:
    costs = (table.required(name, _cost) for name in ("acquire_s", "action_s", "slowdown"))
    return OtherSubstrate(table.required("name", text), *costs)


def _cost(value: Any) -> float:
    if (cost := number(value)) < 0 or cost > 1e9:
        raise InvalidRequest(f"{cost:g} is not a cost; it must lie between 0 and 1e9")
    return cost


_OTHER: Final = Codec("the costs of another substrate", _write_other, _read_other)


def _write_bill(bill: Bill) -> dict[str, Any]:
    """What follows from other fields is there for readers, and ignored by `decode`."""
    elsewhere = {each.name: bill.elsewhere_ns(each) for each in bill.others}
    return {
        "substrate": bill.substrate,
        **{name: getattr(bill, name) for name in _COUNTS},
        "tax_ns": bill.tax_ns,
        "background_ns": bill.background_ns,
        "hit_rate": bill.hit_rate,
        "concurrency": bill.concurrency,
        "phases": [_write_phase(each) for each in bill.phases],
        "failures": [_write_failure(each) for each in bill.failures],
        "creation_ns": bill.creation_ns,
        "destruction_ns": bill.destruction_ns,
        "others": [_write_other(each) for each in bill.others],
        "others_source": bill.others_source,
        "projections": {
            "cold": {"tax_ns": bill.cold_ns, "work_ns": bill.work_ns},
            **{name: {"tax_ns": tax_ns, "work_ns": work_ns} for name, (tax_ns, work_ns) in elsewhere.items()},
        },
    }


def _read_bill(table: Table) -> Bill:
    counts: dict[str, Any] = {name: table.required(name, natural) for name in _COUNTS}
    return Bill(
        substrate=table.required("substrate", text),
        phases=table.required("phases", sequence(_PHASE.decode_inner)),
        failures=table.required("failures", sequence(_FAILURE.decode_inner)),
        creation_ns=table.required("creation_ns", optional(natural)),
        destruction_ns=table.required("destruction_ns", optional(natural)),
        others=table.required("others", sequence(_OTHER.decode_inner)),
        others_source=table.required("others_source", text),
        **counts,
    )


BILL: Final = Codec("a bill", _write_bill, _read_bill)
