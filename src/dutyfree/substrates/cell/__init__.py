"""Cells, Dutyfree's own sandboxes: planned in Python, built by the spawner, served by the guest."""

from dutyfree.substrates.cell.substrate import CellSubstrate

__all__ = ["CellSubstrate"]
