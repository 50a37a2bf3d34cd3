"""The JSON codec of a pool's status. It is here because `dutyfree.codec` must not import pools.

The codec takes the fields and their types from the annotations of `PoolStatus`: a new field needs no change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, get_type_hints

from dutyfree.codec import Codec
from dutyfree.codec.values import Reader, mapping, natural, number, optional, sequence, text
from dutyfree.pool.status import PoolStatus
from dutyfree.tables import Table


def _write_row(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row)


def _read_row(table: Table) -> dict[str, Any]:
    return {
        "kind": table.required("kind", text),
        "phase": table.required("phase", optional(text)),
        "cause": table.required("cause", text),
        "count": table.required("count", natural),
    }


_ROW: Final = Codec("a count of outcomes", _write_row, _read_row)


def _read_outcomes(table: Table) -> dict[str, Any]:
    return {
        "kinds": table.required("kinds", mapping(natural)),
        "counts": list(table.required("counts", sequence(_ROW.decode_inner))),
    }


_OUTCOMES: Final = Codec("outcomes", _write_row, _read_outcomes)
_READERS: Final[Mapping[Any, Reader[Any]]] = {
    str: text,
    int: natural,
    float: number,
    float | None: optional(number),
    Mapping[str, int]: mapping(natural),
    Mapping[str, float]: mapping(number),
    Mapping[str, str]: mapping(text),
    Mapping[str, Any]: _OUTCOMES.decode_inner,
}


def _write_status(status: PoolStatus) -> dict[str, Any]:
    return asdict(status)


def _read_status(table: Table) -> PoolStatus:
    hints = get_type_hints(PoolStatus)
    return PoolStatus(**{name: table.required(name, _READERS[hints[name]]) for name in hints})


POOL_STATUS: Final = Codec("a pool's status", _write_status, _read_status)
