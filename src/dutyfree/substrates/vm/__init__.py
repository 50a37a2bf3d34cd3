"""Whole machines, as a cloud gives them: firmware, a disk, systemd, SSH."""

from dutyfree.substrates.vm.substrate import VMSubstrate

__all__ = ["VMSubstrate"]
