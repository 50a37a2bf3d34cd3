"""The notice board: where the pools of this machine show their status to whoever has no other way in.

A pool lives inside a process of its user's. Beside its claim it keeps a small file, written anew every second, which
`dutyfree pool status` and `dutyfree top` read. What is in it is input: it is read with bounds, and never believed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree import claims
from dutyfree.pool.status import PoolStatus

KIND: Final = "pools"
EVERY_S: Final = 1.0
MAX_BYTES: Final = 256 * 1024
MAX_POOLS: Final = 1024
_FILE: Final = "status.json"


class Board:
    """One pool's notices; gone with its process."""

    def __init__(self) -> None:
        for directory in claims.dead(KIND):
            claims.forget(directory)
        self._claim = claims.claim(KIND)

    def show(self, status: PoolStatus) -> None:
        """Replace what is shown. Raises OSError."""
        draft = self._claim.directory / f".{_FILE}"
        draft.write_text(json.dumps(status.as_dict()), encoding="utf-8")
        draft.rename(self._claim.directory / _FILE)

    def close(self) -> None:
        """Take it down."""
        self._claim.release()


@dataclass(frozen=True, slots=True)
class Notice:
    """What a living pool shows."""

    pid: int
    status: dict[str, Any]


def notices() -> list[Notice]:
    """Of every pool of this user on this machine that is alive; what cannot be read is left out."""
    base = claims.state_base() / KIND
    if not claims.is_ours(base):
        return []
    found = []
    for directory in sorted(claims.directories(base))[:MAX_POOLS]:
        pid = directory.name.partition("-")[0]
        if not pid.isdigit() or claims.is_dead(directory.name, KIND):
            continue
        status = _read(directory / _FILE)
        if status is not None:
            found.append(Notice(int(pid), status))
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            status = json.loads(file.read(MAX_BYTES), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(status, dict) or status.keys() != PoolStatus.__annotations__.keys():
        return None
    sound = all(_is_a(status[name], kind) for name, kind in PoolStatus.__annotations__.items())
    return status if sound and _is_a(status["outcomes"].get("kinds"), "Mapping[str, int]") else None


def _is_a(value: Any, kind: str) -> bool:
    """Whether a value of JSON is of the kind that the status' own annotation names."""
    match kind:
        case "str":
            return isinstance(value, str)
        case "int" | "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "float | None":
            return value is None or _is_a(value, "float")
        case "Mapping[str, int]" | "Mapping[str, float]":
            return isinstance(value, dict) and all(_is_a(each, "float") for each in value.values())
        case _:
            return isinstance(value, dict)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
