"""Machines under QEMU: one process each, and the microVM built on them."""

from dutyfree.substrates.qemu.substrate import MicroVMSubstrate

__all__ = ["MicroVMSubstrate"]
