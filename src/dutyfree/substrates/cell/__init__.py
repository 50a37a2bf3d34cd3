"""Cells, Dutyfree's own sandboxes: planned in Python, made by the spawner process, served by the guest."""

from dutyfree.substrates.cell.substrate import CellSubstrate

__all__ = ["CellSubstrate"]
