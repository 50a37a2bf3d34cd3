"""Cells, Dutyfree's own sandboxes: planned in Python, made by the spawner process, served by the guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate

__all__ = ["CellSubstrate"]


def __getattr__(name: str) -> object:
    # Imported when it is first used: `dutyfree run` begins a survey of the host before it imports the rest.
    if name == "CellSubstrate":
        from dutyfree.substrates.cell.substrate import CellSubstrate

        return CellSubstrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
