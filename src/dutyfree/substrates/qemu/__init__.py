"""The microVM substrate: each sandbox is one QEMU process."""

from dutyfree.substrates.qemu.substrate import MicroVMSubstrate

__all__ = ["MicroVMSubstrate"]
