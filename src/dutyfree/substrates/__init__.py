"""The mechanisms that create sandboxes. Import none of them from here: `load` finds one by its name."""

from dutyfree.substrates.registry import load, names

__all__ = ["load", "names"]
